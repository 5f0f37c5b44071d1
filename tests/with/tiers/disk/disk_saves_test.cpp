#include "nanovllm/with/tiers/disk/disk_saves.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "kv_stats.hpp"
#include "with/tiers/disk/disk_rig.hpp"

using namespace disk_rig;

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
    CHECK(rig.match(tokens).outside.size() == 3);
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
    CHECK(rig.match(tokens).outside.size() == 3);
    rig.loads->finish();
    Rig other(folder);  // which finds the keys and values of these tokens in the files
    const auto request = request_of(tokens);
    REQUIRE(other.loads->begin(*request, 0));
    other.poll_until([&] { return !other.added.empty(); });
    CHECK(other.match(tokens).outside.size() == 3);
    CHECK(disk_kv(other.stats()).num_failures == 0);
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

TEST_CASE("blocks that files go on after have files, too", "[disk]") {
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

TEST_CASE("where the queue has no room a block is unpinned and not written", "[disk]") {
  const Folder folder;
  Rig rig(folder, 2);  // the queue takes one block
  rig.compute(prompt_of(8));
  const std::vector<BlockCopy> copies = rig.begin_step(1);
  REQUIRE(copies.size() == 2);
  CHECK((rig.blocks.tier().is_pinned(copies[0].to) && rig.blocks.tier().is_pinned(copies[1].to)));
  rig.copy(copies);
  rig.loads->save(copies, 1);
  rig.check_invariants();
  rig.wait_for_saves();
  CHECK((rig.disk->size() >= 1 && disk_kv(rig.stats()).num_failures == 0));
}
