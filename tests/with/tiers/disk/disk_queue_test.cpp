#include "nanovllm/with/tiers/disk/disk_queue.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

using namespace nanovllm;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() { fs::remove_all(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::temp_directory_path() / concat("nanovllm_disk_queue_", ::getpid());
};

/// Blocks one after the other, each with memory of its own: what is in the files, and what is read.
struct Chain {
  Chain(const DiskStore& tier, TokenId first, std::size_t length) : load(new DiskLoad) {
    DiskName parent = tier.root();
    for (std::size_t i = 0; i < length; ++i) {
      DiskBlock block;
      block.tokens = {first, static_cast<TokenId>(i)};
      block.key = {.name = parent.next(block.tokens), .parent = parent};
      parent = block.key.name;
      written.emplace_back(5000, static_cast<std::byte>(static_cast<std::size_t>(first) + i));
      block.bytes.resize(5000);
      load->blocks.push_back(std::move(block));
    }
    for (DiskBlock& block : load->blocks)
      block.pieces = {std::span(block.bytes).first(1000), std::span(block.bytes).last(4000)};
  }
  [[nodiscard]] DiskBlock saved(std::size_t i) {
    DiskBlock out{.key = load->blocks[i].key, .tokens = load->blocks[i].tokens};
    out.pieces = {std::span(written[i]).first(1000), std::span(written[i]).last(4000)};
    return out;
  }
  void enter(DiskStore& tier) {
    for (std::size_t i = 0; i < written.size(); ++i) {
      const DiskBlock block = saved(i);
      REQUIRE(tier.enter(block.key, block.tokens, block.pieces));
    }
  }
  /// The first `num_loaded` blocks hold what was written.
  void check_loaded(std::size_t num_loaded) const {
    CHECK(load->num_loaded == num_loaded);
    for (std::size_t i = 0; i < load->num_loaded; ++i) CHECK(load->blocks[i].bytes == written[i]);
  }
  std::vector<std::vector<std::byte>> written{};
  std::shared_ptr<DiskLoad> load;
};

/// Waits until so many loads and saves are done.
void wait_for(DiskQueue& queue, std::size_t num_loads, std::size_t num_saves, DiskLoadList& loads,
              DiskBlockList& saves) {
  for (int i = 0; i < 10'000 && (loads.size() < num_loads || saves.size() < num_saves); ++i) {
    queue.wait(std::chrono::milliseconds(1));
    queue.take_done(loads, saves);
  }
  CHECK(loads.size() == num_loads);
  CHECK(saves.size() == num_saves);
}

}  // namespace

TEST_CASE("loads are read by several threads, and end at the first block that is not good",
          "[disk_queue]") {
  const unsigned num_threads = GENERATE(1u, 2u, 5u);
  Folder folder;
  DiskStore tier(folder.path, std::uint64_t{1} << 30, "it");
  std::vector<Chain> chains;
  for (int c = 0; c < 12; ++c) {
    chains.emplace_back(tier, 1000 * c, 1 + static_cast<std::size_t>(7 * c) % 20);
    chains.back().enter(tier);
  }
  std::vector<std::size_t> expected;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    const std::size_t length = chains[c].written.size();
    expected.push_back(c % 3 == 0 ? length : c % 3 == 1 ? 0 : length / 2);
    for (std::size_t bad = expected.back(); bad < length; bad += 5)
      tier.forget(chains[c].load->blocks[bad].key.name);
  }
  DiskQueue queue(tier, 8, num_threads);
  for (Chain& chain : chains) queue.load(chain.load);
  DiskLoadList loads;
  DiskBlockList saves;
  wait_for(queue, chains.size(), 0, loads, saves);
  for (std::size_t c = 0; c < chains.size(); ++c) {
    CAPTURE(num_threads, c);
    chains[c].check_loaded(expected[c]);
  }
}

TEST_CASE("what is saved meanwhile is written once, in any order with loads", "[disk_queue]") {
  Folder folder;
  DiskStore tier(folder.path, std::uint64_t{1} << 30, "it");
  Chain old(tier, 1, 40), fresh(tier, 2, 30);
  old.enter(tier);
  {
    DiskQueue queue(tier, 100, 4);
    queue.load(old.load);
    for (std::size_t i = 0; i < fresh.written.size(); ++i) {
      REQUIRE(queue.save(fresh.saved(i)));
      if (i % 4 == 0) REQUIRE(queue.save(fresh.saved(i)));  // is there by then
    }
    DiskLoadList loads;
    DiskBlockList saves;
    wait_for(queue, 1, 38, loads, saves);
    old.check_loaded(40);
    CHECK(tier.stats().num_writes == 70);
    queue.load(fresh.load);
    wait_for(queue, 2, 38, loads, saves);
    fresh.check_loaded(30);
  }
  CHECK(tier.size() == 70);
}

TEST_CASE("a queue that is dropped or ends hands back all that it had", "[disk_queue]") {
  Folder folder;
  DiskStore tier(folder.path, std::uint64_t{1} << 30, "it");
  std::vector<Chain> chains;
  for (int c = 0; c < 6; ++c) {
    chains.emplace_back(tier, 1000 * c, 25);
    chains.back().enter(tier);
  }
  Chain fresh(tier, 100'000, 20);
  for (int round = 0; round < 40; ++round) {
    const bool ends = round % 2 == 0;
    CAPTURE(round);
    DiskQueue queue(tier, 100, 1 + static_cast<unsigned>(round % 5));
    for (Chain& chain : chains) {
      auto again = std::make_shared<DiskLoad>();
      again->blocks = chain.load->blocks;  // whose pieces are in the chain's memory
      queue.load(std::move(again));
    }
    for (std::size_t i = 0; i < fresh.written.size(); ++i) {
      tier.forget(fresh.load->blocks[i].key.name);
      REQUIRE(queue.save(fresh.saved(i)));
    }
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    DiskLoadList loads;
    DiskBlockList saves;
    if (ends) {
      queue.finish();
    } else {
      queue.drop();
    }
    queue.take_done(loads, saves);
    CHECK(loads.size() == chains.size());
    CHECK(saves.size() == fresh.written.size());
    for (const auto& load : loads) CHECK(load->num_loaded <= load->blocks.size());
    if (ends) {  // what was to be written is
      for (const DiskBlock& block : fresh.load->blocks) CHECK(tier.contains(block.key.name));
    } else {  // it goes on
      Chain more(tier, 0, 25);
      queue.load(more.load);
      loads.clear(), saves.clear();
      wait_for(queue, 1, 0, loads, saves);
      more.check_loaded(25);
    }
  }
}
