#include "nanovllm/kv/eviction_order.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;

namespace {

/// All that are left, in the order in which they go.
std::vector<BlockId> drain(LeastRecentlyUsed& order) {
  std::vector<BlockId> out;
  while (const std::optional<BlockId> block = order.pop()) out.push_back(*block);
  order.check_invariants();
  return out;
}

}  // namespace

TEST_CASE("blocks that are not rated go least recently used first", "[eviction_order]") {
  LeastRecentlyUsed order(6);
  for (const BlockId block : {4, 2, 5, 0}) order.add(block);
  order.remove(2);
  order.add(2);
  REQUIRE(order.contains(2));
  REQUIRE_FALSE(order.contains(1));
  REQUIRE(drain(order) == std::vector<BlockId>{4, 5, 0, 2});
  REQUIRE_FALSE(order.contains(2));
}

TEST_CASE("less urgent blocks go earlier, more urgent ones later, by as many as there are",
          "[eviction_order]") {
  LeastRecentlyUsed order(4);
  order.rate(0, -7);
  order.rate(1, 0);
  order.rate(3, 100);
  for (const BlockId block : {0, 1, 2, 3}) order.add(block);
  REQUIRE(drain(order) == std::vector<BlockId>{3, 1, 2, 0});
}

TEST_CASE("all grow old: an urgent block that is not used again goes in the end",
          "[eviction_order]") {
  LeastRecentlyUsed order(4);
  order.rate(0, -1);
  order.add(0);  // as if it were the fifth
  for (int i = 2; i <= 4; ++i) {
    order.add(1);
    REQUIRE(order.pop() == 1);
  }
  order.add(1);  // the fifth, but it came later
  REQUIRE(order.pop() == 0);
}

TEST_CASE("a block counts as its most urgent user since it was entered", "[eviction_order]") {
  LeastRecentlyUsed order(8);
  order.rate(0, -1);
  order.rate(0, 1);
  order.rate(1, 1);
  order.rate(1, 0);
  order.rate(2, 1);
  order.rate(3, -1);
  order.forget(3);
  order.rate(4, 1);
  order.inherit(4, 0);
  order.rate(5, -1);
  order.inherit(5, 2);
  for (BlockId block = 5; block >= 0; --block) order.add(block);
  REQUIRE(drain(order) == std::vector<BlockId>{2, 3, 1, 5, 4, 0});
}

TEST_CASE("a block goes before all, or not before what is behind it", "[eviction_order]") {
  LeastRecentlyUsed order(6);
  order.rate(0, 1);
  order.rate(1, -1);
  order.add(0);
  order.add_first(1);
  order.add_first(2);
  CHECK(order.goes_before(1, 0));
  CHECK(order.goes_before(2, 0));
  order.remove(2);
  order.rate(3, 1);
  order.keep_up(3, 2);  // not rated: as one of priority 0
  order.rate(4, -1);
  order.keep_up(4, 3);  // is more urgent anyway
  for (const BlockId block : {4, 2, 3}) order.add(block);
  CHECK(drain(order) == std::vector<BlockId>{1, 0, 2, 3, 4});
}

TEST_CASE("the eviction order agrees with a sorted list on random operations", "[eviction_order]") {
  constexpr int kNumBlocks = 12;
  std::mt19937 random(4);
  LeastRecentlyUsed order(kNumBlocks);
  struct Entry {
    BlockId block;
    std::int64_t rank;
  };
  std::vector<Entry> model;
  std::vector<int> levels(kNumBlocks, 2);  // 2: not rated
  std::int64_t num_added = 0;
  for (int step = 0; step < 20000; ++step) {
    const auto block = static_cast<BlockId>(random() % kNumBlocks);
    int& level = levels[static_cast<std::size_t>(block)];
    const auto found = std::ranges::find(model, block, &Entry::block);
    if (random() % 4 == 0) {
      const auto first = std::ranges::min_element(model, {}, &Entry::rank);
      const std::optional<BlockId> popped = order.pop();
      REQUIRE(popped == (model.empty() ? std::nullopt : std::optional(first->block)));
      if (!model.empty()) model.erase(first);
    } else if (found != model.end()) {
      order.remove(block);
      model.erase(found);
    } else if (random() % 8 == 0) {
      order.forget(block);
      level = 2;
    } else {
      const int priority = static_cast<int>(random() % 3) - 1;
      order.rate(block, priority);
      level = std::min(level, priority);
      order.add(block);
      model.push_back({block, ++num_added - level * kNumBlocks});
    }
    for (BlockId b = 0; b < kNumBlocks; ++b) {
      REQUIRE(order.contains(b) == (std::ranges::find(model, b, &Entry::block) != model.end()));
    }
    if (step % 16 == 0) order.check_invariants();
  }
}
