#pragma once
/// Eviction by a value of each block, such as how often it was used.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/eviction_order.hpp"

namespace nanovllm {

/// How a block was used since the prefix cache has it.
struct BlockUse {
  std::int64_t last_use =
      0;  ///< rank of the last time that it became free, among all blocks, from 1
  std::int64_t num_uses = 0;  ///< times that it, or an equal block, became free
  /// Lowest priority of a request that used it, if requests have priorities; lower is more urgent.
  std::optional<std::int32_t> priority{};
};

/// A type that rates blocks: those of lower values are evicted first, of equal ones the least
/// recently used.
template <class V>
concept BlockValue = requires(const BlockUse& use) {
  { V::value(use) }
  noexcept->std::convertible_to<std::int64_t>;
};

/// Evicts the free block of the lowest `Value::value`, for HashPrefixCache and RadixPrefixCache.
/// The value is taken when a block becomes free. In RadixPrefixCache a block never goes before
/// those that continue its tokens, whatever `Value` says: its value is theirs at least.
///
/// A binary heap: `add`, `remove` and `pop` are O(log n) for n free blocks, and allocate nothing;
/// 52 bytes a block of the pool.
template <BlockValue Value>
class EvictionByValue {
 public:
  explicit EvictionByValue(std::int32_t num_blocks)
      : blocks_(static_cast<std::size_t>(num_blocks)), heap_(blocks_.size()) {}

  /// A request of this priority used `block`, which is not in here.
  void rate(BlockId block, std::int32_t priority) noexcept {
    std::optional<std::int32_t>& lowest = at(block).use.priority;
    lowest = std::min(lowest.value_or(priority), priority);
  }

  /// `heir`, not in here, stands for `block` as well from now on.
  void inherit(BlockId heir, BlockId block) noexcept {
    Block& to = at(heir);
    const Block& from = at(block);
    to.use.num_uses += from.use.num_uses;
    to.floor = std::max(to.floor, from.floor);
    if (from.use.priority) rate(heir, *from.use.priority);
  }

  /// `before`, not in here, must not go earlier than `block`, which is about to be added or is in
  /// here, if it is given back later.
  void keep_up(BlockId before, BlockId block) noexcept {
    const Block& child = at(block);
    at(before).floor = std::max(at(before).floor, contains(block) ? child.value : value_now(child));
  }

  /// What `block`, not in here, was used for says nothing any more.
  void forget(BlockId block) noexcept { at(block) = {}; }

  [[nodiscard]] bool contains(BlockId block) const noexcept { return at(block).place != kNone; }

  /// `block`, not in here, is given back now.
  void add(BlockId block) noexcept {
    Block& added = at(block);
    added.value = value_now(added);
    added.use = {++num_added_, added.use.num_uses + 1, added.use.priority};
    push(block);
  }

  /// `block`, not in here, goes before all that are in here.
  void add_first(BlockId block) noexcept {
    at(block).value = std::numeric_limits<std::int64_t>::min();
    at(block).use.last_use = -++num_added_;
    push(block);
  }

  /// Whether `block` goes before `other`, both in here.
  [[nodiscard]] bool goes_before(BlockId block, BlockId other) const noexcept {
    const Block &a = at(block), &b = at(other);
    return a.value != b.value ? a.value < b.value : a.use.last_use < b.use.last_use;
  }

  /// Takes out a block that is in here.
  void remove(BlockId block) noexcept {
    const std::int32_t place = at(block).place;
    at(block).place = kNone;
    const BlockId last = heap_[static_cast<std::size_t>(--size_)];
    if (place == size_) return;
    put(last, place);
    sift_up(last);
    sift_down(last);
  }

  /// Takes out the block that goes first, if there is one.
  std::optional<BlockId> pop() noexcept {
    if (size_ == 0) return std::nullopt;
    const BlockId first = heap_.front();
    remove(first);
    return first;
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    for (std::int32_t i = 0; i < size_; ++i) {
      const BlockId block = heap_[static_cast<std::size_t>(i)];
      check(at(block).place == i, "eviction by value: block ", block, " is at place ", i,
            ", but says ", at(block).place);
      check(i == 0 || !goes_before(block, heap_[static_cast<std::size_t>((i - 1) / 2)]),
            "eviction by value: block ", block, " goes before the one above it");
    }
    const auto num_placed =
        std::ranges::count_if(blocks_, [](const Block& b) { return b.place != kNone; });
    check(num_placed == size_, "eviction by value: ", num_placed, " blocks are in the heap of ",
          size_);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Block {
    BlockUse use{};
    std::int64_t value = 0;                                         ///< while it is in here
    std::int64_t floor = std::numeric_limits<std::int64_t>::min();  ///< of its value
    std::int32_t place = kNone;                                     ///< in the heap
  };

  [[nodiscard]] Block& at(BlockId block) noexcept {
    return blocks_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] const Block& at(BlockId block) const noexcept {
    return blocks_[static_cast<std::size_t>(block)];
  }
  /// Of a block that is added next.
  [[nodiscard]] std::int64_t value_now(const Block& block) const noexcept {
    const BlockUse use{num_added_ + 1, block.use.num_uses + 1, block.use.priority};
    return std::max(block.floor, static_cast<std::int64_t>(Value::value(use)));
  }

  void put(BlockId block, std::int32_t place) noexcept {
    heap_[static_cast<std::size_t>(place)] = block;
    at(block).place = place;
  }
  void push(BlockId block) noexcept {
    put(block, size_++);
    sift_up(block);
  }
  void swap_places(BlockId a, BlockId b) noexcept {
    const std::int32_t place = at(a).place;
    put(a, at(b).place);
    put(b, place);
  }
  void sift_up(BlockId block) noexcept {
    while (at(block).place > 0) {
      const BlockId above = heap_[static_cast<std::size_t>((at(block).place - 1) / 2)];
      if (!goes_before(block, above)) return;
      swap_places(block, above);
    }
  }
  void sift_down(BlockId block) noexcept {
    for (std::int32_t child = 2 * at(block).place + 1; child < size_;
         child = 2 * at(block).place + 1) {
      BlockId below = heap_[static_cast<std::size_t>(child)];
      if (child + 1 < size_ && goes_before(heap_[static_cast<std::size_t>(child) + 1], below))
        below = heap_[static_cast<std::size_t>(child) + 1];
      if (!goes_before(below, block)) return;
      swap_places(block, below);
    }
  }

  std::vector<Block> blocks_;  ///< one a block of the pool
  std::vector<BlockId> heap_;  ///< the first `size_`
  std::int32_t size_ = 0;
  std::int64_t num_added_ = 0;
};

}  // namespace nanovllm
