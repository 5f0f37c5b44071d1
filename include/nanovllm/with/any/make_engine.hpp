#pragma once
/// An engine for whatever checkpoint comes, of the models that a program was built for.

#include <memory>
#include <utility>

#include "nanovllm/core/type_name.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/policy_checks.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/with/any/registry.hpp"

namespace nanovllm {

namespace detail {

template <class List>
struct FirstModel;
template <class Model, class... Rest>
struct FirstModel<Models<Model, Rest...>> {
  using type = Model;
};

}  // namespace detail

/// The engine of the first model of `List`, a `Models`, that the checkpoint of `config` is of.
/// Models that the policy's backend cannot run (`runs_on`) are not compiled. Throws
/// UnsupportedModelError when there is none or it is one of these, and what the engine's
/// constructor throws.
///
/// ```cpp
/// const std::unique_ptr<AnyEngine> any = make_engine<AllModels>({.model = "Qwen3-0.6B"});
/// ```
template <class List, class Policy = DefaultPolicy>
[[nodiscard]] std::unique_ptr<AnyEngine> make_engine(EngineConfig config) {
  // As Engine: a wrong policy is told of before something is made of it.
  using Checked = detail::PolicyToCheck<typename detail::FirstModel<List>::type, Policy>;
  using Slots = CheckedPolicy<Policy, check_policy_names<Checked>(), check_policy_slots<Checked>(),
                              check_backend<BackendOf<Checked>, BackendElements<Checked>>()>;
  const Checkpoint checkpoint = checkpoint_of(config);
  config.checkpoint = checkpoint;
  std::unique_ptr<AnyEngine> out;
  with_model<List>(checkpoint, [&]<class Model>() {
    if constexpr (is_compiled<Model, Policy>()) {
      out = detail::body_of<Model, Policy>(std::move(config));
    } else {
      static_assert(detail::kIsWhole<Policy>,
                    "nanovllm: no library here has compiled the engines of all these models for "
                    "this policy. '#include <nanovllm/policy.hpp>' compiles them in this file");
      using Backend = typename Slots::Backend;
      if constexpr (runs_on<Model, ElementsOf<Slots>, Backend>()) {
        auto engine = detail::body_of<Model, Slots>(std::move(config));
        detail::open_inside<Model, Slots>(*engine);
        out = std::move(engine);
      } else {
        detail::refuse_backend(checkpoint, Model::kFamily, type_name<Backend>());
      }
    }
  });
  return out;
}

}  // namespace nanovllm
