#include "nanovllm/with/tiers/host_pool.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/with/tiers/tiered_block_manager.hpp"

using namespace nanovllm;

TEST_CASE("a block of the host's pool is free or taken", "[host_pool]") {
  HostPool pool(3);
  REQUIRE((pool.num_blocks() == 3 && pool.num_free() == 3));
  std::vector<BlockId> taken;
  for (int i = 0; i < 3; ++i) {
    const std::optional<BlockId> block = pool.allocate();
    REQUIRE((block && *block >= 0 && *block < 3 && pool.is_taken(*block)));
    taken.push_back(*block);
    pool.check_invariants();
  }
  REQUIRE(!pool.allocate());
  std::sort(taken.begin(), taken.end());
  REQUIRE(taken == std::vector<BlockId>{0, 1, 2});
  pool.release(std::span<const BlockId>(taken).subspan(1));
  REQUIRE((pool.num_free() == 2 && pool.is_taken(0) && !pool.is_taken(1) && !pool.is_taken(2)));
  REQUIRE_THROWS_WITH(pool.release(1), "host pool: block 1 is not taken");
  REQUIRE_THROWS_AS(pool.release(3), Error);
  REQUIRE_THROWS_AS(pool.release(-1), Error);
  REQUIRE((pool.num_free() == 2 && pool.allocate() != 0));
  pool.check_invariants();
}

TEST_CASE("a pool of no blocks gives none, and one of fewer is refused", "[host_pool]") {
  HostPool none;
  REQUIRE((none.num_blocks() == 0 && none.num_free() == 0 && !none.allocate()));
  none.check_invariants();
  REQUIRE_THROWS_WITH(HostPool(-1), "host pool: the number of blocks must be >= 0, got -1");
}

TEST_CASE("A block manager without a pool in host memory keeps nothing there") {
  using Blocks = BlockManager<2, HashPrefixCache<2>>;
  STATIC_REQUIRE(!Outside<Blocks>::kKeepsSequences);
  Blocks blocks(3, true);
  Outside<Blocks> outside(blocks);
  StepPlan plan;
  CHECK(outside.allocate(plan).has_value());
  CHECK(blocks.num_free() == 2);
  CHECK(plan.copies_down.empty());
  PlannedSequence planned;
  CHECK_NOTHROW(outside.check_admitted(planned));
  planned.prefix.outside = {0};
  CHECK_THROWS_WITH(outside.check_admitted(planned), "begin: there is no pool in host memory");
}

TEST_CASE("A block manager with a pool in host memory is asked for its own") {
  using Blocks = TieredBlockManager<2, HashPrefixCache<2>>;
  STATIC_REQUIRE(Outside<Blocks>::kKeepsSequences);
  Blocks blocks(1, true);
  blocks.add_host_pool(4);
  Outside<Blocks> outside(blocks);
  StepPlan plan;
  plan.copies_down.reserve(1);
  const std::vector<TokenId> tokens{1, 2};
  std::vector<BlockId> table{*outside.allocate(plan)};
  blocks.publish(table, tokens, 0, 2);
  blocks.release(table);
  CHECK(outside.allocate(plan).has_value());  // evicts what was published
  REQUIRE(plan.copies_down.size() == 1);
  const BlockCopy saved = plan.copies_down[0];
  CHECK(saved.from == table[0]);
  CHECK(blocks.num_free_host() == 3);  // until the copy is made
  outside.begin(plan);
  CHECK(blocks.num_free_host() == 4);
  Sequence s;
  PlannedSequence planned{.sequence = &s};
  planned.prefix = {.num_tokens = 2, .outside = {saved.to}};
  CHECK_NOTHROW(outside.check_admitted(planned));
  planned.prefix.outside = {saved.to == 0 ? 1 : 0};
  CHECK_THROWS_AS(outside.check_admitted(planned), Error);
}
