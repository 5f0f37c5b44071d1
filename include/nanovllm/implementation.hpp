#pragma once
/// The whole library but for CUDA, compiled once: for a program that is built without CMake and
/// with NANOVLLM_SEPARATE. One source file includes this, ahead of all else:
///
/// ```console
/// $ echo '#include <nanovllm/implementation.hpp>' > nanovllm.cpp
/// $ g++ -std=c++20 -O2 -DNANOVLLM_SEPARATE -I include -c nanovllm.cpp
/// ```
///
/// A source of nanovllm::nanovllm that defines NANOVLLM_COMPILED_POLICIES has the engines of these
/// alone.

#if !defined(NANOVLLM_SEPARATE)
#error "define NANOVLLM_SEPARATE for every file, or leave nanovllm/implementation.hpp out"
#endif

#if !defined(NANOVLLM_COMPILED_POLICIES)
#if defined(NANOVLLM_BODIES)
#error "nanovllm/implementation.hpp must be the first include of its file"
#endif
#define NANOVLLM_BODIES 1
#define NANOVLLM_COMPILE_TEMPLATES
#define NANOVLLM_COMPILED_CORE
#define NANOVLLM_COMPILED_SHAPES NANOVLLM_SHAPES
#define NANOVLLM_COMPILED_POLICIES NANOVLLM_POLICIES
#include "nanovllm/nanovllm.hpp"
#endif

#include <memory>
#include <tuple>
#include <utility>

#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/compiled.hpp"
#include "nanovllm/engine/core.hpp"
#include "nanovllm/engine/engine_body.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/engine_inside.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/any/registry.hpp"

namespace nanovllm {

template <class Model, class Policy>
std::unique_ptr<EngineOf<ConfigOf<Model>>> detail::make_compiled_body(const ShapeOf<Model>& shape,
                                                                      EngineConfig config) {
  auto engine = make_engine_body<Model, Policy>(shape, std::move(config));
  engine->set_inside_maker(&BodyMaker<Model, Policy>::make_inside);
  return engine;
}
template <class Model, class Policy>
std::unique_ptr<EngineOf<ConfigOf<Model>>> detail::make_compiled_body(const ShapeOf<Model>& shape,
                                                                      const ConfigOf<Model>& model,
                                                                      RandomWeights weights,
                                                                      EngineConfig config) {
  auto engine = make_engine_body<Model, Policy>(shape, model, weights, std::move(config));
  engine->set_inside_maker(&BodyMaker<Model, Policy>::make_inside);
  return engine;
}

template <class Model, class Policy>
std::unique_ptr<StepRunner> CompiledRunnerMaker<Model, Policy>::make(const ConfigOf<Model>& model,
                                                                     const RunnerSetup& setup) {
  return RunnerMaker<Model, RunnerPolicyOf<Policy>>::make(model, setup);
}
template <class Model, class Policy>
BackendTraits CompiledRunnerMaker<Model, Policy>::traits() {
  return RunnerMaker<Model, RunnerPolicyOf<Policy>>::traits();
}

namespace detail {

/// An instance of this has everything of the engines of all these models and policies.
template <class List, class... Policies>
struct CompiledEngines;
template <class... List, class... Policies>
struct CompiledEngines<Models<List...>, Policies...> {
  template <class Model, class Policy>
  static auto one() {
    using Body = std::unique_ptr<EngineOf<ConfigOf<Model>>>;
    using Shape = ShapeOf<Model>;
    using Load = Body (*)(const Shape&, EngineConfig);
    using LoadNoise = Body (*)(const Shape&, const ConfigOf<Model>&, RandomWeights, EngineConfig);
    return std::tuple(
        Load(&make_compiled_body<Model, Policy>), LoadNoise(&make_compiled_body<Model, Policy>),
        &CompiledRunnerMaker<Model, Policy>::make, &CompiledRunnerMaker<Model, Policy>::traits);
  }
  template <class Model>
  static auto of_model() {
    return std::tuple(one<CompiledModel<Model, Policies>, Policies>()...);
  }
  static auto all() { return std::tuple(of_model<List>()...); }
};

namespace compiled_here {

using namespace shapes;
using List = ModelsOf<NANOVLLM_COMPILED_SHAPES>;

}  // namespace compiled_here

template struct CompiledEngines<compiled_here::List, NANOVLLM_COMPILED_POLICIES>;

}  // namespace detail

#if defined(NANOVLLM_COMPILED_CORE)
template class EngineCore<DefaultPolicy::Scheduling, BlocksOf<DefaultPolicy>,
                          DefaultPolicy::Preemption>;
template class EngineInsideOf<
    EngineCore<DefaultPolicy::Scheduling, BlocksOf<DefaultPolicy>, DefaultPolicy::Preemption>>;
#endif

}  // namespace nanovllm
