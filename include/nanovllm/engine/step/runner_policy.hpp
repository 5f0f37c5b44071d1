#pragma once
/// The part of a policy that decides how steps are computed, and not which.

#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/step/rank_part.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/logits_functor.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

/// Elements, backend, ranks, communicator, functor, draws, pools and parts: a policy for a runner.
template <class E, class B, class R, class C, class F, class D, class P, class X>
struct RunnerPolicy {
  struct Tiers {
    using Pools = P;
  };
  using Weight = typename E::Weight;
  using Activation = typename E::Activation;
  using KvElement = typename E::KvElement;
  using Element = Activation;
  using Backend = B;
  using Ranks = R;
  using Communicator = C;
  using LogitsFunctor = F;
  using Draws = D;
  using RankParts = X;
};

/// The policy's LogitsFunctor; NoLogitsFunctor where it has none.
template <class Policy>
struct LogitsFunctorOf {
  using type = NoLogitsFunctor;
};
template <class Policy>
requires requires { typename Policy::LogitsFunctor; }
struct LogitsFunctorOf<Policy> {
  using type = typename Policy::LogitsFunctor;
};

namespace detail {

template <template <class Network, class Backend, class Pool> class>
struct IsTemplate {};

template <class Policy>
struct RunnerPolicyOf {
  using type = RunnerPolicy<ElementsOf<Policy>, typename Policy::Backend, typename Policy::Ranks,
                            CommunicatorOf<Policy>, typename LogitsFunctorOf<Policy>::type,
                            typename DrawsOf<Policy>::type, typename Policy::Tiers::Pools,
                            RankPartsOf<Policy>>;
};
template <class Policy>
requires requires { typename IsTemplate<Policy::template Executor>; }
struct RunnerPolicyOf<Policy> {
  using type = Policy;
};

}  // namespace detail

/// What a runner needs to know of `Policy`. Policies that differ in other slots (scheduling,
/// preemption, prefix cache, processors, block size) have the same runner, which is compiled once;
/// one with its own `Executor` keeps it.
template <class Policy>
using RunnerPolicyOf = typename detail::RunnerPolicyOf<Policy>::type;

}  // namespace nanovllm
