#pragma once
/// Does a plan fit the sequences and the pool, and do outcomes fit the plan? These checks guard the
/// scheduler against a mistaken policy or engine; bad requests never get this far.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/kv/prefix_match.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/pool_forecast.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Throws Error unless `plan` fits its sequences and `config`, with `num_running` sequences running
/// before it, not counting those that are ending. `mark` is a number of this plan's own.
/// @param block_size  tokens a block.
void check_plan(const StepPlan& plan, std::size_t num_running, const BatchConfig& config,
                std::uint64_t mark, std::int32_t block_size);

/// Whether `prefix` goes on in blocks of the host's pool that are its sequence's own.
[[nodiscard]] bool is_swapped_in(const PrefixMatch& prefix, const Sequence& s) noexcept;

/// Throws Error unless the pool has the blocks that `plan` takes.
template <class Blocks>
void check_blocks(const StepPlan& plan, const Blocks& blocks) {
  PoolForecast<Blocks> forecast(blocks);
  for (const Sequence* s : plan.preempted) forecast.release(s->block_table);
  for (const PlannedSequence& p : plan.sequences) {
    if (p.fork_of == nullptr) {
      blocks.check_adoptable(p.prefix);
      if (!is_swapped_in(p.prefix, *p.sequence)) blocks.check_in_tier(p.prefix.host_blocks);
    } else {
      blocks.check_shareable(p.prefix);
    }
    forecast.adopt(p.prefix);
  }
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    if (forecast.must_copy(s)) forecast.copy_last_block(s);
    const std::size_t num_held = s.block_table.size() + p.prefix.blocks.size();
    forecast.allocate(Blocks::blocks_for(p.end) - static_cast<std::int32_t>(num_held));
  }
  check(forecast.num_free() >= 0, "begin: the plan needs ", -forecast.num_free(),
        " blocks more than are free");
}

/// Throws Error unless `plan` is the oldest step under way and `outcomes` has, in plan order, one
/// entry for every sequence that sampled and has not ended meanwhile.
void check_outcomes(const StepPlan& plan, std::span<const StepOutcome> outcomes);

/// Throws Error unless `plan` can be the newest step under way.
void check_newest(const StepPlan& plan);

/// Throws Error unless the `seats` are of different beams that await a choice, with tokens left to
/// compute.
/// @param mark  a number of this choice's own.
void check_seats(std::span<const BeamSeat> seats, std::uint64_t mark);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/sched/plan_checks.inc"
#endif
