#pragma once
/// Whether the slots of a policy that a scheduler is made of fit it and each other.

#include "nanovllm/kv/tiers/host_pool.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"

namespace nanovllm {

/// True if they do; a compile error that names what is wrong if not.
template <class Policy, class Blocks, class Preemption>
consteval bool check_scheduling() {
  static_assert(
      SchedulingPolicyLike<Policy, Blocks>,
      "nanovllm: the policy's Scheduling must be default-constructible and have a static "
      "or const member plan(const SchedulerView&, const Blocks&, const BatchConfig&) that "
      "returns a StepPlan; see sched/policy/scheduling_policy.hpp and docs/policies.md");
  static_assert(
      PreemptionLike<Preemption>,
      "nanovllm: the policy's Preemption must be default-constructible and have a static "
      "choose(std::span<Sequence* const>) that returns std::size_t, and a noexcept "
      "vacate(const Sequence&, std::vector<BlockCopy>&); see sched/policy/preemption.hpp and "
      "docs/policies.md");
  static_assert(
      !SwapsSequences<Preemption> || HasHostPool<Blocks>,
      "nanovllm: the policy's Preemption swaps sequences to host memory, so its Tiers must "
      "be HostTier or DiskTier: 'using Tiers = nanovllm::HostTier;'");
  return true;
}

}  // namespace nanovllm
