#include "nanovllm/kv/eviction_by_value.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/prefix/prefix_hash.hpp"
#include "nanovllm/with/radix/radix_prefix_cache.hpp"

using namespace nanovllm;

namespace {

struct LeastFrequentlyUsed {
  static std::int64_t value(const BlockUse& use) noexcept { return use.num_uses; }
};
/// The worst order for a tree: what was used last goes first.
struct MostRecentlyUsed {
  static std::int64_t value(const BlockUse& use) noexcept { return -use.last_use; }
};
struct MostUrgent {
  static std::int64_t value(const BlockUse& use) noexcept { return -use.priority.value_or(0); }
};
/// No order at all.
struct Scrambled {
  static std::int64_t value(const BlockUse& use) noexcept { return use.last_use * 7919 % 13; }
};
struct MayThrow {
  static std::int64_t value(const BlockUse& use) { return use.num_uses; }
};
static_assert(BlockValue<LeastFrequentlyUsed> && !BlockValue<MayThrow> && !BlockValue<int>);
static_assert(EvictionLike<EvictionByValue<Scrambled>> && !EvictionLike<LeastFrequentlyUsed>);

template <class Value>
using Radix = BlockManager<4, RadixPrefixCache<4, EvictionByValue<Value>>>;
template <class Value>
using Hash = BlockManager<4, HashPrefixCache<4, XxPrefixHash, EvictionByValue<Value>>>;

/// Runs a sequence of these tokens through the pool: what is found, computed, and given back.
template <class Blocks>
std::int32_t serve(Blocks& blocks, const std::vector<TokenId>& tokens) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  const PrefixMatch match = blocks.match(tokens);
  blocks.adopt(match, size);
  std::vector<BlockId> table = match.blocks;
  while (static_cast<std::int32_t>(table.size()) < blocks.blocks_for(size))
    table.push_back(blocks.allocate().value());
  if (match.copy_tail) blocks.release(std::span(&*match.copy_tail, 1));
  blocks.publish(table, tokens, match.num_tokens, size);
  blocks.release(table);
  blocks.check_invariants();
  return match.num_tokens;
}

/// Two blocks and a token that begin with `name`.
std::vector<TokenId> text(TokenId name) { return {name, 1, 2, 3, 4, 5, 6, 7, 8}; }

}  // namespace

TEMPLATE_TEST_CASE("the least frequently used blocks go first", "[eviction]",
                   Hash<LeastFrequentlyUsed>, Radix<LeastFrequentlyUsed>) {
  TestType blocks(9, true);
  for (int i = 0; i < 3; ++i) serve(blocks, text(100));
  // Others come and go, each once, and are more recent.
  for (TokenId name = 200; name < 220; ++name) serve(blocks, text(name));
  CHECK(serve(blocks, text(100)) == 8);
  CHECK(serve(blocks, text(200)) == 0);
}

TEST_CASE("the least recently used block goes first where no value is given", "[eviction]") {
  BlockManager<4, RadixPrefixCache<4>> blocks(9, true);
  for (int i = 0; i < 3; ++i) serve(blocks, text(100));
  for (TokenId name = 200; name < 220; ++name) serve(blocks, text(name));
  CHECK(serve(blocks, text(100)) == 0);
}

TEST_CASE("eviction by value agrees with a sorted list on random operations", "[eviction]") {
  constexpr int kNumBlocks = 12;
  std::mt19937 random(4);
  EvictionByValue<MostUrgent> order(kNumBlocks);
  struct Entry {
    BlockId block;
    std::int64_t value, added;
  };
  const auto goes_before = [](const Entry& a, const Entry& b) {
    return std::pair(a.value, a.added) < std::pair(b.value, b.added);
  };
  std::vector<Entry> model;
  std::vector<std::optional<int>> priorities(kNumBlocks);
  std::int64_t num_added = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto block = static_cast<BlockId>(random() % kNumBlocks);
    std::optional<int>& lowest = priorities[static_cast<std::size_t>(block)];
    const auto found = std::ranges::find(model, block, &Entry::block);
    if (random() % 4 == 0) {
      const auto first = std::ranges::min_element(model, goes_before);
      REQUIRE(order.pop() == (model.empty() ? std::nullopt : std::optional(first->block)));
      if (!model.empty()) model.erase(first);
    } else if (found != model.end()) {
      order.remove(block);
      model.erase(found);
    } else if (random() % 8 == 0) {
      order.forget(block);
      lowest.reset();
    } else {
      if (random() % 2 == 0) {
        const int priority = static_cast<int>(random() % 5) - 2;
        order.rate(block, priority);
        lowest = std::min(lowest.value_or(priority), priority);
      }
      order.add(block);
      model.push_back({block, -lowest.value_or(0), ++num_added});
    }
    for (BlockId b = 0; b < kNumBlocks; ++b)
      REQUIRE(order.contains(b) == (std::ranges::find(model, b, &Entry::block) != model.end()));
    if (step % 16 == 0) order.check_invariants();
  }
}

TEST_CASE("a block that is to go first goes first, and none before what keeps up with it",
          "[eviction]") {
  EvictionByValue<LeastFrequentlyUsed> order(5);
  for (int i = 0; i < 3; ++i) {
    order.add(1);
    order.remove(1);
  }
  order.keep_up(0, 1);  // would go with its first use, before the fourth of block 1
  order.add(1);
  order.add(0);
  order.add(2);
  order.add_first(3);
  order.check_invariants();
  CHECK(order.goes_before(1, 0));
  for (const BlockId block : {3, 2, 1, 0}) CHECK(order.pop() == block);
  CHECK(order.pop() == std::nullopt);
}

// The tree checks that no block goes before one that continues its tokens.
TEMPLATE_TEST_CASE("any value keeps a radix tree whole", "[eviction]", LeastFrequentlyUsed,
                   MostRecentlyUsed, MostUrgent, Scrambled) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    Radix<TestType> blocks(40, true);
    struct Running {
      std::vector<BlockId> table;
      std::vector<TokenId> tokens;
    };
    std::vector<Running> running;
    std::int64_t num_hits = 0;
    for (int step = 0; step < 4000; ++step) {
      if (running.size() < 4 && random() % 2 == 0) {
        std::vector<TokenId> tokens(1 + random() % 20);
        for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 2);
        const auto size = static_cast<std::int32_t>(tokens.size());
        const PrefixMatch match = blocks.match(tokens);
        num_hits += match.num_tokens;
        blocks.adopt(match, size);
        running.push_back({match.blocks, tokens});
        Running& one = running.back();
        while (static_cast<std::int32_t>(one.table.size()) < blocks.blocks_for(size))
          one.table.push_back(blocks.allocate().value());
        if (match.copy_tail) blocks.release(std::span(&*match.copy_tail, 1));
        // Some are computed at the same time, and become duplicates.
        if (random() % 2 == 0) blocks.publish(one.table, one.tokens, match.num_tokens, size);
      } else if (!running.empty()) {
        const auto i = static_cast<std::ptrdiff_t>(random() % running.size());
        Running& one = running[static_cast<std::size_t>(i)];
        blocks.publish(one.table, one.tokens, 0, static_cast<std::int32_t>(one.tokens.size()));
        blocks.release(one.table, random() % 2 == 0
                                      ? std::optional(static_cast<std::int32_t>(random() % 5) - 2)
                                      : std::nullopt);
        running.erase(running.begin() + i);
      }
      blocks.check_invariants();
    }
    CHECK(num_hits > 1000);
    CHECK(blocks.stats().num_evictions > 300);
  }
}
