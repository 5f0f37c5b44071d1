#include "nanovllm/with/tiers/disk/disk_loads.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "kv_stats.hpp"
#include "with/tiers/disk/disk_rig.hpp"

using namespace disk_rig;

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
  CHECK((found.num_tokens == 16 && found.outside.size() == 4));
  CHECK(disk_kv(rig.stats()).num_failures == 0);

  // They stay until it is admitted.
  std::vector<BlockId> others;
  CHECK(!rig.blocks.allocate_host(9, others));
  CHECK(rig.blocks.allocate_host(8, others));
  rig.poll();
  CHECK(rig.match(tokens).num_tokens == 16);
  rig.blocks.adopt(found, 17);
  rig.blocks.end_copies();
  CHECK(disk_kv(rig.stats()).num_hit_tokens == 16);
  sequence_of(*request).status = SequenceStatus::running;
  rig.loads->release_admitted();
  rig.check_invariants();
  rig.blocks.adopt(rig.match(tokens), 17);
  rig.blocks.end_copies();
  CHECK(disk_kv(rig.stats()).num_hit_tokens == 16);  // the second time they were in memory
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

TEST_CASE("what is read goes after its parents or nowhere", "[disk]") {
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
    CHECK((found.blocks.size() == 2 && found.outside.size() == 2));
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
    CHECK((found.blocks.size() == 3 && found.outside.size() == 1));
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
    CHECK(disk_kv(rig.stats()).num_failures == 1);
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
