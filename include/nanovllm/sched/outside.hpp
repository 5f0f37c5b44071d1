#pragma once
/// What a block manager keeps of sequences outside of the pool that steps compute in.

#include <cstdint>
#include <optional>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Takes part in the moves of a scheduler's sequences. This template keeps nothing. The header of a
/// block manager with memory outside of the pool specialises it, with these members; what it keeps
/// are `Sequence::kept` and `PrefixMatch::outside`, and it lists the copies to and from there.
template <class Blocks>
class Outside {
 public:
  /// Whether sequences that are preempted can be kept.
  static constexpr bool kKeepsSequences = false;

  /// `blocks` must outlive this.
  explicit Outside(Blocks& blocks) : blocks_(blocks) {}

  /// Throws Error unless what `p`, which is to be admitted, has outside is there.
  static void check_admitted(const PlannedSequence& p) {
    check(p.prefix.outside.empty(), "begin: there is no pool in host memory");
  }
  /// Makes room for all that the members below append.
  static void make_room(StepPlan&) noexcept {}

  /// A free block for a sequence of the plan, which begins; `Blocks::allocate`.
  [[nodiscard]] std::optional<BlockId> allocate(StepPlan&) noexcept { return blocks_.allocate(); }
  /// `s`, of the plan, is about to be preempted.
  template <class Preemption>
  static void preempt(Sequence& /*s*/, StepPlan&, const Preemption&) noexcept {}
  /// All sequences of the plan, which begins, have their blocks.
  static void begin(StepPlan&) noexcept {}
  /// The plan's copies may not have been made.
  static void cancel(const StepPlan&) noexcept {}
  /// Of what is kept of `s`, only the first `num_kept` tokens are wanted: it has ended, or guesses
  /// were wrong, or the pool's contents are lost.
  static void cut(Sequence& /*s*/, std::int32_t /*num_kept*/) noexcept {}

  /// Throws Error naming the broken invariant.
  static void check_invariants(std::span<Sequence* const> /*running*/, const WaitingQueue&) {}

 private:
  Blocks& blocks_;
};

}  // namespace nanovllm
