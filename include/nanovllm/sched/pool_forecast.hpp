#pragma once
/// How many blocks are free once a plan has begun.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// A pool's reference counts as a plan will leave them. Reads the block manager, changes nothing.
/// The reference counts are copied by the first call that needs to; most plans need none.
template <class Blocks>
class PoolForecast {
 public:
  explicit PoolForecast(const Blocks& blocks) : blocks_(blocks), num_free_(blocks.num_free()) {}

  /// Blocks that are free when all that was said has been done; below 0 if it cannot be.
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }

  void allocate(std::int32_t num_blocks) { num_free_ -= num_blocks; }

  /// One reference to each of `blocks` goes back.
  void release(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) num_free_ += --count(block) == 0 && !is_pinned(block);
  }

  /// One reference to each of `blocks` is taken: the reverse of `release`.
  void retain(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) num_free_ -= count(block)++ == 0 && !is_pinned(block);
  }

  /// True if `s`, which runs, cannot write its next token where it is: others hold that block, too.
  /// Copies that are made of it in this step come first, and count as no holders.
  [[nodiscard]] bool must_copy(const Sequence& s) const {
    return s.num_computed_tokens % Blocks::block_size() > 0 && peek(s.block_table.back()) > 1;
  }

  /// `s`, which `must_copy`, gets a block of its own for its last one.
  void copy_last_block(const Sequence& s) {
    --count(s.block_table.back());  // of several holders
    --num_free_;
  }

  /// Free blocks that adopting `match` takes. A block to be copied cannot be reused until the step
  /// has begun, so it counts.
  [[nodiscard]] std::int32_t cost(const PrefixMatch& match) const {
    std::int32_t cost = 0;
    for (const BlockId block : match.blocks) cost += is_free(block) ? 1 : 0;
    if (match.copy_tail) cost += is_free(*match.copy_tail) ? 1 : 0;
    return cost;
  }

  void adopt(const PrefixMatch& match) {
    retain(match.blocks);
    if (!match.copy_tail) return;
    num_free_ -= is_free(*match.copy_tail) ? 1 : 0;
    pinned_.push_back(*match.copy_tail);
  }

 private:
  [[nodiscard]] bool is_pinned(BlockId block) const {
    return std::find(pinned_.begin(), pinned_.end(), block) != pinned_.end();
  }
  [[nodiscard]] bool is_free(BlockId block) const { return peek(block) == 0 && !is_pinned(block); }
  [[nodiscard]] std::int32_t peek(BlockId block) const {
    if (counts_.empty()) return blocks_.ref_count(block);
    return counts_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::int32_t& count(BlockId block) {
    if (counts_.empty()) {
      const std::span<const std::int32_t> now = blocks_.ref_counts();
      counts_.assign(now.begin(), now.end());
    }
    return counts_[static_cast<std::size_t>(block)];
  }

  const Blocks& blocks_;
  std::vector<std::int32_t> counts_;
  std::vector<BlockId> pinned_;  ///< to be copied; they cannot be reused until the step has begun
  std::int32_t num_free_;
};

}  // namespace nanovllm
