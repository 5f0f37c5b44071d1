#pragma once
/// What a scheduling policy sees, and what it must offer.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/preemption.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The scheduler's queues, to be read. The last tokens of a running sequence may be ones that the
/// step under way is yet to draw; they count like any other.
struct SchedulerView {
  std::span<Sequence* const> running;  ///< in the order in which they were admitted
  const WaitingQueue& waiting;         ///< in the order in which they came; a range of Sequence*
  /// Further sequences that run, but get their last token from the step under way. They give back
  /// their blocks when it is done and are nothing to plan for.
  std::int32_t num_ending = 0;
  /// The preemption policy's; see PreemptionLike.
  std::size_t (*choose_victim)(std::span<Sequence* const>) = &RecomputePreemption::choose;
  std::int32_t prefix_wait_tokens = 0;  ///< BatchConfig's
};

/// A scheduling policy decides what the next step computes: `plan` is a static (or const, on a
/// stateless type) function of the queues, the pool and the limits. It changes nothing; the
/// scheduler applies what it says. `PlanBuilder` does the arithmetic, and keeps memos in the
/// sequences that have no effect but on time.
template <class Policy, class Blocks>
concept SchedulingPolicyLike = std::default_initializable<Policy> &&
    requires(const Policy& policy, const SchedulerView& queues, const Blocks& blocks,
             const BatchConfig& config) {
  { policy.plan(queues, blocks, config) } -> std::same_as<StepPlan>;
};

}  // namespace nanovllm
