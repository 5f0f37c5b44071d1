#include "nanovllm/kv/block_manager.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

/// Every prefix collides with every other.
struct ConstantHash {
  static std::uint64_t hash(std::uint64_t, std::span<const TokenId>) { return 42; }
};

Tokens iota(int n, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

template <class Blocks>
Table allocate(Blocks& blocks, int n) {
  Table table;
  for (int i = 0; i < n; ++i) {
    const std::optional<BlockId> block = blocks.allocate();
    REQUIRE(block.has_value());
    table.push_back(*block);
  }
  return table;
}

/// Free blocks among those of `hit`: what adopting it costs.
template <class Blocks>
int cost(const Blocks& blocks, const PrefixMatch& hit) {
  return static_cast<int>(std::count_if(hit.blocks.begin(), hit.blocks.end(),
                                        [&](BlockId b) { return blocks.ref_count(b) == 0; }));
}

/// Blocks for `tokens`, as a sequence holds them that has computed all of them.
template <class Blocks>
Table compute(Blocks& blocks, const Tokens& tokens) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  Table table = allocate(blocks, Blocks::blocks_for(n));
  blocks.publish(table, tokens, 0, n);
  return table;
}

}  // namespace

TEST_CASE("blocks are allocated until there are none, and come back", "[block_manager]") {
  BlockManager<4> blocks(3, true);
  const Table table = allocate(blocks, 3);
  REQUIRE(blocks.allocate() == std::nullopt);
  REQUIRE(blocks.num_free() == 0);
  blocks.check_invariants();
  blocks.release(table);
  REQUIRE(blocks.num_free() == 3);
  blocks.check_invariants();
  REQUIRE_THROWS_AS(blocks.release(table), Error);
  REQUIRE_THROWS_AS(BlockManager<4>(0, true), ConfigError);
}

TEST_CASE("blocks_for and slot", "[block_manager]") {
  using Blocks = BlockManager<4>;
  STATIC_REQUIRE(Blocks::blocks_for(0) == 0);
  STATIC_REQUIRE(Blocks::blocks_for(4) == 1);
  STATIC_REQUIRE(Blocks::blocks_for(5) == 2);
  const Table table{7, 2};
  REQUIRE(Blocks::slot(table, 3) == 31);
  REQUIRE(Blocks::slot(table, 4) == 8);
}

TEST_CASE("the longest published prefix is found, in whole blocks", "[block_manager]") {
  BlockManager<4> blocks(16, true);
  const Tokens tokens = iota(14);
  const Table table = compute(blocks, tokens);
  REQUIRE(blocks.num_published() == 3);  // the fourth block is not full
  REQUIRE(blocks.match(tokens).blocks == Table(table.begin(), table.begin() + 3));
  Tokens other = iota(14);
  other[9] = 99;
  REQUIRE(blocks.match(other).blocks == Table(table.begin(), table.begin() + 2));
  other[0] = 99;
  REQUIRE(blocks.match(other).blocks.empty());
  REQUIRE(blocks.match(iota(14, 4)).blocks.empty());  // the same tokens at another place
  REQUIRE(blocks.match({}).blocks.empty());
}

TEST_CASE("without prefix caching nothing is ever found", "[block_manager]") {
  BlockManager<4> blocks(4, false);
  const Table table = compute(blocks, iota(16));
  REQUIRE(blocks.match(iota(17)).blocks.empty());
  REQUIRE(blocks.num_published() == 0);
  blocks.adopt({}, 16);
  REQUIRE(blocks.stats().num_queried_tokens == 0);
  blocks.release(table);
  blocks.check_invariants();
}

TEST_CASE("blocks that were never published are reused first, then the least recently used",
          "[block_manager]") {
  BlockManager<4> blocks(6, true);
  const Table first = compute(blocks, iota(8));
  const Table second = compute(blocks, iota(8, 100));
  const Table scratch = allocate(blocks, 2);
  blocks.release(first);
  blocks.release(second);
  blocks.release(scratch);
  // Scratch first; then the older sequence, its end before its beginning.
  const Table order = allocate(blocks, 6);
  REQUIRE(Table(order.begin(), order.begin() + 2) == scratch);
  REQUIRE(Table(order.begin() + 2, order.end()) == Table{first[1], first[0], second[1], second[0]});
  REQUIRE(blocks.stats().num_evictions == 4);
  REQUIRE(blocks.num_published() == 0);
}

TEST_CASE("adopting makes a free block recently used again", "[block_manager]") {
  BlockManager<4> blocks(2, true);
  const Table first = compute(blocks, iota(4));
  const Table second = compute(blocks, iota(4, 100));
  blocks.release(first);
  blocks.release(second);
  blocks.adopt({.num_tokens = 4, .blocks = first}, 5);
  blocks.release(first);
  REQUIRE(blocks.allocate() == second[0]);
  REQUIRE(blocks.match(iota(5)).blocks == first);
}

TEST_CASE("statistics count queried and hit tokens on admission", "[block_manager]") {
  BlockManager<4> blocks(8, true);
  const Table table = compute(blocks, iota(8));
  blocks.adopt(blocks.match(iota(10)), 10);
  blocks.adopt({}, 3);
  REQUIRE(blocks.stats().num_queried_tokens == 13);
  REQUIRE(blocks.stats().num_hit_tokens == 8);
  REQUIRE(blocks.ref_count(table[0]) == 2);
}

TEST_CASE("what is wrongly published or adopted is an error", "[block_manager]") {
  BlockManager<4> blocks(4, true);
  const Tokens tokens = iota(8);
  const Table table = allocate(blocks, 2);
  REQUIRE_THROWS_AS(blocks.publish(table, tokens, 4, 8), Error);  // its predecessor is not
  REQUIRE_THROWS_AS(blocks.adopt({.num_tokens = 8, .blocks = table}, 9), Error);
  blocks.share({.num_tokens = 8, .blocks = table});
  REQUIRE(blocks.ref_count(table[1]) == 2);
  blocks.release(table);
  blocks.publish(table, tokens, 0, 4);
  blocks.publish(table, tokens, 0, 4);  // by one that shares the block
  REQUIRE(blocks.num_published() == 1);
  blocks.release(table);
  REQUIRE_THROWS_AS(blocks.share({.num_tokens = 8, .blocks = table}), Error);
  blocks.check_invariants();
  REQUIRE(blocks.num_free() == 4);
}

TEST_CASE("publishing token by token equals publishing at once", "[block_manager]") {
  BlockManager<4> blocks(8, true);
  const Tokens tokens = iota(11);
  const Table table = allocate(blocks, 3);
  for (int i = 0; i < 11; ++i) {
    blocks.publish(table, tokens, i, i + 1);
    REQUIRE(blocks.num_published() == (i + 1) / 4);
  }
  REQUIRE(blocks.match(tokens).blocks == Table(table.begin(), table.begin() + 2));
}

TEST_CASE(
    "nano-vllm bug 1: a prompt fully cached and a multiple of the block size still computes "
    "one token",
    "[block_manager]") {
  BlockManager<4> blocks(16, true);
  compute(blocks, iota(16));
  for (const int n : {3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17}) {
    const PrefixMatch hit = blocks.match(iota(n));
    REQUIRE(static_cast<int>(hit.blocks.size()) == (n - 1) / 4);
  }
  BlockManager<1> single(16, true);
  compute(single, iota(8));
  for (const int n : {1, 2, 8})
    REQUIRE(static_cast<int>(single.match(iota(n)).blocks.size()) == n - 1);
}

TEST_CASE("nano-vllm bug 2: a reused block is no longer found as what it was", "[block_manager]") {
  BlockManager<4> blocks(1, true);
  blocks.release(compute(blocks, iota(4)));
  REQUIRE(blocks.match(iota(5)).blocks.size() == 1);
  const Table table = allocate(blocks, 1);  // forgotten already, before it is written
  REQUIRE(blocks.match(iota(5)).blocks.empty());
  blocks.publish(table, iota(4, 50), 0, 4);
  REQUIRE(blocks.match(iota(5)).blocks.empty());
  REQUIRE(blocks.match(iota(5, 50)).blocks == table);
}

TEST_CASE("nano-vllm bug 2: reusing one of two equal blocks leaves the other's entry alone",
          "[block_manager]") {
  BlockManager<4> blocks(2, true);
  const Table first = compute(blocks, iota(4));
  const Table second = compute(blocks, iota(4));
  const bool release_first = GENERATE(true, false);
  blocks.release(release_first ? first : second);
  REQUIRE(blocks.allocate().has_value());
  REQUIRE(blocks.match(iota(5)).blocks == (release_first ? second : first));
  blocks.check_invariants();
}

TEST_CASE(
    "nano-vllm bug 3: free hits are charged, hits in use are not, and adopting evicts nothing",
    "[block_manager]") {
  BlockManager<4> blocks(3, true);
  const Table table = compute(blocks, iota(12));
  blocks.release(std::span(table).subspan(1));
  const PrefixMatch hit = blocks.match(iota(13));
  REQUIRE(hit.blocks == table);
  REQUIRE(cost(blocks, hit) == 2);
  blocks.adopt(hit, 13);
  REQUIRE(blocks.num_free() == 0);
  REQUIRE(blocks.num_published() == 3);
  REQUIRE(blocks.stats().num_evictions == 0);
  REQUIRE(cost(blocks, blocks.match(iota(13))) == 0);
  blocks.check_invariants();
}

TEST_CASE("nano-vllm bug 12: pools of different block sizes live side by side", "[block_manager]") {
  BlockManager<2> small(8, true);
  BlockManager<8> large(8, true);
  compute(small, iota(8));
  compute(large, iota(8));
  REQUIRE(small.match(iota(9)).blocks.size() == 4);
  REQUIRE(large.match(iota(9)).blocks.size() == 1);
}

TEST_CASE("nano-vllm bug 21: equal prompts that start together leave equal blocks, all usable",
          "[block_manager]") {
  BlockManager<4> blocks(8, true);
  const Tokens tokens = iota(8);
  const Table first = allocate(blocks, 2);
  const Table second = allocate(blocks, 2);
  blocks.publish(first, tokens, 0, 4);
  blocks.publish(second, tokens, 0, 8);
  blocks.publish(first, tokens, 4, 8);
  REQUIRE(blocks.num_published() == 4);
  blocks.release(first);
  REQUIRE(blocks.match(iota(9)).blocks == second);  // in use, and so for free
  REQUIRE(blocks.num_published() == 2);             // one of each is enough
  REQUIRE(cost(blocks, blocks.match(iota(9))) == 0);
  blocks.check_invariants();
  blocks.release(second);
  REQUIRE(blocks.match(iota(9)).blocks == second);
  REQUIRE(cost(blocks, blocks.match(iota(9))) == 2);
  blocks.check_invariants();
}

TEST_CASE("colliding hashes never serve another prefix's blocks", "[block_manager]") {
  BlockManager<2, HashPrefixCache<2, ConstantHash>> blocks(8, true);
  const Tokens abcd{1, 2, 3, 4};
  const Tokens xycd{8, 9, 3, 4};
  const Table first = compute(blocks, abcd);
  // The second block of the other prompt has the same tokens and the same hash: only its ancestors
  // tell it apart.
  REQUIRE(blocks.match(Tokens{8, 9, 3, 4, 0}).blocks.empty());
  const Table second = compute(blocks, xycd);
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 0}).blocks == first);
  REQUIRE(blocks.match(Tokens{8, 9, 3, 4, 0}).blocks == second);
  REQUIRE(blocks.match(Tokens{3, 4, 1, 2, 0}).blocks.empty());
  blocks.release(first);
  allocate(blocks, 5);  // what was free, the second block of `abcd` before the first
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 0}).blocks == Table{first[0]});
  blocks.check_invariants();
}

namespace {

/// A sequence that has computed and published all its tokens.
struct Holder {
  Tokens tokens;
  Table table;
};

/// Admits random sequences that share prefixes and retires them at random, and checks what the
/// cache serves against the tokens that were last written to each block.
template <class Blocks>
void run_at_random(std::int32_t num_blocks, unsigned seed) {
  constexpr int kBlockSize = Blocks::block_size();
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Blocks blocks(num_blocks, true);
  std::vector<Tokens> written(static_cast<std::size_t>(num_blocks));  // all tokens up to its end
  std::vector<Holder> holders;
  for (int step = 0; step < 1000; ++step) {
    if (!holders.empty() && below(3) == 0) {
      const auto victim = static_cast<std::size_t>(below(static_cast<int>(holders.size())));
      blocks.release(holders[victim].table);
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    Holder h;
    h.tokens.resize(static_cast<std::size_t>(1 + below(4 * kBlockSize + 1)));
    for (TokenId& t : h.tokens) t = below(10) == 0 ? 1 : 0;
    const PrefixMatch hit = blocks.match(h.tokens);
    const auto n = static_cast<std::int32_t>(h.tokens.size());
    const auto num_hits = static_cast<std::int32_t>(hit.blocks.size());
    for (std::int32_t i = 0; i < num_hits; ++i) {
      const Tokens prefix(h.tokens.begin(), h.tokens.begin() + (i + 1) * kBlockSize);
      REQUIRE(written[static_cast<std::size_t>(hit.blocks[static_cast<std::size_t>(i)])] == prefix);
    }
    const std::int32_t num_new = Blocks::blocks_for(n) - num_hits;
    if (num_new + cost(blocks, hit) <= blocks.num_free()) {
      blocks.adopt(hit, n);
      h.table = hit.blocks;
      const Table rest = allocate(blocks, num_new);
      h.table.insert(h.table.end(), rest.begin(), rest.end());
      for (std::int32_t i = num_hits; i < Blocks::blocks_for(n); ++i) {
        written[static_cast<std::size_t>(h.table[static_cast<std::size_t>(i)])] =
            Tokens(h.tokens.begin(), h.tokens.begin() + std::min(n, (i + 1) * kBlockSize));
      }
      blocks.publish(h.table, h.tokens, num_hits * kBlockSize, n);
      holders.push_back(std::move(h));
    }
    blocks.check_invariants();
  }
  for (const Holder& h : holders) blocks.release(h.table);
  REQUIRE(blocks.num_free() == num_blocks);
  if (num_blocks >= 8) {
    REQUIRE(blocks.stats().num_hit_tokens > 0);
    REQUIRE(blocks.stats().num_evictions > 0);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the cache never serves a block that holds another prefix", "[block_manager]",
                   BlockManager<1>, BlockManager<4>, BlockManager<16>,
                   (BlockManager<4, HashPrefixCache<4, ConstantHash>>)) {
  for (const int num_blocks : {1, 2, 8, 30})
    run_at_random<TestType>(num_blocks, 97u + static_cast<unsigned>(num_blocks));
}
