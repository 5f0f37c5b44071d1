#pragma once
/// nano-vllm's scheduling policy: a step is either prompts or decodes.

#include <cstddef>
#include <cstdint>

#include "nanovllm/sched/plan_builder.hpp"

namespace nanovllm {

/// While prompts wait and fit, a step computes prompts, whole ones, as many as the token budget
/// holds; only the first may be cut, when it alone exceeds the budget. Otherwise all running
/// sequences decode. Prompts get through soonest and every step is of one kind; running sequences
/// pause for as long as prompts keep coming, which is what `ContinuousBatching` avoids.
///
/// Everything admitted finishes, if requests stop coming for long enough: every prompt step brings
/// a prompt forward, every decode step brings the oldest sequence forward and never preempts it,
/// and when none runs the first in line gets in.
struct PrefillFirst {
  template <class Blocks>
  [[nodiscard]] static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                                     const BatchConfig& config) {
    PlanBuilder<Blocks> builder(queues, blocks);
    std::int32_t budget = config.max_num_batched_tokens;
    budget -= builder.extend_oldest_first(queues.running, budget,
                                          [](const Sequence& s) { return !is_decode(s); });
    const auto max_running = static_cast<std::size_t>(config.max_num_seqs);
    for (Sequence* s : queues.waiting) {
      if (budget == 0 || builder.num_running() >= max_running || builder.preempts()) break;
      if (builder.must_wait(*s)) continue;
      const std::int32_t n =
          builder.empty() ? builder.admit_chunk(*s, budget) : builder.admit_whole(*s, budget);
      if (n == 0) break;
      budget -= n;
    }
    if (builder.empty()) {
      builder.extend_oldest_first(queues.running, 0,
                                  [](const Sequence& s) { return is_decode(s); });
    }
    return builder.finish();
  }
};

}  // namespace nanovllm
