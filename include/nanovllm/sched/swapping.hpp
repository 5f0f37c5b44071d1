#pragma once
/// How a preempted sequence goes to the host's pool, and what becomes of it there. Where the block
/// manager has no such pool (HasHostPool), nothing is done.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/sched/plan_checks.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Counters of sequences that were preempted, since the scheduler was made. What is copied out
/// comes back, is dropped, or is still there: num_out = num_in + num_dropped + the sequences that
/// wait and have something in the host's pool. `check_host_blocks` checks it.
struct SwapStats {
  std::int64_t num_out = 0;        ///< copied to the host's pool, in a step that was not cancelled
  std::int64_t num_in = 0;         ///< of them, copied back, likewise
  std::int64_t num_dropped = 0;    ///< of them, never to come back: see drop_host_blocks
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

namespace detail {

/// Gives back what `s` has in the host's pool behind its first `num_kept` tokens. Returns whether
/// it had something and has nothing any more.
template <class Blocks>
bool cut_swapped(Sequence& s, std::int32_t num_kept, Blocks& blocks) noexcept {
  if (num_kept >= s.num_swapped_tokens) return false;
  const auto num_blocks = static_cast<std::size_t>(Blocks::blocks_for(num_kept));
  blocks.release_host(std::span<const BlockId>(s.host_table).subspan(num_blocks));
  s.host_table.resize(num_blocks);
  s.num_swapped_tokens = num_kept;
  return num_kept == 0;
}

}  // namespace detail

/// Of what was swapped out of `s`, only the first `num_kept` tokens are kept: it has ended, or
/// guesses were wrong, or the pool's contents are lost.
template <class Blocks>
void drop_host_blocks(Sequence& s, std::int32_t num_kept, Blocks& blocks,
                      SwapStats& stats) noexcept {
  if constexpr (HasHostPool<Blocks>)
    stats.num_dropped += detail::cut_swapped(s, num_kept, blocks) ? 1 : 0;
}

/// All copies of `plan`, which begins, are listed. What its sequences have in the host's pool is
/// copied back by them, or is of no use, for there was more elsewhere.
template <class Blocks>
void end_swaps(StepPlan& plan, Blocks& blocks, SwapStats& stats) noexcept {
  if constexpr (HasHostPool<Blocks>) {
    for (PlannedSequence& p : plan.sequences) {
      p.is_swapped_in = is_swapped_in(p.prefix, *p.sequence);
      if (!detail::cut_swapped(*p.sequence, 0, blocks)) continue;
      ++(p.is_swapped_in ? stats.num_in : stats.num_dropped);
    }
    blocks.end_copies();
  }
}

/// The copies of `plan` may not have been made. What it swapped out or saved was not; what it
/// swapped in is lost.
template <class Blocks>
void cancel_swaps(const StepPlan& plan, Blocks& blocks, SwapStats& stats) noexcept {
  if constexpr (HasHostPool<Blocks>) {
    for (const PlannedSequence& p : plan.sequences) {
      if (p.is_swapped_in) --stats.num_in, ++stats.num_dropped;
    }
    for (Sequence* s : plan.preempted) {
      if (detail::cut_swapped(*s, 0, blocks)) --stats.num_out, ++stats.num_fallbacks;
    }
    blocks.forget_saved(plan.copies_down);
  }
}

}  // namespace nanovllm
