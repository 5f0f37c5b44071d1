#include "nanovllm/with/tiers/tiered_block_manager.hpp"

#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

Tokens iota(int n, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Blocks for `tokens`, as a sequence holds them that has computed all of them.
template <class Blocks>
Table compute(Blocks& blocks, const Tokens& tokens, std::vector<BlockCopy>& saved) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  Table table;
  for (std::int32_t i = 0; i < Blocks::blocks_for(n); ++i)
    table.push_back(blocks.allocate(&saved).value());
  blocks.end_copies();
  blocks.publish(table, tokens, 0, n);
  return table;
}

}  // namespace

TEMPLATE_TEST_CASE("what the device's pool has no more room for is found in the host's",
                   "[tiered_block_manager]", TieredBlockManager<2>,
                   (TieredBlockManager<2, RadixPrefixCache<2>>)) {
  TestType blocks(3, true);
  blocks.add_host_pool(2);
  std::vector<BlockCopy> saved;
  saved.reserve(100);
  const Table first = compute(blocks, iota(6), saved);
  blocks.release(first);
  REQUIRE(saved.empty());
  const Tokens longer = iota(7);
  REQUIRE(blocks.match(longer).num_tokens == 6);

  const Table second = compute(blocks, iota(4, 100), saved);  // two blocks make room
  REQUIRE(saved.size() == 2);
  REQUIRE((saved[0].from == first[2] && saved[1].from == first[1]));
  REQUIRE((blocks.tier_stats().num_saved == 2 && blocks.num_free_host() == 2));
  PrefixMatch match = blocks.match(longer);
  REQUIRE((match.num_tokens == 6 && match.blocks == Table{first[0]}));
  REQUIRE(match.outside == Table{saved[1].to, saved[0].to});
  blocks.check_in_tier(match.outside);
  blocks.check_invariants();

  SECTION("adopting counts it and holds it") {
    blocks.adopt(match, 7);
    REQUIRE((blocks.stats().num_hit_tokens == 6 && blocks.tier_stats().num_host_hit_tokens == 4));
    REQUIRE(blocks.num_free_host() == 0);
    Table taken(10);
    taken.clear();
    REQUIRE_FALSE(blocks.allocate_host(1, taken));
    blocks.end_copies();
    REQUIRE(blocks.allocate_host(2, taken));
    REQUIRE_THROWS_WITH(blocks.check_in_tier(match.outside),
                        Catch::Matchers::Contains("is not in the prefix cache"));
    blocks.check_invariants();
  }
  SECTION("sequences go before it") {
    Table taken(10);
    taken.clear();
    const std::uint64_t version = blocks.cache_version();
    REQUIRE(blocks.allocate_host(1, taken));
    REQUIRE(blocks.cache_version() != version);
    REQUIRE(blocks.match(longer).num_tokens == 4);  // the last block went first
    REQUIRE_FALSE(blocks.allocate_host(2, taken));
    REQUIRE(taken.size() == 1);
    blocks.release_host(taken);
    blocks.check_invariants();
  }
  SECTION("what is there already is not copied again") {
    blocks.release(second);
    const Table third = compute(blocks, iota(6), saved);  // evicts first[0], and the others'
    const std::size_t num_saved = saved.size();
    blocks.release(third);
    const Table fourth = compute(blocks, iota(2, 200), saved);
    REQUIRE(saved.size() <= num_saved + 1);
    blocks.check_invariants();
  }
  SECTION("copies that were not made are forgotten, and so is all when the pools are garbage") {
    blocks.forget_saved(std::span(saved).first(1));
    REQUIRE(blocks.match(longer).num_tokens == 4);
    REQUIRE(blocks.host().num_free() == 1);
    blocks.forget();
    REQUIRE(blocks.host().num_free() == 2);
    REQUIRE(blocks.match(longer).num_tokens == 0);
    blocks.check_invariants();
  }
}

TEST_CASE("without a prefix cache, or with it turned off, the host's pool holds nothing for it",
          "[tiered_block_manager]") {
  std::vector<BlockCopy> saved;
  saved.reserve(100);
  TieredBlockManager<2> off(2, false);
  TieredBlockManager<2, NoPrefixCache<2>> none(2, true);
  const auto check_empty = [&](auto& blocks) {
    blocks.add_host_pool(4);
    for (int i = 0; i < 3; ++i) blocks.release(compute(blocks, iota(4, 10 * i), saved));
    REQUIRE((saved.empty() && blocks.tier().size() == 0 && blocks.host().num_free() == 4));
    blocks.check_invariants();
  };
  check_empty(off);
  check_empty(none);
}

TEMPLATE_TEST_CASE("without a host's pool it does what a BlockManager does",
                   "[tiered_block_manager]", (HashPrefixCache<2>), (RadixPrefixCache<2>)) {
  STATIC_REQUIRE(!HasHostPool<BlockManager<2, TestType>>);
  STATIC_REQUIRE(HasHostPool<TieredBlockManager<2, TestType>>);
  constexpr std::uint64_t kHashSeed = 1;
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  BlockManager<2, TestType> plain(12, true, kHashSeed);
  TieredBlockManager<2, TestType> tiered(12, true, kHashSeed);
  std::vector<BlockCopy> saved;
  std::vector<Table> tables;
  for (int step = 0; step < 2000; ++step) {
    if (!tables.empty() && below(2) == 0) {
      const auto at = tables.begin() + below(static_cast<int>(tables.size()));
      plain.release(*at);
      tiered.release(*at);
      tables.erase(at);
    } else {
      Tokens tokens = iota(1 + below(7), 10 * below(3));
      if (below(2) == 0) tokens.back() = below(5);
      const auto num_tokens = static_cast<std::int32_t>(tokens.size());
      const PrefixMatch match = plain.match(tokens), other = tiered.match(tokens);
      REQUIRE((match.num_tokens == other.num_tokens && match.blocks == other.blocks &&
               match.copy_tail == other.copy_tail && other.outside.empty()));
      plain.adopt(match, num_tokens);
      tiered.adopt(match, num_tokens);
      Table table = match.blocks;
      bool has_all = true;
      while (has_all && std::ssize(table) < plain.blocks_for(num_tokens)) {
        const std::optional<BlockId> block = plain.allocate();
        REQUIRE(tiered.allocate(&saved) == block);
        has_all = block.has_value();
        if (block) table.push_back(*block);
      }
      if (match.copy_tail) {
        plain.release(std::span(&*match.copy_tail, 1));
        tiered.release(std::span(&*match.copy_tail, 1));
      }
      if (has_all) {
        plain.publish(table, tokens, match.num_shared_tokens(2), num_tokens);
        tiered.publish(table, tokens, match.num_shared_tokens(2), num_tokens);
      }
      tables.push_back(table);
    }
    plain.check_invariants();
    tiered.check_invariants();
    REQUIRE((plain.num_free() == tiered.num_free() && saved.empty()));
  }
  CHECK(plain.stats().num_evictions > 100);
  CHECK(plain.stats().num_evictions == tiered.stats().num_evictions);
  CHECK(plain.stats().num_hit_tokens > 100);
  CHECK(plain.stats().num_hit_tokens == tiered.stats().num_hit_tokens);
}
