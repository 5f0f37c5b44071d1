#include "nanovllm/engine/disk/disk_loads.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/kv/tiers/tiered_block_manager.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;

namespace {

constexpr int kBlock = 4;
constexpr std::size_t kBytes = 48;  // of a block, in three pieces
using Blocks = TieredBlockManager<kBlock, HashPrefixCache<kBlock>>;
using Tokens = std::vector<TokenId>;
using Bytes = std::vector<std::byte>;

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_disk_loads_", ::getpid());
};

/// Has a host's pool, and computes nothing.
class FakeRunner : public StepRunner {
 public:
  explicit FakeRunner(std::int32_t num_blocks)
      : memory(static_cast<std::size_t>(num_blocks) * kBytes) {}
  [[nodiscard]] KvShape kv_shape() const override { return {}; }
  [[nodiscard]] std::size_t available_memory() override { return 0; }
  void allocate_kv(std::int32_t, std::int32_t) override {}
  void launch(const StepInputs&) override {}
  StepResults wait() override { return {}; }
  [[nodiscard]] bool is_asynchronous() const override { return false; }
  void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) override {
    REQUIRE((blocks.size() == 1 && bytes.size() == kBytes));
    const Bytes& content = device.at(static_cast<std::size_t>(blocks[0]));
    std::memcpy(bytes.data(), content.data(), kBytes);
  }
  void write_blocks(std::span<const BlockId>, std::span<const std::byte>) override {}
  [[nodiscard]] std::vector<std::span<std::byte>> host_block(BlockId block) override {
    const std::span<std::byte> all = at(block);
    return {all.first(16), all.subspan(16, 16), all.last(16)};
  }
  void run_worker() override {}
  [[nodiscard]] Health health() const override { return {}; }
  void reset() override {}
  [[nodiscard]] int num_ranks() const override { return 1; }
  [[nodiscard]] std::string describe_backend() const override { return "fake"; }
  [[nodiscard]] std::string executor_name() const override { return "none"; }

  [[nodiscard]] std::span<std::byte> at(BlockId block) {
    return std::span(memory).subspan(static_cast<std::size_t>(block) * kBytes, kBytes);
  }
  Bytes memory;
  std::vector<Bytes> device = std::vector<Bytes>(4, Bytes(kBytes));
};

Tokens prompt_of(int num_tokens, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// What the keys and values of block `i` of `tokens` would be.
Bytes content_of(const Tokens& tokens, std::size_t i) {
  Bytes out(kBytes);
  for (std::size_t j = 0; j < out.size(); ++j)
    out[j] = static_cast<std::byte>(tokens[i * kBlock + j % kBlock] * 13 + static_cast<int>(j));
  return out;
}

/// The books of an engine with `num_host` blocks in host memory, and its disk.
struct Rig {
  explicit Rig(const Folder& folder, std::int32_t num_host = 8, int min_tokens = 1)
      : runner(num_host), blocks(4, true) {
    blocks.add_host_pool(num_host);
    auto tier = std::make_unique<DiskTier>(folder.path, 1 << 20, "a model");
    disk = tier.get();
    loads.emplace(std::move(tier), runner, blocks, min_tokens);
  }
  ~Rig() { loads->finish(); }

  /// Computes `tokens`, at most four blocks of them, and gives their blocks back.
  void compute(const Tokens& tokens) {
    std::vector<BlockId> table;
    while (std::ssize(table) < std::ssize(tokens) / kBlock) table.push_back(*blocks.allocate());
    for (std::size_t i = 0; i < table.size(); ++i)
      runner.device[static_cast<std::size_t>(table[i])] = content_of(tokens, i);
    blocks.publish(table, tokens, 0, static_cast<std::int32_t>(tokens.size()));
    blocks.release(table);
  }

  /// A step begins that needs all of the device's pool: what is cached goes down, but for the
  /// copies, which the device has not made yet.
  std::vector<BlockCopy> begin_step(std::uint64_t step) {
    std::vector<BlockCopy> copies;
    std::vector<BlockId> taken;
    while (const std::optional<BlockId> block = blocks.allocate(&copies)) taken.push_back(*block);
    blocks.end_copies();
    loads->hold(copies, step);
    blocks.release(taken);
    check_invariants();
    return copies;
  }
  void copy(std::span<const BlockCopy> copies) {
    for (const BlockCopy& copy : copies)
      std::memcpy(runner.at(copy.to).data(),
                  runner.device[static_cast<std::size_t>(copy.from)].data(), kBytes);
  }

  /// Puts `tokens` on the disk, and forgets them in memory.
  void write(const Tokens& tokens) {
    compute(tokens);
    const std::vector<BlockCopy> copies = begin_step(1);
    REQUIRE(std::ssize(copies) == std::ssize(tokens) / kBlock);
    copy(copies);
    loads->save(copies, 1);
    wait_for_saves();
    blocks.forget();
    check_invariants();
    REQUIRE(blocks.host().num_free() == blocks.host().num_blocks());
  }

  void wait_for_saves() {
    poll_until([&] { return blocks.num_free_host() == blocks.host().num_blocks(); });
  }
  template <class Done>
  void poll_until(const Done& done) {
    for (int i = 0; i < 10'000 && !done(); ++i) {
      poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(done());
  }
  void poll(std::uint64_t oldest_step = 0, std::uint64_t newest_step = 0) {
    loads->poll(oldest_step, newest_step, [&](Request& request) { added.push_back(&request); });
    check_invariants();
  }

  /// What is found of `tokens`, all of them being wanted; its bytes must be right.
  PrefixMatch match(Tokens tokens) {
    tokens.push_back(0);
    PrefixMatch found = blocks.match(tokens);
    for (std::size_t i = 0; i < found.host_blocks.size(); ++i) {
      const std::span<std::byte> bytes = runner.at(found.host_blocks[i]);
      CHECK(Bytes(bytes.begin(), bytes.end()) == content_of(tokens, found.blocks.size() + i));
    }
    return found;
  }

  void check_invariants() const {
    blocks.check_invariants();
    loads->check_invariants();
  }
  [[nodiscard]] EngineStats stats() const {
    EngineStats out;
    loads->fill(out);
    return out;
  }

  FakeRunner runner;
  Blocks blocks;
  DiskTier* disk = nullptr;
  std::optional<DiskLoads<Blocks>> loads;
  std::vector<Request*> added;
};

std::unique_ptr<Request> request_of(Tokens tokens) {
  tokens.push_back(0);  // the last is always computed
  SequenceTerms terms;
  terms.max_total_tokens = 100;
  terms.vocab_size = 1000;
  return std::make_unique<Request>(1, terms, std::move(tokens), nullptr, TokenCallback());
}

Sequence& sequence_of(Request& request) { return *request.sequences().front(); }

}  // namespace

TEST_CASE("what a step has saved is written once it is committed, and never before", "[disk]") {
  const Folder folder;
  Rig rig(folder);
  const Tokens tokens = prompt_of(12);
  rig.compute(tokens);
  const std::vector<BlockCopy> copies = rig.begin_step(1);
  REQUIRE(copies.size() == 3);
  rig.copy(copies);
  for (int i = 0; i < 20; ++i) {
    rig.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(rig.disk->size() == 0);
  CHECK(rig.blocks.tier().num_evictable() == 0);  // not even where room is needed
  std::vector<BlockId> others;
  CHECK(!rig.blocks.allocate_host(6, others));

  SECTION("cancelled") {
    rig.blocks.forget_saved(copies);
    rig.loads->cancel(copies, 1);
    rig.poll();
    rig.check_invariants();
    CHECK(rig.blocks.host().num_free() == 8);
    rig.loads->finish();
    CHECK(rig.disk->size() == 0);
  }
  SECTION("committed") {
    rig.loads->save(copies, 1);
    rig.wait_for_saves();
    CHECK(rig.disk->stats().num_writes == 3);
    CHECK(rig.match(tokens).host_blocks.size() == 3);
    // What is on disk is not written again.
    rig.blocks.forget();
    rig.write(tokens);
    CHECK(rig.disk->stats().num_writes == 3);
  }
  SECTION("committed, and the engine goes") {
    rig.loads->save(copies, 1);
    rig.loads->finish();
    CHECK(rig.disk->stats().num_writes == 3);
  }
}

TEST_CASE("two steps under way that copy to the same block of the host write it once", "[disk]") {
  const Folder folder;
  Rig rig(folder);
  const Tokens tokens = prompt_of(12);
  rig.compute(tokens);
  // Step 1 swaps a sequence out, which ends at once: its blocks are free again.
  std::vector<BlockId> host_table;
  REQUIRE(rig.blocks.allocate_host(3, host_table));
  std::vector<BlockCopy> swapped;
  for (const BlockId host : host_table) swapped.push_back({.from = 3, .to = host});
  rig.loads->hold(swapped, 1);
  const Bytes of_sequence(kBytes, std::byte{0xee});
  for (const BlockId host : host_table) std::ranges::copy(of_sequence, rig.runner.at(host).begin());
  rig.blocks.release_host(host_table);
  // Step 2 saves prefixes to the same blocks, and is computed when step 1 is committed.
  const std::vector<BlockCopy> saved = rig.begin_step(2);
  const auto is_swapped_to = [&](const BlockCopy& copy) {
    return std::ranges::count(host_table, copy.to) == 1;
  };
  REQUIRE((saved.size() == 3 && std::ranges::all_of(saved, is_swapped_to)));
  rig.loads->save(swapped, 1);
  for (int i = 0; i < 20; ++i) {
    rig.poll(2, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(rig.disk->size() == 0);

  SECTION("both are committed") {
    rig.copy(saved);
    rig.loads->save(saved, 2);
    rig.wait_for_saves();
    CHECK(rig.disk->stats().num_writes == 3);
    CHECK(rig.match(tokens).host_blocks.size() == 3);
    rig.loads->finish();
    Rig other(folder);  // which finds the keys and values of these tokens in the files
    const auto request = request_of(tokens);
    REQUIRE(other.loads->begin(*request, 0));
    other.poll_until([&] { return !other.added.empty(); });
    CHECK(other.match(tokens).host_blocks.size() == 3);
    CHECK(other.stats().num_disk_failures == 0);
  }
  SECTION("the second is cancelled") {
    rig.blocks.forget_saved(saved);
    rig.loads->cancel(saved, 2);
    rig.poll();
    CHECK(rig.blocks.host().num_free() == 8);
    rig.loads->finish();
    CHECK(rig.disk->size() == 0);
  }
}

TEST_CASE("a request waits for its blocks and finds them in the host's pool", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(16);
  Rig(folder).write(tokens);
  Rig rig(folder, 12);
  CHECK(rig.disk->size() == 4);
  const auto request = request_of(tokens);
  REQUIRE(rig.loads->begin(*request, 0));
  CHECK((rig.loads->is_loading() && rig.loads->num_waiting() == 1));
  rig.check_invariants();
  CHECK(rig.match(tokens).num_tokens == 0);
  rig.poll_until([&] { return !rig.added.empty(); });
  CHECK(rig.added == std::vector<Request*>{request.get()});
  CHECK(!rig.loads->is_loading());
  const PrefixMatch found = rig.match(tokens);
  CHECK((found.num_tokens == 16 && found.host_blocks.size() == 4));
  CHECK(rig.stats().num_disk_failures == 0);

  // They stay until it is admitted.
  std::vector<BlockId> others;
  CHECK(!rig.blocks.allocate_host(9, others));
  CHECK(rig.blocks.allocate_host(8, others));
  rig.poll();
  CHECK(rig.match(tokens).num_tokens == 16);
  rig.blocks.adopt(found, 17);
  rig.blocks.end_copies();
  CHECK(rig.stats().num_disk_hit_tokens == 16);
  sequence_of(*request).status = SequenceStatus::running;
  rig.loads->release_admitted();
  rig.check_invariants();
  rig.blocks.adopt(rig.match(tokens), 17);
  rig.blocks.end_copies();
  CHECK(rig.stats().num_disk_hit_tokens == 16);  // the second time they were in memory
  CHECK(rig.blocks.num_free_host() == 4);
  // The first block goes last: the others are worth nothing without it.
  CHECK(rig.blocks.allocate_host(1, others));
  CHECK(rig.match(tokens).num_tokens == 12);
}

TEST_CASE("a block is not read while a step under way may still use what is taken", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(8);
  Rig(folder).write(tokens);
  Rig rig(folder);
  const auto request = request_of(tokens);
  REQUIRE(rig.loads->begin(*request, 3));
  for (int i = 0; i < 30; ++i) {
    rig.poll(i < 15 ? 2 : 3, 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK((rig.added.empty() && rig.disk->stats().num_reads == 0));
  for (int i = 0; i < 10'000 && rig.added.empty(); ++i) {
    rig.poll(4, 4);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(rig.added.size() == 1);
  CHECK(rig.match(tokens).num_tokens == 8);

  // Behind a step that was undone there may be copies that nobody waits for, until one that began
  // later is committed.
  const auto other = request_of(prompt_of(8, 50));
  rig.loads->forget(*request);
  rig.blocks.forget();
  const std::span<const BlockCopy> no_copies;
  rig.loads->cancel(no_copies, 6);
  CHECK(!rig.loads->begin(*request, 0));
  rig.loads->save(no_copies, 5);
  CHECK(!rig.loads->begin(*request, 0));
  rig.loads->save(no_copies, 7);
  CHECK(rig.loads->begin(*request, 0));
  CHECK(!rig.loads->begin(*other, 0));
  rig.loads->forget(*request);
}

TEST_CASE("what is read goes behind its parents or nowhere", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(16);
  Rig(folder).write(tokens);
  Rig rig(folder, 16);
  const Tokens first(tokens.begin(), tokens.begin() + 8);
  rig.compute(first);  // two blocks are in the device's pool
  const auto request = request_of(tokens);
  const auto finish = [&] { rig.poll_until([&] { return !rig.added.empty(); }); };

  SECTION("the parents are there") {
    REQUIRE(rig.loads->begin(*request, 0));
    finish();
    const PrefixMatch found = rig.match(tokens);
    CHECK((found.blocks.size() == 2 && found.host_blocks.size() == 2));
  }
  SECTION("the parents go meanwhile") {
    REQUIRE(rig.loads->begin(*request, 9));
    rig.blocks.forget();
    finish();
    CHECK(rig.match(tokens).num_tokens == 0);
    CHECK(rig.blocks.host().num_free() == 16);
  }
  SECTION("the last parent goes meanwhile") {
    REQUIRE(rig.loads->begin(*request, 9));
    std::vector<BlockId> table;
    for (int i = 0; i < 3; ++i) table.push_back(*rig.blocks.allocate());
    rig.blocks.release(table);
    CHECK(rig.match(tokens).num_tokens == 4);
    finish();
    CHECK(rig.match(tokens).num_tokens == 4);
    CHECK(rig.blocks.host().num_free() == 16);
  }
  SECTION("some of it was computed meanwhile") {
    REQUIRE(rig.loads->begin(*request, 9));
    rig.blocks.forget();
    rig.compute(Tokens(tokens.begin(), tokens.begin() + 12));
    finish();
    const PrefixMatch found = rig.match(tokens);
    CHECK((found.blocks.size() == 3 && found.host_blocks.size() == 1));
    CHECK(rig.blocks.host().num_free() == 15);
  }
  SECTION("a file in between is bad") {
    REQUIRE(rig.loads->begin(*request, 9));
    DiskName name = rig.disk->root();
    for (std::size_t i = 0; i < 16; i += kBlock)
      name = name.next(std::span(tokens).subspan(i, kBlock));
    fs::resize_file(folder.path / (name.hex() + ".kvblock"), 60);  // the last
    finish();
    CHECK(rig.match(tokens).num_tokens == 12);
    CHECK(rig.stats().num_disk_failures == 1);
    CHECK(rig.blocks.host().num_free() == 15);
  }
  SECTION("the request ends meanwhile") {
    const std::uint64_t newest_step = GENERATE(0, 9);
    REQUIRE(rig.loads->begin(*request, newest_step));
    rig.loads->forget(*request);
    CHECK(!rig.loads->is_loading());
    // What the thread may be filling is nobody else's before it has said so.
    CHECK(rig.blocks.host().num_free() == (newest_step == 0 ? 14 : 16));
    rig.check_invariants();
    rig.poll_until([&] { return rig.blocks.host().num_free() == 16; });
    CHECK(rig.added.empty());
    CHECK(rig.match(tokens).num_tokens == 8);
  }
  SECTION("the request ends before it is admitted") {
    REQUIRE(rig.loads->begin(*request, 0));
    finish();
    rig.loads->forget(*request);
    CHECK(rig.blocks.num_free_host() == 16);
    // The first block goes last: the others are worth nothing without it.
    std::vector<BlockId> others;
    CHECK(rig.blocks.allocate_host(15, others));
    CHECK(rig.match(tokens).num_tokens == 12);
  }
  SECTION("everything is dropped") {
    REQUIRE(rig.loads->begin(*request, GENERATE(0, 9)));
    rig.loads->reset([&](Request& each) { rig.added.push_back(&each); });
    CHECK(rig.added.size() == 1);
    rig.check_invariants();
    CHECK(rig.blocks.host().num_free() == 16);
    CHECK(!rig.loads->is_loading());
  }
}

TEST_CASE("what is not worth it is not read", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(12);
  Rig(folder).write(tokens);
  const auto request = request_of(tokens), other = request_of(prompt_of(12, 1));
  Tokens without_end(tokens.begin(), tokens.end() - 1);
  const auto shorter = request_of(without_end);  // its last block has the last token
  {
    Rig rig(folder, 8, 12);
    CHECK(!rig.loads->begin(*other, 0));
    rig.compute(Tokens(tokens.begin(), tokens.begin() + 4));
    CHECK(!rig.loads->begin(*request, 0));  // eight tokens more than in the pool
  }
  {
    Rig rig(folder, 8, 12);
    CHECK(!rig.loads->begin(*shorter, 0));
    CHECK(rig.loads->begin(*request, 0));
    rig.loads->forget(*request);
  }
  {
    Rig rig(folder, 4, 12);  // half of four blocks are two
    CHECK(!rig.loads->begin(*request, 0));
    CHECK(rig.blocks.host().num_free() == 4);
  }
  Rig rig(folder, 4, 8);
  CHECK(rig.loads->begin(*request, 0));
  CHECK(rig.blocks.host().num_free() == 2);
  rig.poll_until([&] { return !rig.added.empty(); });
  CHECK(rig.match(tokens).num_tokens == 8);
}

TEST_CASE("requests with a prefix in common read it once", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(12);
  Rig(folder).write(tokens);
  Rig rig(folder);
  const auto a = request_of(tokens), b = request_of(tokens), c = request_of(tokens);
  REQUIRE((rig.loads->begin(*a, 5) && rig.loads->begin(*b, 5) && rig.loads->begin(*c, 5)));
  CHECK(rig.blocks.tier().num_loading() == 3);
  SECTION("and go on together") {
    rig.poll_until([&] { return rig.added.size() == 3; });
    CHECK(rig.disk->stats().num_reads == 3);
  }
  SECTION("also when the one that reads is aborted") {
    rig.loads->forget(*a);
    rig.poll_until([&] { return rig.added.size() == 2; });
    CHECK(rig.match(tokens).num_tokens == 12);
    CHECK(rig.disk->stats().num_reads == 3);
  }
  rig.loads->forget(*b);
  rig.loads->forget(*c);
  rig.loads->forget(*a);
  CHECK(rig.blocks.num_free_host() == 8);
}

TEST_CASE("blocks that files go on behind have files, too", "[disk]") {
  const Folder folder;
  const Tokens tokens = prompt_of(16);
  const bool idle = GENERATE(false, true);
  {
    Rig rig(folder);
    rig.compute(tokens);
    std::vector<BlockCopy> copies;  // the last block alone is given up
    const std::vector<BlockId> taken{*rig.blocks.allocate(&copies)};
    REQUIRE(copies.size() == 1);
    rig.blocks.end_copies();
    rig.loads->hold(copies, 1);
    rig.copy(copies);
    rig.loads->save(copies, 1);
    rig.wait_for_saves();
    CHECK(rig.disk->size() == 1);
    if (idle) {
      rig.loads->save_parents();
      rig.poll_until([&] { return rig.disk->size() == 4; });
    }
  }
  Rig rig(folder);
  CHECK(rig.disk->size() == 4);
  const auto request = request_of(tokens);
  REQUIRE(rig.loads->begin(*request, 0));
  rig.poll_until([&] { return !rig.added.empty(); });
  CHECK(rig.match(tokens).num_tokens == 16);
}

TEST_CASE("what a pool held before it was lost is not written", "[disk]") {
  const Folder folder;
  Rig rig(folder);
  rig.compute(prompt_of(16));
  std::vector<BlockCopy> copies;
  const std::vector<BlockId> taken{*rig.blocks.allocate(&copies)};
  rig.blocks.end_copies();
  rig.loads->hold(copies, 1);
  rig.loads->save(copies, 1);
  rig.wait_for_saves();
  rig.blocks.release(taken);
  rig.loads->reset([](Request&) {});
  rig.blocks.forget();
  rig.loads->finish();
  CHECK(rig.disk->size() == 1);
}
