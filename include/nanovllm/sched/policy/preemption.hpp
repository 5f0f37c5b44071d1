#pragma once
/// The policy slot for preemption: which sequence loses its blocks when the pool is full, and
/// whether they are kept.

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// A preemption policy offers
///
/// - `static choose(candidates)`: the index of the sequence to preempt. There is at least one
///   candidate. All of them run, are not in the plan, and came later than the sequence that needs
///   a block; the oldest is first. A pure function, called while a step is planned.
/// - `vacate(sequence, copies)`: called by `Scheduler::begin` for each sequence of
///   `StepPlan::preempted`, before its blocks are released. It may append copies out of them, to be
///   made before the step computes anything: at most one for each block, and the target must be a
///   block that nothing else uses. Must not throw: `begin` happens completely or not at all, and
///   there is room in `copies`.
///
/// The scheduler default-constructs one. A preempted sequence waits in the order of arrival, so
/// before all that came later, whatever was kept of it.
template <class P>
concept PreemptionLike = std::default_initializable<P> &&
    requires(P& preemption, std::span<Sequence* const> candidates, const Sequence& sequence,
             std::vector<BlockCopy>& copies) {
  { P::choose(candidates) } -> std::same_as<std::size_t>;
  { preemption.vacate(sequence, copies) }
  noexcept;
};

/// A preemption policy may offer `swaps(sequence)`, a const member: whether a preempted sequence is
/// to be kept outside of the pool (`Outside`) until it is admitted again, so that nothing is
/// computed twice. Called in `Scheduler::begin`, after `vacate`. If there is no room for all of it,
/// the sequence is computed again. Must not throw.
template <class P>
concept SwapsSequences = requires(const P& preemption, const Sequence& sequence) {
  { preemption.swaps(sequence) }
  noexcept->std::same_as<bool>;
};

/// Preempts the sequence that came last. Nothing is kept: its tokens are computed again, except
/// what the prefix cache still has when it comes back.
struct RecomputePreemption {
  [[nodiscard]] static std::size_t choose(std::span<Sequence* const> candidates) {
    return candidates.size() - 1;
  }
  static void vacate(const Sequence&, std::vector<BlockCopy>&) noexcept {}
};

static_assert(PreemptionLike<RecomputePreemption> && !SwapsSequences<RecomputePreemption>);

}  // namespace nanovllm
