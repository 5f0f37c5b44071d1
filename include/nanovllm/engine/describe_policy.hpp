#pragma once
/// What a policy and an engine of it are, for people.

#include <cstdint>
#include <string>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/draw/step_sampler.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/parallel/communicator.hpp"

namespace nanovllm {

namespace detail {

/// One line where all elements are the same, else three.
template <class E>
[[nodiscard]] std::string describe_elements() {
  const auto weight = weight_format_name<typename E::Weight>();
  const auto activation = name(kDType<typename E::Activation>);
  const auto kv = kv_format_name<typename E::KvElement>();
  if (weight == activation && weight == kv) return concat("Element        ", weight);
  return concat("Weight         ", weight, "\nActivation     ", activation, "\nKvElement      ",
                kv);
}

}  // namespace detail

/// The slots of `Policy` as they are in force, one a line.
template <class Policy>
[[nodiscard]] std::string describe() {
  using Cache = typename Policy::template PrefixCache<Policy::kv.block_size>;
  return concat(detail::describe_elements<ElementsOf<Policy>>(),                      //
                "\nBackend        ", type_name<typename Policy::Backend>(),           //
                "\nRanks          ", type_name<typename Policy::Ranks>(),             //
                "\nCommunicator   ", type_name<CommunicatorOf<Policy>>(),             //
                "\nScheduling     ", type_name<typename Policy::Scheduling>(),        //
                "\nPreemption     ", type_name<typename Policy::Preemption>(),        //
                "\nProcessors     ", type_name<typename Policy::LogitsProcessors>(),  //
                "\nLogitsFunctor  ", type_name<typename Policy::LogitsFunctor>(),     //
                "\nDraws          ", type_name<typename DrawsOf<Policy>::type>(),     //
                "\nPrefixCache    ", type_name<Cache>(),                              //
                "\nTiers          ", type_name<typename Policy::Tiers>(),             //
                "\nkv             block_size = ", Policy::kv.block_size,              //
                ", prefix_caching = ", Policy::kv.prefix_caching, "\n");
}

/// What runs its steps, and the slots of its policy.
template <class Policy>
[[nodiscard]] std::string describe_engine(const StepRunner& runner, std::int32_t num_kv_blocks) {
  return concat(runner.describe_backend(), ", ", runner.num_ranks(), " rank(s), ", num_kv_blocks,
                " KV blocks of ", Policy::kv.block_size, " tokens\n", describe<Policy>(),
                "Executor       ", runner.executor_name(), "\n");
}

}  // namespace nanovllm
