#pragma once
/// What an engine asks of its policy before anything is made of it. The checks are defined where
/// policy.hpp brings them: engine/check_policy.hpp and ops/backend_check.hpp.

#include <type_traits>

#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/fwd.hpp"

namespace nanovllm {

namespace detail {

/// In place of one that is not checked.
struct NoPolicy;

template <class M, class P>
struct ModelAndPolicy {
  using Model = M;
  using Policy = P;
};

/// The policy of an engine that is compiled here; a library has checked those that it has.
template <class Model, class Policy>
using PolicyToCheck = std::conditional_t<!is_compiled<Model, Policy>() &&
                                             kIsWhole<BodyMaker<Model, Policy>> && kIsWhole<Model>,
                                         Policy, NoPolicy>;
template <class Model, class Policy>
using ExecutorToCheck =
    std::conditional_t<std::is_same_v<Policy, NoPolicy> || !kIsWhole<RunnerMaker<Model, Policy>>,
                       NoPolicy, ModelAndPolicy<Model, Policy>>;
template <class Model, class Policy>
using RunnerToCheck = std::conditional_t<std::is_same_v<PolicyToCheck<Model, Policy>, NoPolicy>,
                                         NoPolicy, ModelAndPolicy<Model, Policy>>;

}  // namespace detail

template <class P>
consteval bool check_policy_names();
template <class P>
consteval bool check_policy_slots();
template <class ModelAndPolicy>
consteval bool check_policy_runner();
template <class ModelAndPolicy>
consteval bool check_policy_executor();
template <class Backend, class Elements>
consteval bool check_backend();

template <>
consteval bool check_policy_names<detail::NoPolicy>() {
  return true;
}
template <>
consteval bool check_policy_slots<detail::NoPolicy>() {
  return true;
}
template <>
consteval bool check_policy_runner<detail::NoPolicy>() {
  return true;
}
template <>
consteval bool check_policy_executor<detail::NoPolicy>() {
  return true;
}
template <>
consteval bool check_backend<void, void>() {
  return true;
}

/// What `check_backend` is to check: the policy's Backend and its elements, or nothing.
template <class P>
struct BackendSlot {
  using Backend = void;
  using Elements = void;
};
template <class P>
using BackendOf = typename BackendSlot<P>::Backend;
template <class P>
using BackendElements = typename BackendSlot<P>::Elements;

/// `P` if all checks hold, else the default policy: what is made of that has no further faults.
template <class P, bool... kHolds>
using CheckedPolicy = std::conditional_t<(kHolds && ...), P, DefaultPolicy>;

}  // namespace nanovllm
