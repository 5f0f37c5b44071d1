#pragma once
/// How a preempted sequence goes to the host's pool, and what becomes of it there.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Counters of sequences that were preempted, since the scheduler was made.
struct SwapStats {
  std::int64_t num_out = 0;  ///< copied to the host's pool
  std::int64_t num_in = 0;   ///< of them, copied back; others have ended, or were in the cache
  std::int64_t num_fallbacks = 0;  ///< to be copied, but had no room, or their step was cancelled
};

/// Plans to copy the blocks of `s`, which is about to be preempted, to the host's pool, if there is
/// room for all of them. Beams are computed again: what is in their blocks may be another beam's by
/// the next choice, and siblings mostly have it.
/// @param plan  has room for the copies.
template <class Blocks>
void swap_out(Sequence& s, StepPlan& plan, Blocks& blocks, SwapStats& stats) noexcept {
  if (s.is_beam || s.block_table.empty()) return;
  if (!blocks.allocate_host(s.block_table.size(), s.host_table)) {
    ++stats.num_fallbacks;
    return;
  }
  for (std::size_t i = 0; i < s.block_table.size(); ++i)
    plan.copies_down.push_back({s.block_table[i], s.host_table[i]});
  s.num_swapped_tokens = s.num_computed_tokens;
  ++stats.num_out;
}

/// Of what was swapped out of `s`, only the first `num_kept` tokens are kept.
template <class Blocks>
void drop_host_blocks(Sequence& s, std::int32_t num_kept, Blocks& blocks) noexcept {
  if (num_kept >= s.num_swapped_tokens) return;
  const auto num_blocks = static_cast<std::size_t>(Blocks::blocks_for(num_kept));
  blocks.release_host(std::span<const BlockId>(s.host_table).subspan(num_blocks));
  s.host_table.resize(num_blocks);
  s.num_swapped_tokens = num_kept;
}

}  // namespace nanovllm
