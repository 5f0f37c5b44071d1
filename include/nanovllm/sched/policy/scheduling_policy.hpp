#pragma once
/// What a scheduling policy sees, and what it must offer.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The scheduler's queues, to be read. The last tokens of a running sequence may be ones that the
/// step under way is yet to draw; they count like any other.
struct SchedulerView {
  std::span<Sequence* const> running;  ///< in the order in which they were admitted
  const WaitingQueue& waiting;         ///< in the order of `goes_before`; a range of Sequence*
  /// Further sequences that run, but get their last token from the step under way. They give back
  /// their blocks when it is done and are nothing to plan for.
  std::int32_t num_ending = 0;
  /// The preemption policy's; see PreemptionLike.
  std::size_t (*choose_victim)(std::span<Sequence* const>) = &RecomputePreemption::choose;
  std::int32_t prefix_wait_tokens = 0;  ///< BatchConfig's
  /// Rows of logits that a step may have, ≥ the sequences that may run: BatchConfig::num_logits.
  std::int32_t max_logits = std::numeric_limits<std::int32_t>::max();
  /// Tokens that a step may have: max_num_batched_tokens.
  std::int32_t max_tokens = std::numeric_limits<std::int32_t>::max();
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

/// A policy that serves sequences in another order than that of their arrival has a static member
/// `order(sequence)`. The scheduler asks it once, when the sequence is added and has its `arrival`,
/// and keeps the sequence's place by the answer: lower goes before, and where it is equal, what
/// came before. Blocks are then given back with the sequence's priority (BlockManager::release).
template <class Policy>
concept OrdersSequences = requires(const Sequence& s) {
  Policy::order(s);
};

/// What the scheduler keeps as `Sequence::order`: the policy's, or 0.
template <class Policy>
[[nodiscard]] std::int64_t order_of([[maybe_unused]] const Sequence& s) noexcept {
  if constexpr (OrdersSequences<Policy>) {
    static_assert(
        noexcept(Policy::order(s)) && std::same_as<decltype(Policy::order(s)), std::int64_t>,
        "nanovllm: the scheduling policy's order(const Sequence&) must be noexcept and "
        "return std::int64_t; see sched/policy/scheduling_policy.hpp");
    return Policy::order(s);
  } else {
    return 0;
  }
}

/// With what priority the blocks of `s` are given back; nothing if the policy knows of none.
template <class Policy>
[[nodiscard]] std::optional<std::int32_t> block_priority([[maybe_unused]] const Sequence& s) {
  if constexpr (OrdersSequences<Policy>) return s.priority;
  return std::nullopt;
}

}  // namespace nanovllm
