#pragma once
/// The part of a policy that decides how steps are computed, and not which.

#include "nanovllm/core/elements.hpp"

namespace nanovllm {

/// Elements, backend and communicator: a policy for a runner.
template <class E, class B, class C>
struct RunnerPolicy {
  using Weight = typename E::Weight;
  using Activation = typename E::Activation;
  using KvElement = typename E::KvElement;
  using Element = Activation;
  using Backend = B;
  using Communicator = C;
};

namespace detail {

template <template <class Network, class Backend, class Pool> class>
struct IsTemplate {};

template <class Policy>
struct RunnerPolicyOf {
  using type =
      RunnerPolicy<ElementsOf<Policy>, typename Policy::Backend, typename Policy::Communicator>;
};
template <class Policy>
requires requires { typename IsTemplate<Policy::template Executor>; }
struct RunnerPolicyOf<Policy> {
  using type = Policy;
};

}  // namespace detail

/// What a runner needs to know of `Policy`. Policies that differ in other slots (scheduling,
/// preemption, prefix cache, processors, block size) have the same runner, which is compiled once;
/// one with an `Executor` of its own has its own.
template <class Policy>
using RunnerPolicyOf = typename detail::RunnerPolicyOf<Policy>::type;

}  // namespace nanovllm
