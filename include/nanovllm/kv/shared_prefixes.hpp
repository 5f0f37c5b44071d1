#pragma once
/// Which sequences have the same blocks at the beginning of their tables.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/shared_prefix.hpp"

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
  void find(std::span<const Row> rows, std::int64_t block_size) {
    groups_.clear();
    members_.clear();
    if (!begin_together(rows)) return;
    rows_ = rows;
    block_size_ = block_size;
    order_.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    split({.first = 0, .count = static_cast<std::int32_t>(rows.size())});
    // The list grows as its levels are split: parents come before their children.
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const SharedPrefix group = groups_[g];
      split({group.first, group.count, group.end, group.end, static_cast<std::int32_t>(g)});
    }
    if (!groups_.empty()) list_members();
  }

  /// Of the last `find`; empty if nothing is shared.
  [[nodiscard]] std::span<const SharedPrefix> groups() const { return groups_; }
  /// One for each row, or empty if nothing is shared.
  [[nodiscard]] std::span<const PrefixMember> members() const { return members_; }

 private:
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

  /// Adds the groups among the members of `level`, which agree up to its end: one for each block
  /// that several of them have next.
  void split(const SharedPrefix& level) {
    const auto depth = static_cast<std::int32_t>(level.end / block_size_);
    const auto block_of = [&](std::int32_t row) {
      const Row& r = rows_[static_cast<std::size_t>(row)];
      return r.num_full > depth ? r.table[static_cast<std::size_t>(depth)] : BlockId{-1};
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
        add(static_cast<std::int32_t>(run - order_.begin()), count, depth, level.parent);
      run = past;
    }
  }

  /// Adds the group at places [first, first + count), whose tables agree at `depth`, if it is worth
  /// it.
  void add(std::int32_t first, std::int32_t count, std::int32_t depth, std::int32_t parent) {
    const Row& row = row_at(first);
    auto agreed = static_cast<std::size_t>(row.num_full);
    for (std::int32_t i = 1; i < count; ++i) {
      const Row& other = row_at(first + i);
      agreed = std::min(agreed, static_cast<std::size_t>(other.num_full));
      const auto from = row.table.begin() + depth;
      const auto length = static_cast<std::ptrdiff_t>(agreed) - depth;
      agreed = static_cast<std::size_t>(
          std::mismatch(from, from + length, other.table.begin() + depth).first -
          row.table.begin());
    }
    const std::int64_t begin = depth * block_size_;
    const std::int64_t end = static_cast<std::int64_t>(agreed) * block_size_;
    if ((end - begin) * (count - 1) < kMinSavedKeys || groups_.size() == rows_.size()) return;
    groups_.push_back(
        {first, count, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), parent});
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
  std::vector<SharedPrefix> groups_;
  std::vector<PrefixMember> members_;
  std::vector<BlockId> seen_;
};

}  // namespace nanovllm
