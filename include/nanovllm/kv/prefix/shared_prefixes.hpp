#pragma once
/// Which sequences have the same blocks at the beginning of their tables.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm {

/// Finds the tree of common prefixes of block tables, level by level. Keeps its memory from call to
/// call.
///
/// A block at the same place of two tables is the same keys, for blocks are shared only with all
/// that is before them. Blocks count that are full and will not be written to any more.
class SharedPrefixFinder {
 public:
  /// What is shared must save the reading of this many keys: fewer are not worth the merging.
  static constexpr std::int64_t kMinSavedKeys = 256;

  /// A table, and how many of its blocks are full and are before the key that comes next.
  struct Row {
    std::span<const BlockId> table;
    std::int32_t num_full = 0;
  };

  /// @param rows        one for each decode, in their order.
  /// @param block_size  tokens a block.
  /// @param min_saved   keys that all groups together must save the reading of; else there are
  /// none.
  void find(std::span<const Row> rows, std::int64_t block_size, std::int64_t min_saved = 0) {
    groups_.clear();
    members_.clear();
    if (!begin_together(rows)) return;
    rows_ = rows;
    block_size_ = block_size;
    order_.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    levels_.assign(1, {.first = 0, .count = static_cast<std::int32_t>(rows.size())});
    // The list grows as its levels are split: parents come before their children.
    for (std::size_t i = 0; i < levels_.size(); ++i) split(Level(levels_[i]));
    if (num_saved() < min_saved) groups_.clear();
    if (!groups_.empty()) list_members();
  }

  /// Of the last `find`; empty if nothing is shared.
  [[nodiscard]] std::span<const SharedPrefix> groups() const { return groups_; }
  /// One for each row, or empty if nothing is shared.
  [[nodiscard]] std::span<const PrefixMember> members() const { return members_; }

 private:
  [[nodiscard]] std::int64_t num_saved() const {
    std::int64_t sum = 0;
    for (const SharedPrefix& group : groups_)
      sum += std::int64_t{group.end - group.begin} * (group.count - 1);
    return sum;
  }

  /// Whether any two tables have their first full block in common. O(rows), mostly all there is.
  [[nodiscard]] bool begin_together(std::span<const Row> rows) {
    std::size_t capacity = 16;
    while (capacity < 2 * rows.size()) capacity *= 2;
    seen_.assign(capacity, BlockId{-1});
    for (const Row& row : rows) {
      if (row.num_full == 0) continue;
      const BlockId block = row.table[0];
      std::size_t at = static_cast<std::uint32_t>(block) * 2654435761u & (capacity - 1);
      while (seen_[at] != -1 && seen_[at] != block) at = (at + 1) & (capacity - 1);
      if (seen_[at] == block) return true;
      seen_[at] = block;
    }
    return false;
  }

  [[nodiscard]] const Row& row_at(std::int32_t place) const {
    return rows_[static_cast<std::size_t>(order_[static_cast<std::size_t>(place)])];
  }

  /// Rows at neighbouring places that agree in their first `depth` blocks, of which those from
  /// `begin` on are in no group that all of them are in; the last of these is `parent`.
  struct Level {
    std::int32_t first = 0, count = 0;
    std::int32_t depth = 0, begin = 0;
    std::int32_t parent = -1;
  };

  /// Goes on with the members of `level`: one level for each block that several of them have next.
  void split(const Level& level) {
    const auto block_of = [&](std::int32_t row) {
      const Row& r = rows_[static_cast<std::size_t>(row)];
      return r.num_full > level.depth ? r.table[static_cast<std::size_t>(level.depth)]
                                      : BlockId{-1};
    };
    const auto begin = order_.begin() + level.first, end = begin + level.count;
    std::sort(begin, end, [&](std::int32_t a, std::int32_t b) {
      const BlockId x = block_of(a), y = block_of(b);
      return x != y ? x < y : a < b;
    });
    for (auto run = begin; run != end;) {
      const BlockId block = block_of(*run);
      const auto past =
          std::find_if(run, end, [&](std::int32_t r) { return block_of(r) != block; });
      const auto count = static_cast<std::int32_t>(past - run);
      if (block != -1 && count > 1)
        add({static_cast<std::int32_t>(run - order_.begin()), count, level.depth, level.begin,
             level.parent});
      run = past;
    }
  }

  /// Finds how far the rows of `run` agree, which do so in one block more than it says. They become
  /// a group if that is worth it; if not, what they have in common may be with what only some of
  /// them have besides.
  void add(Level run) {
    const Row& row = row_at(run.first);
    auto agreed = static_cast<std::size_t>(row.num_full);
    for (std::int32_t i = 1; i < run.count; ++i) {
      const Row& other = row_at(run.first + i);
      agreed = std::min(agreed, static_cast<std::size_t>(other.num_full));
      const auto from = row.table.begin() + run.depth;
      const auto length = static_cast<std::ptrdiff_t>(agreed) - run.depth;
      agreed = static_cast<std::size_t>(
          std::mismatch(from, from + length, other.table.begin() + run.depth).first -
          row.table.begin());
    }
    run.depth = static_cast<std::int32_t>(agreed);
    const auto num_keys = (run.depth - run.begin) * block_size_;
    if (num_keys * (run.count - 1) >= kMinSavedKeys && groups_.size() < rows_.size()) {
      groups_.push_back({run.first, run.count, static_cast<std::int32_t>(run.begin * block_size_),
                         static_cast<std::int32_t>(run.depth * block_size_), run.parent});
      run.begin = run.depth;
      run.parent = static_cast<std::int32_t>(groups_.size()) - 1;
    }
    levels_.push_back(run);
  }

  void list_members() {
    members_.assign(order_.size(), {});
    for (std::size_t i = 0; i < order_.size(); ++i) {
      members_[i].decode = order_[i];
      members_[static_cast<std::size_t>(order_[i])].place = static_cast<std::int32_t>(i);
    }
    // Children come later and overwrite their parents.
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::int32_t i = 0; i < groups_[g].count; ++i) {
        const auto place = static_cast<std::size_t>(groups_[g].first + i);
        members_[static_cast<std::size_t>(order_[place])].group = static_cast<std::int32_t>(g);
      }
    }
  }

  std::span<const Row> rows_;
  std::int64_t block_size_ = 1;
  std::vector<std::int32_t> order_;
  std::vector<Level> levels_;
  std::vector<SharedPrefix> groups_;
  std::vector<PrefixMember> members_;
  std::vector<BlockId> seen_;
};

}  // namespace nanovllm
