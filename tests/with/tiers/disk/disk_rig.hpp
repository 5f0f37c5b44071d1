#pragma once
/// What the tests of DiskLoads and DiskSaves share: a block manager, a runner that computes nothing,
/// and a disk tier, driven step by step.

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
#include "nanovllm/with/tiers/disk/disk_loads.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

namespace disk_rig {

using namespace nanovllm;
namespace fs = std::filesystem;

inline constexpr int kBlock = 4;
inline constexpr std::size_t kBytes = 48;  // of a block, in three pieces
using Blocks = TieredBlockManager<kBlock, HashPrefixCache<kBlock>>;
using Tokens = std::vector<TokenId>;
using Bytes = std::vector<std::byte>;

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_disk_loads_", ::getpid());
};

/// Has a host's pool, and computes nothing.
class FakeRunner : public StepRunner, public PoolContents {
 public:
  explicit FakeRunner(std::int32_t num_blocks)
      : memory(static_cast<std::size_t>(num_blocks) * kBytes) {}
  [[nodiscard]] KvShape kv_shape() const override { return {}; }
  [[nodiscard]] std::size_t available_memory() override { return 0; }
  void allocate_kv(std::int32_t, std::int32_t) override {}
  void launch(const StepInputs&) override {}
  StepResults wait() override { return {}; }
  [[nodiscard]] int num_under_way() const override { return 0; }
  [[nodiscard]] bool is_asynchronous() const override { return false; }
  [[nodiscard]] PoolContents& pool() override { return *this; }
  void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) override {
    REQUIRE((blocks.size() == 1 && bytes.size() == kBytes));
    const Bytes& content = device.at(static_cast<std::size_t>(blocks[0]));
    std::memcpy(bytes.data(), content.data(), kBytes);
  }
  void write_blocks(std::span<const BlockId>, std::span<const std::byte>) override {}
  [[nodiscard]] std::vector<std::span<std::byte>> outside_block(BlockId block) override {
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

inline Tokens prompt_of(int num_tokens, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// What the keys and values of block `i` of `tokens` would be.
inline Bytes content_of(const Tokens& tokens, std::size_t i) {
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
    auto tier = std::make_unique<DiskStore>(folder.path, 1 << 20, "a model");
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
    for (std::size_t i = 0; i < found.outside.size(); ++i) {
      const std::span<std::byte> bytes = runner.at(found.outside[i]);
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
  DiskStore* disk = nullptr;
  std::optional<DiskLoads<Blocks>> loads;
  std::vector<Request*> added;
};

inline std::unique_ptr<Request> request_of(Tokens tokens) {
  tokens.push_back(0);  // the last is always computed
  SequenceTerms terms;
  terms.max_total_tokens = 100;
  terms.vocab_size = 1000;
  return std::make_unique<Request>(1, terms, std::move(tokens), nullptr, TokenCallback());
}

inline Sequence& sequence_of(Request& request) { return *request.sequences().front(); }

}  // namespace disk_rig
