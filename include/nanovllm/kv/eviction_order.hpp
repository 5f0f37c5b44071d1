#pragma once
/// The order in which a prefix cache evicts its free blocks.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_list.hpp"

namespace nanovllm {

/// The free blocks of a prefix cache, in the order in which they are evicted. Made from the number
/// of blocks of the pool; `LeastRecentlyUsed` has all functions and what they mean. For an order by
/// a value of each block there is `EvictionByValue` (kv/eviction_by_value.hpp), which needs one
/// function.
///
/// Of `keep_up(before, block)` depends what is found: where `before` holds the tokens ahead of
/// `block`, and went before it, `block` would be of no use.
template <class E>
concept EvictionLike = std::constructible_from<E, std::int32_t> && std::movable<E> &&
    requires(E& order, const E& reader, BlockId block, std::int32_t priority) {
  { order.rate(block, priority) }
  noexcept;
  { order.inherit(block, block) }
  noexcept;
  { order.keep_up(block, block) }
  noexcept;
  { order.forget(block) }
  noexcept;
  { order.add(block) }
  noexcept;
  { order.add_first(block) }
  noexcept;
  { order.remove(block) }
  noexcept;
  { order.pop() }
  noexcept->std::same_as<std::optional<BlockId>>;
  { reader.contains(block) }
  noexcept->std::same_as<bool>;
  { reader.goes_before(block, block) }
  noexcept->std::same_as<bool>;
  reader.check_invariants();
};

/// Free blocks that a cache of `num_blocks` keeps, the least recently used first. Those that only
/// requests of a priority above 0 used go as if they had been given back `num_blocks` blocks
/// earlier, those that a request of a priority below 0 used as if that many later. All grow old
/// alike: what is not used again goes in the end, however urgent it was.
///
/// A block counts as the most urgent request that used it since it was entered. A prefix's block is
/// used by all that use those after it, so it never goes before them.
///
/// Where no block is rated, this is one list. Every operation but the invariant check is O(1) and
/// allocates nothing; 33 bytes a block.
class LeastRecentlyUsed {
 public:
  explicit LeastRecentlyUsed(std::int32_t num_blocks)
      : lists_{BlockList(num_blocks), BlockList(num_blocks), BlockList(num_blocks)},
        levels_(static_cast<std::size_t>(num_blocks), kUnrated),
        added_(static_cast<std::size_t>(num_blocks), 0),
        bonus_(num_blocks) {}

  /// A request of this priority used `block`, which is not in here.
  void rate(BlockId block, std::int32_t priority) noexcept {
    raise(block, priority < 0 ? kUrgent : priority == 0 ? kNormal : kPatient);
  }

  /// `heir`, not in here, stands for `block` as well from now on.
  void inherit(BlockId heir, BlockId block) noexcept { raise(heir, level(block)); }

  /// `before`, not in here, must not go earlier than `block`, which is about to be added, if it is
  /// given back later: it is from now on as urgent at least.
  void keep_up(BlockId before, BlockId block) noexcept {
    raise(before, static_cast<Level>(list_index(block)));
  }

  /// What `block`, not in here, was used for says nothing any more.
  void forget(BlockId block) noexcept { level(block) = kUnrated; }

  [[nodiscard]] bool contains(BlockId block) const noexcept { return list(block).contains(block); }

  /// `block`, not in here, is given back now.
  void add(BlockId block) noexcept {
    added_[static_cast<std::size_t>(block)] = ++num_added_;
    list(block).push_back(block);
  }

  /// `block`, not in here, goes before all that are in here.
  void add_first(BlockId block) noexcept {
    added_[static_cast<std::size_t>(block)] = kBeforeAll;
    list(block).push_front(block);
  }

  /// Whether `block` goes before `other`, both in here.
  [[nodiscard]] bool goes_before(BlockId block, BlockId other) const noexcept {
    return rank(block) < rank(other);
  }

  /// Takes out a block that is in here.
  void remove(BlockId block) noexcept { list(block).remove(block); }

  /// Takes out the block that goes first, if there is one.
  std::optional<BlockId> pop() noexcept {
    std::optional<BlockId> first;
    std::int64_t first_rank = std::numeric_limits<std::int64_t>::max();
    for (const BlockList& candidates : lists_) {
      const std::optional<BlockId> block = candidates.front();
      if (!block || rank(*block) >= first_rank) continue;
      first = block;
      first_rank = rank(*block);
    }
    if (first) remove(*first);
    return first;
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    for (const BlockList& blocks : lists_) blocks.check_invariants();
    for (BlockId block = 0; block < bonus_; ++block) {
      const auto num_lists = std::ranges::count_if(
          lists_, [&](const BlockList& blocks) { return blocks.contains(block); });
      check(num_lists == (contains(block) ? 1 : 0), "eviction order: block ", block, " is in ",
            num_lists, " lists, or in that of another level");
    }
  }

 private:
  using Level = std::uint8_t;  // lower is more urgent
  static constexpr Level kUrgent = 0, kNormal = 1, kPatient = 2, kUnrated = 3;
  static constexpr std::int64_t kBeforeAll = std::numeric_limits<std::int64_t>::min() / 2;

  [[nodiscard]] Level& level(BlockId block) noexcept {
    return levels_[static_cast<std::size_t>(block)];
  }
  /// Which list `block` belongs to.
  [[nodiscard]] std::size_t list_index(BlockId block) const noexcept {
    const Level level = levels_[static_cast<std::size_t>(block)];
    return level == kUnrated ? kNormal : level;
  }
  [[nodiscard]] BlockList& list(BlockId block) noexcept { return lists_[list_index(block)]; }
  [[nodiscard]] const BlockList& list(BlockId block) const noexcept {
    return lists_[list_index(block)];
  }
  void raise(BlockId block, Level to) noexcept { level(block) = std::min(level(block), to); }

  /// Ascends within each list, since its blocks were added one after the other.
  [[nodiscard]] std::int64_t rank(BlockId block) const noexcept {
    return added_[static_cast<std::size_t>(block)] +
           bonus_ * (std::int64_t{kNormal} - static_cast<std::int64_t>(list_index(block)));
  }

  std::array<BlockList, 3> lists_;   ///< one a level
  std::vector<Level> levels_;        ///< one a block
  std::vector<std::int64_t> added_;  ///< one a block: the number of its last `add`
  std::int64_t num_added_ = 0;
  std::int64_t bonus_;  ///< of a level over the next
};

static_assert(EvictionLike<LeastRecentlyUsed>);

}  // namespace nanovllm
