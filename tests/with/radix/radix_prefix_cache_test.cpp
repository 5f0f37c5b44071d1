#include "nanovllm/with/radix/radix_prefix_cache.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/block_manager.hpp"

using namespace nanovllm;

namespace {

using Tokens = std::vector<TokenId>;
using Table = std::vector<BlockId>;

template <int kB>
using Blocks = BlockManager<kB, RadixPrefixCache<kB>>;

template <int kB>
Table allocate(Blocks<kB>& blocks, int n) {
  Table table;
  for (int i = 0; i < n; ++i) table.push_back(blocks.allocate().value());
  return table;
}

/// Computes `tokens` after what is cached, publishes them and gives all back.
template <int kB>
PrefixMatch serve(Blocks<kB>& blocks, const Tokens& tokens,
                  std::optional<std::int32_t> priority = std::nullopt) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  const PrefixMatch match = blocks.match(tokens);
  blocks.adopt(match, size);
  Table table = match.blocks;
  while (std::ssize(table) < Blocks<kB>::blocks_for(size))
    table.push_back(blocks.allocate().value());
  if (match.copy_tail) blocks.release(std::span(&*match.copy_tail, 1));
  blocks.publish(table, tokens, match.num_tokens, size);
  blocks.release(table, priority);
  blocks.check_invariants();
  return match;
}

/// What is wanted of a cache, with no thought for time: every block remembers all tokens from the
/// first of its sequence to its own last.
template <int kB>
class Traffic {
 public:
  Traffic(int num_blocks, unsigned seed) : random_(seed), blocks_(num_blocks, true, seed) {}

  void run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      for (std::size_t i = holders_.size(); i-- > 0;) {
        Holder& h = holders_[i];
        grow(h);
        if (below(4) > 0) continue;
        blocks_.release(h.table, priority());
        blocks_.check_invariants();
        holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      start();
      blocks_.check_invariants();
      if (step % 16 > 0) continue;
      for (const Holder& h : holders_) blocks_.release(h.table, priority());
      holders_.clear();
      blocks_.check_invariants();
      for (int i = 0; i < 8; ++i) {
        const Tokens tokens = random_tokens();
        const auto without_last = std::span(tokens).first(tokens.size() - 1);
        CHECK(blocks_.match(tokens).num_tokens == longest(without_last));
      }
    }
    REQUIRE(num_whole > 50);
    if constexpr (kB > 1) REQUIRE(num_inside > 50);
    if (blocks_.num_blocks() < 40) REQUIRE(blocks_.stats().num_evictions > 100);
  }

  int num_whole = 0, num_inside = 0;  // matches that ended between blocks, and inside one

 private:
  struct Holder {
    Tokens tokens;  // its blocks hold them all
    Table table;
    int num_published;
  };

  /// Of a request that gives back its blocks; mostly one, or none at all.
  std::optional<std::int32_t> priority() {
    const int i = below(6);
    return i < 3 ? std::optional(i - 1) : std::nullopt;
  }

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  Tokens random_tokens() {
    Tokens tokens(static_cast<std::size_t>(1 + below(4 * kB + 5)));
    for (TokenId& t : tokens) t = below(6) == 0 ? 1 + below(2) : 0;
    return tokens;
  }

  /// A few more tokens, in blocks of its own, and all or some of them published.
  void grow(Holder& h) {
    for (int more = below(3); more-- > 0;) {
      if (std::ssize(h.table) * kB == std::ssize(h.tokens)) {
        const auto block = blocks_.allocate();
        if (!block) break;
        holds_.erase(*block);
        h.table.push_back(*block);
      }
      h.tokens.push_back(below(2));
    }
    const int end =
        h.num_published + below(static_cast<int>(h.tokens.size()) - h.num_published + 1);
    publish(h, end);
  }

  void publish(Holder& h, int end) {
    blocks_.publish(h.table, h.tokens, h.num_published, end);
    for (int i = h.num_published / kB; i * kB < end; ++i) {
      const int last = std::min(end, (i + 1) * kB);
      holds_[h.table[static_cast<std::size_t>(i)]] =
          Tokens(h.tokens.begin(), h.tokens.begin() + last);
    }
    h.num_published = end;
  }

  void start() {
    Holder h;
    h.tokens = random_tokens();
    const auto size = static_cast<std::int32_t>(h.tokens.size());
    const PrefixMatch match = blocks_.match(h.tokens);
    check_match(match, h.tokens);
    if (Blocks<kB>::blocks_for(size) + 1 > blocks_.num_free()) return;
    blocks_.adopt(match, size);
    h.table = match.blocks;
    while (std::ssize(h.table) < Blocks<kB>::blocks_for(size)) {
      h.table.push_back(blocks_.allocate().value());
      holds_.erase(h.table.back());
    }
    if (match.copy_tail) blocks_.release(std::span(&*match.copy_tail, 1));
    h.num_published = match.num_tokens;
    publish(h, below(2) == 0 ? size : match.num_tokens + below(size - match.num_tokens + 1));
    holders_.push_back(std::move(h));
  }

  /// What it names holds the tokens, and nothing else has more of them.
  void check_match(const PrefixMatch& match, const Tokens& tokens) {
    const auto in_blocks = static_cast<int>(match.blocks.size()) * kB;
    REQUIRE(match.num_tokens < std::ssize(tokens));
    for (int i = 0; i * kB < match.num_tokens; ++i) {
      const bool is_whole = i * kB < in_blocks;
      const BlockId block =
          is_whole ? match.blocks[static_cast<std::size_t>(i)] : match.copy_tail.value();
      const int end = is_whole ? (i + 1) * kB : match.num_tokens;
      REQUIRE(std::ssize(holds_.at(block)) >= end);
      REQUIRE(std::equal(tokens.begin(), tokens.begin() + end, holds_.at(block).begin()));
    }
    REQUIRE(match.num_tokens <= longest(std::span(tokens).first(tokens.size() - 1)));
    (match.copy_tail ? num_inside : num_whole) += 1;
  }

  int longest(std::span<const TokenId> tokens) const {
    std::ptrdiff_t best = 0;
    for (const auto& [block, held] : holds_) {
      if (!blocks_.is_published(block)) continue;
      best = std::max(best, std::ranges::mismatch(held, tokens).in1 - held.begin());
    }
    return static_cast<int>(best);
  }

  std::mt19937 random_;
  Blocks<kB> blocks_;
  std::map<BlockId, Tokens> holds_;
  std::vector<Holder> holders_;
};

Tokens counting(int n, TokenId first) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace

TEST_CASE("every match is true, and the longest there is", "[radix_prefix_cache]") {
  for (const int num_blocks : {16, 40, 200}) {
    CAPTURE(num_blocks);
    Traffic<1>(num_blocks, 1).run(3000);
    Traffic<2>(num_blocks, 2).run(3000);
    Traffic<4>(num_blocks, 3).run(3000);
    Traffic<7>(num_blocks, 4).run(3000);
  }
}

TEST_CASE("a prefix is found to the token, and its last block is copied", "[radix_prefix_cache]") {
  Blocks<4> blocks(16, true);
  serve(blocks, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const PrefixMatch inside = blocks.match(Tokens{1, 2, 3, 4, 5, 6, 7, 0, 0});
  REQUIRE(inside.num_tokens == 7);
  REQUIRE(inside.blocks.size() == 1);
  REQUIRE(inside.copy_tail.has_value());
  // The last block is not full, and what is in it counts.
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).num_tokens == 10);
  REQUIRE(serve(blocks, {1, 2, 3, 4, 5, 6, 7, 0, 0}).num_tokens == 7);
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 5, 6, 7, 0, 0, 0}).num_tokens == 9);
  REQUIRE(blocks.match(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).num_tokens == 10);
}

TEST_CASE("what a sequence adds to its last block is found when it has given it back",
          "[radix_prefix_cache]") {
  Blocks<8> blocks(4, true);
  const Tokens tokens = counting(7, 100);
  const Table table = allocate(blocks, 1);
  blocks.publish(table, tokens, 0, 3);
  for (int n = 3; n < 6; ++n) blocks.publish(table, tokens, n, n + 1);
  REQUIRE(blocks.match(tokens).num_tokens == 3);
  blocks.release(table);
  REQUIRE(blocks.match(tokens).num_tokens == 6);
  blocks.check_invariants();
}

TEST_CASE("of equal content one block is kept", "[radix_prefix_cache]") {
  Blocks<4> blocks(40, true);
  const Tokens tokens = counting(10, 0);
  std::vector<Table> tables;
  for (int i = 0; i < 10; ++i) {
    tables.push_back(allocate(blocks, 3));
    blocks.publish(tables.back(), tokens, 0, 10);
    blocks.check_invariants();
  }
  REQUIRE(blocks.cache().longest_walk() == 1);
  for (const Table& table : tables) {
    blocks.release(table);
    blocks.check_invariants();
  }
  REQUIRE(blocks.num_published() == 3);
  REQUIRE(blocks.num_free() == 40);
  REQUIRE(blocks.match(counting(11, 0)).num_tokens == 10);
}

TEST_CASE("leaves go first, the least recently used before the others", "[radix_prefix_cache]") {
  Blocks<2> blocks(8, true);
  serve(blocks, {1, 1, 2, 2, 3, 3});
  serve(blocks, {1, 1, 5, 5, 6, 6});  // block 1 1 is shared
  serve(blocks, {1, 1, 2, 2, 9});     // used again: 2 2
  REQUIRE(blocks.num_published() == 6);
  const Table rest = allocate(blocks, 2);
  const auto hits = [&](const Tokens& tokens) { return blocks.match(tokens).num_tokens; };
  const auto evict = [&] { return allocate(blocks, 1); };
  evict();  // 3 3
  REQUIRE(hits({1, 1, 2, 2, 3, 3, 0}) == 4);
  REQUIRE(hits({1, 1, 5, 5, 6, 6, 0}) == 6);
  evict();  // 6 6
  evict();  // 5 5
  REQUIRE(hits({1, 1, 5, 5, 6, 6, 0}) == 2);
  REQUIRE(hits({1, 1, 2, 2, 9, 0}) == 5);
  evict();  // 9
  evict();  // 2 2
  REQUIRE(hits({1, 1, 2, 2, 9, 0}) == 2);
  evict();
  REQUIRE(hits({1, 1, 2, 2, 9, 0}) == 0);
  REQUIRE(blocks.num_published() == 0);
  blocks.check_invariants();
}

TEST_CASE("of the leaves, those that only less urgent requests used go first",
          "[radix_prefix_cache]") {
  Blocks<2> blocks(8, true);
  serve(blocks, {1, 1, 2, 2}, -1);
  serve(blocks, {1, 1, 3, 3}, 1);  // a patient request's end after an urgent one's beginning
  serve(blocks, {4, 4, 5, 5}, 0);
  serve(blocks, {6, 6}, 3);
  serve(blocks, {7, 7});
  std::vector<Tokens> order;
  for (Table rest = allocate(blocks, 1); blocks.num_free() > 0;) {
    rest.push_back(allocate(blocks, 1).front());
    blocks.check_invariants();
    for (const Tokens& end : std::vector<Tokens>{
             {1, 1}, {1, 1, 2, 2}, {1, 1, 3, 3}, {4, 4}, {4, 4, 5, 5}, {6, 6}, {7, 7}}) {
      Tokens wanted = end;
      wanted.push_back(0);
      const bool is_gone = blocks.match(wanted).num_tokens < std::ssize(end);
      if (is_gone && std::ranges::count(order, end) == 0) order.push_back(end);
    }
  }
  CHECK(order == std::vector<Tokens>{
                     {1, 1, 3, 3}, {6, 6}, {4, 4, 5, 5}, {4, 4}, {7, 7}, {1, 1, 2, 2}, {1, 1}});
}

TEST_CASE("a block stands for what its duplicates were used for, and for what is behind it",
          "[radix_prefix_cache]") {
  Blocks<2> blocks(12, true);
  std::vector<Table> tables;
  for (int i = 0; i < 3; ++i) {  // three of equal content, and one goes on after it
    const Tokens tokens = i == 1 ? Tokens{1, 1, 2, 2} : Tokens{1, 1};
    tables.push_back(allocate(blocks, static_cast<int>(tokens.size()) / 2));
    blocks.publish(tables.back(), tokens, 0, static_cast<std::int32_t>(tokens.size()));
  }
  for (const auto& [table, priority] : {std::pair(1, -1), std::pair(0, 1), std::pair(2, 2)}) {
    blocks.release(tables[static_cast<std::size_t>(table)], priority);
    blocks.check_invariants();
  }
  serve(blocks, {3, 3}, 0);
  REQUIRE(blocks.num_published() == 3);
  allocate(blocks, 10);
  CHECK(blocks.match(Tokens{3, 3, 0}).num_tokens == 0);
  CHECK(blocks.match(Tokens{1, 1, 2, 2, 0}).num_tokens == 4);
  allocate(blocks, 1);
  CHECK(blocks.match(Tokens{1, 1, 2, 2, 0}).num_tokens == 2);
  blocks.check_invariants();
}

TEST_CASE("blocks in use are never given up, nor those before them", "[radix_prefix_cache]") {
  Blocks<2> blocks(6, true);
  serve(blocks, {1, 1, 2, 2, 3, 3, 4});
  const PrefixMatch match = blocks.match(Tokens{1, 1, 2, 2, 0});
  blocks.adopt(match, 5);
  while (blocks.allocate()) blocks.check_invariants();
  REQUIRE(blocks.match(Tokens{1, 1, 2, 2, 3, 3, 4}).num_tokens == 4);
}

TEST_CASE("a thousand siblings are searched in a few steps", "[radix_prefix_cache]") {
  Blocks<4> blocks(5000, true);
  for (TokenId i = 0; i < 4000; ++i) serve(blocks, {7, 7, i, i});  // in order
  REQUIRE(blocks.cache().longest_walk() < 45);
  for (TokenId i = 0; i < 4000; i += 37)
    REQUIRE(blocks.match(Tokens{7, 7, i, i, 1}).num_tokens == 4);
}

TEST_CASE("the version changes whenever a match of the radix cache could", "[radix_prefix_cache]") {
  Blocks<4> blocks(4, true);
  const Tokens tokens(9, 0);
  const Table table = allocate(blocks, 2);
  const std::uint64_t empty = blocks.cache_version();
  blocks.publish(table, tokens, 0, 8);
  const std::uint64_t entered = blocks.cache_version();
  REQUIRE(entered != empty);
  blocks.release(table);
  blocks.adopt(blocks.match(tokens), 9);
  REQUIRE(blocks.cache_version() == entered);
  blocks.release(table);
  allocate(blocks, 3);
  REQUIRE(blocks.cache_version() != entered);
}

TEST_CASE("tokens after a block that was not entered are refused", "[radix_prefix_cache]") {
  Blocks<2> blocks(4, true);
  const Table table = allocate(blocks, 2);
  REQUIRE_THROWS_AS(blocks.publish(table, Tokens{1, 2, 3, 4}, 2, 4), Error);
  REQUIRE(blocks.num_published() == 0);
  blocks.check_invariants();
}
