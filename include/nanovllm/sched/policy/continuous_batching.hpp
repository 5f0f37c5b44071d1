#pragma once
/// The default scheduling policy: decodes and prompt chunks share every step.
/// Source: Yu et al., "Orca", OSDI 2022; Agrawal et al., "Sarathi-Serve", OSDI 2024.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/sched/plan_builder.hpp"

namespace nanovllm {

/// Every running sequence with one token to compute decodes. The rest of the token budget goes to
/// prompts already begun, then to new ones, first come first served, each cut where the budget
/// ends. None overtakes another, except samples that wait for their common prompt. A running
/// sequence that finds no block takes those of a younger one, which the preemption policy chooses:
/// by default the one that came last. That one waits, first in line, and is recomputed from all its
/// tokens, except what the prefix cache still has.
///
/// Why everything admitted finishes:
/// - None overtakes another, so every running sequence came before every waiting one, and `running`
///   is in the order of arrival. (With a preemption policy that does not choose the last, it is in
///   the order of admission, and "oldest" below is the one admitted first.)
/// - If any runs, the oldest one advances in every step: the decodes leave at least one token of
///   the budget to a chunk (max_num_batched_tokens ≥ max_num_seqs), and it can take any block that
///   others hold. It is never a victim, because victims are younger than the sequence that needs a
///   block; so no two preempt each other repeatedly.
/// - If none runs, the whole pool is free and the first in line gets in, since the scheduler
///   accepts no sequence that would not fit into the pool alone.
/// - A plan that is made while a step is under way may give the oldest no block, because sequences
///   that are ending still hold theirs, or leave it out, because the number of its tokens is not
///   known yet. The next plan mends both.
/// The oldest thus finishes after a bounded number of steps, and then the next one is the oldest.
struct ContinuousBatching {
  template <class Blocks>
  [[nodiscard]] static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                                     const BatchConfig& config) {
    PlanBuilder<Blocks> builder(queues, blocks);
    const auto num_decodes = std::count_if(queues.running.begin(), queues.running.end(),
                                           [](const Sequence* s) { return is_decode(*s); });
    std::int32_t budget = config.max_num_batched_tokens - static_cast<std::int32_t>(num_decodes);
    budget -=
        builder.extend_oldest_first(queues.running, budget, [](const Sequence&) { return true; });
    if (builder.preempts()) return builder.finish();  // the pool is full
    const auto max_running = static_cast<std::size_t>(config.max_num_seqs);
    for (Sequence* s : queues.waiting) {
      if (budget == 0 || builder.num_running() >= max_running) break;
      if (builder.must_wait(*s)) continue;
      const std::int32_t n = builder.admit_chunk(*s, budget);
      if (n == 0) break;
      budget -= n;
    }
    return builder.finish();
  }
};

}  // namespace nanovllm
