#pragma once
/// Which engines a library has compiled, and how a program comes by its engine.
///
/// - Without NANOVLLM_SEPARATE the library is header-only: all is compiled in the program.
/// - With it, the engines of NANOVLLM_SHAPES and NANOVLLM_POLICIES are linked. Any other is
///   compiled in the program, which includes policy.hpp for it.
///
/// On the CPU one engine serves all sizes of a family: no kernel names them (`kReadsHeadShape`), so
/// a shape in the list stands for its family. What config.json says is compared with the shape that
/// the program names before anything is allocated.
///
/// A program and its library have the same two lists; the targets of CMake see to that.

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/shape.hpp"

/// Shapes, of namespace `shapes`, whose families' engines are compiled.
#if !defined(NANOVLLM_SHAPES)
#define NANOVLLM_SHAPES qwen3_any, gpt2_any
#endif
/// Policies, of namespace nanovllm, that they are compiled for.
#if !defined(NANOVLLM_POLICIES)
#define NANOVLLM_POLICIES DefaultPolicy
#endif
// Where a library has engines for GPUs, its target defines NANOVLLM_CUDA_SHAPES and
// NANOVLLM_CUDA_POLICIES, too.

// The text of a list. By its names, a family that is not included here may be in it.
#define NANOVLLM_DETAIL_TEXT(...) NANOVLLM_DETAIL_TEXT_OF(__VA_ARGS__)
#define NANOVLLM_DETAIL_TEXT_OF(...) #__VA_ARGS__

namespace nanovllm {

namespace detail {

template <class Policy, class... Policies>
inline constexpr bool kIsOneOf = (std::is_same_v<Policy, Policies> || ...);

/// Whether a library has compiled the engine of this very model for GPUs.
template <class Model, class Policy>
[[nodiscard]] consteval bool is_compiled_for_cuda() {
#if defined(NANOVLLM_SEPARATE) && defined(NANOVLLM_CUDA_POLICIES)
  return is_model_of<Model>(NANOVLLM_DETAIL_TEXT(NANOVLLM_CUDA_SHAPES)) &&
         kIsOneOf<Policy, NANOVLLM_CUDA_POLICIES>;
#else
  return false;
#endif
}

}  // namespace detail

/// What computes the steps of an engine. engine/runner_maker.hpp defines it.
template <class Model, class Policy>
struct RunnerMaker;

/// Whether a library has compiled this engine.
template <class Model, class Policy>
[[nodiscard]] consteval bool is_compiled() {
#if defined(NANOVLLM_SEPARATE)
  return detail::is_compiled_for_cuda<Model, Policy>() ||
         (detail::is_of_family<Model>(NANOVLLM_DETAIL_TEXT(NANOVLLM_SHAPES)) &&
          detail::kIsOneOf<Policy, NANOVLLM_POLICIES>);
#else
  return false;
#endif
}

/// Of an engine that is compiled, the model that it is compiled from.
template <class Model, class Policy>
using CompiledModel =
    std::conditional_t<detail::is_compiled_for_cuda<Model, Policy>(), Model, AnySizeOf<Model>>;

namespace detail {

/// Throws ConfigError where `config` is not of `shape`, that of a model or null.
template <class Shape, class Config>
void check_shape(const Shape& shape, const Config& config) {
  if constexpr (!std::is_same_v<Shape, std::nullptr_t>)
    shape_differences(shape, shape_of(config)).raise();
}

/// Whether a type is more than declared.
template <class T>
inline constexpr bool kIsWhole = requires {
  sizeof(T);
};

/// `make` makes an engine, and `make_inside` its inside. engine/engine_body.hpp defines it.
template <class Model, class Policy>
struct BodyMaker;

// Of an engine that is compiled: in the library. `shape` is that of the program's model.
template <class Model, class Policy>
std::unique_ptr<EngineOf<ConfigOf<Model>>> make_compiled_body(const ShapeOf<Model>& shape,
                                                              EngineConfig config);
template <class Model, class Policy>
std::unique_ptr<EngineOf<ConfigOf<Model>>> make_compiled_body(const ShapeOf<Model>& shape,
                                                              const ConfigOf<Model>& model,
                                                              RandomWeights weights,
                                                              EngineConfig config);

/// That this file can compile the engine; a compile error that says what to write if not.
template <class Model, class Policy>
[[nodiscard]] consteval bool has_bodies() {
  static_assert(kIsWhole<BodyMaker<Model, Policy>>,
                "nanovllm: no library here has compiled this engine. '#include "
                "<nanovllm/policy.hpp>' compiles it in this file, one for a GPU in a .cu file; "
                "or add its shape and policy to NANOVLLM_SHAPES and NANOVLLM_POLICIES. See "
                "docs/building.md");
  static_assert(kIsWhole<Model>,
                "nanovllm: this model is only declared here. The face of its folder defines it: "
                "of a model in with/NAME/, '#include <nanovllm/with/NAME.hpp>'");
  return kIsWhole<BodyMaker<Model, Policy>> && kIsWhole<Model>;
}

/// The engine of these arguments, linked or compiled here.
template <class Model, class Policy, class... Arguments>
[[nodiscard]] std::unique_ptr<EngineOf<ConfigOf<Model>>> body_of(Arguments&&... arguments) {
  if constexpr (is_compiled<Model, Policy>()) {
    return make_compiled_body<CompiledModel<Model, Policy>, Policy>(
        ModelTraits<Model>::kShape, std::forward<Arguments>(arguments)...);
  } else if constexpr (has_bodies<Model, Policy>()) {
    return BodyMaker<Model, Policy>::make(std::forward<Arguments>(arguments)...);
  }
}

/// Has the inside of `engine`, which is of this model and policy, compiled or linked.
template <class Model, class Policy>
void open_inside(EngineOf<ConfigOf<Model>>& engine) {
  if constexpr (!is_compiled<Model, Policy>()) {
    if constexpr (has_bodies<Model, Policy>())
      engine.set_inside_maker(&BodyMaker<Model, Policy>::make_inside);
  }
}

}  // namespace detail

}  // namespace nanovllm
