#include "nanovllm/kv/prefix/prefix_cache.hpp"

#include <optional>
#include <span>
#include <vector>

#include "catch.hpp"
#include "kv/prefix/linear_cache.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/prefix/no_prefix_cache.hpp"

using namespace nanovllm;

namespace {

/// May throw where it must not.
struct Throwing : HashPrefixCache<4> {
  using HashPrefixCache<4>::HashPrefixCache;
  std::optional<BlockId> evict() { throw Error("no"); }
};

/// Knows nothing of salts.
struct Saltless : HashPrefixCache<4> {
  using HashPrefixCache<4>::HashPrefixCache;
  [[nodiscard]] PrefixMatch match(std::span<const TokenId>) const { return {}; }
};

}  // namespace

TEST_CASE("a prefix cache that does not say what it does with a salt is none", "[prefix_cache]") {
  STATIC_REQUIRE_FALSE(PrefixCacheLike<Saltless>);
}

TEST_CASE("a prefix cache that may throw where a step cannot fail is none", "[prefix_cache]") {
  STATIC_REQUIRE(PrefixCacheLike<HashPrefixCache<4>>);
  STATIC_REQUIRE(PrefixCacheLike<NoPrefixCache<4>>);
  STATIC_REQUIRE(PrefixCacheLike<test::LinearCache<4>>);
  STATIC_REQUIRE_FALSE(PrefixCacheLike<Throwing>);
  STATIC_REQUIRE_FALSE(PrefixCacheLike<int>);
}

TEST_CASE("without a cache every block is reused at once", "[prefix_cache]") {
  BlockManager<4, NoPrefixCache<4>> blocks(2, true);
  const std::vector<BlockId> table{blocks.allocate().value(), blocks.allocate().value()};
  const std::vector<TokenId> tokens(9, 1);
  blocks.publish(table, tokens, 0, 8);
  blocks.release(table);
  REQUIRE(blocks.match(tokens).num_tokens == 0);
  REQUIRE(blocks.num_published() == 0);
  REQUIRE(blocks.num_free() == 2);
  REQUIRE(blocks.allocate() == table[0]);
  REQUIRE(blocks.stats().num_evictions == 0);
  blocks.check_invariants();
}

TEST_CASE("a match may end inside a block, which is held until it is copied", "[prefix_cache]") {
  BlockManager<4, test::LinearCache<4>> blocks(4, true);
  std::vector<BlockId> table{blocks.allocate().value(), blocks.allocate().value()};
  const std::vector<TokenId> tokens{1, 2, 3, 4, 5, 6};
  blocks.publish(table, tokens, 0, 6);
  blocks.release(table);
  const PrefixMatch match = blocks.match(std::vector<TokenId>{1, 2, 3, 4, 5, 9, 9});
  REQUIRE(match.num_tokens == 5);
  REQUIRE(match.blocks == std::vector<BlockId>{table[0]});
  REQUIRE(match.copy_tail == table[1]);
  REQUIRE(blocks.match(tokens).num_tokens == 5);  // the last token is never part of it
  blocks.adopt(match, 7);
  REQUIRE(blocks.num_free() == 2);
  for (int i = 0; i < 2; ++i) REQUIRE(blocks.allocate() != table[1]);
  REQUIRE_FALSE(blocks.allocate().has_value());
  blocks.release(std::span(&table[1], 1));
  REQUIRE(blocks.num_free() == 1);
  REQUIRE(blocks.stats().num_hit_tokens == 5);
  blocks.check_invariants();
}
