#pragma once
/// What a rank is made of, and whether the policy's `Executor` fits that.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/step/executor.hpp"
#include "nanovllm/engine/step/runner_policy.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

/// The types of a rank that the model and the policy decide.
template <class Model, class Policy>
struct RankTypes {
  using Config = typename Model::Config;
  using Elements = ElementsOf<Policy>;
  using KvElement = typename Elements::KvElement;
  using Backend = typename Policy::Backend;
  using Communicator = CommunicatorOf<Policy>;
  using Network = typename Model::template Network<Elements, Backend, Communicator>;
  using Pool = typename Policy::Tiers::Pools::template Pool<KvElement, Backend>;
};

/// Whether the policy's slot `Executor`, a template, gives an executor for the ranks of this model;
/// true where there is no slot. `Slot` has the two types. A compile error names what is missing.
template <class Slot>
consteval bool check_policy_executor() {
  using Model = typename Slot::Model;
  using Policy = typename Slot::Policy;
  if constexpr (!requires { typename detail::IsTemplate<Policy::template Executor>; }) {
    return true;
  } else {
    using Types = RankTypes<Model, Policy>;
    using Pool = typename Types::Pool;
    using E =
        typename Policy::template Executor<typename Types::Network, typename Types::Backend, Pool>;
    if constexpr (!std::constructible_from<E, typename Types::Network&, typename Types::Backend&,
                                           const StepLimits&, std::int64_t>) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must be made from (network, backend, limits, "
                    "max_blocks); see engine/step/executor.hpp and docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv) {
                           { e.profile_run(kv) } -> std::convertible_to<std::size_t>;
                           e.capture(kv);
                         }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have profile_run(pool), which returns "
                    "bytes, and capture(pool); see engine/step/executor.hpp and docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv, const StepInputs& inputs, int slot) {
                           e.launch(slot, inputs, kv);
                           { e.wait(slot) } -> std::convertible_to<StepResults>;
                         }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have launch(slot, inputs, pool) and "
                    "wait(slot), which returns StepResults; see engine/step/executor.hpp and "
                    "docs/policies.md");
    } else if constexpr (!requires(E & e, Pool & kv, const StepInputs& inputs,
                                   MatrixView<float> out) { e.run_logits(inputs, kv, out); }) {
      static_assert(kFits<E>,
                    "nanovllm: the policy's Executor must have run_logits(inputs, pool, out); see "
                    "engine/step/executor.hpp and docs/policies.md");
    } else {
      return true;
    }
    return false;
  }
}

}  // namespace nanovllm
