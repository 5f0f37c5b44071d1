#include "nanovllm/kv/tiers/host_pool.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "catch.hpp"

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
