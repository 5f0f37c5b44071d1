#pragma once
/// From a checkpoint to the model that runs it, of those that a program was built for.
///
/// ```cpp
/// using MyModels = ModelsOf<shapes::qwen3_8b, shapes::gpt2_any>;
/// const std::unique_ptr<AnyEngine> any = make_engine<MyModels>({.model = "Qwen3-8B"});
/// ```
///
/// with/any/make_engine.hpp makes the engine, with/any/all_models.hpp has the list of all models.

#include <array>
#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/model_name.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/shape.hpp"

namespace nanovllm {

/// A model that is found by what config.json says: its `kFamily`, and where it takes only some
/// configs of that family, `mismatch(config)`, which says why not, or is empty.
template <class M>
concept FoundModel = ModelLike<M> && requires {
  ModelFamily(M::kFamily);
};

/// Whether `M` can run on a backend with these elements: `M::kRunsOn<Elements, Backend>`, or that
/// it runs on all. A model with `kRunsOn` runs on no backend that is only declared.
template <FoundModel M, class Elements, class Backend>
[[nodiscard]] consteval bool runs_on() {
  if constexpr (requires { bool(M::template kRunsOn<Elements, Backend>); })
    return M::template kRunsOn<Elements, Backend>;
  return true;
}

/// The models that a program was built for, in the order in which they are tried. Each costs the
/// compile time of an engine for each policy.
template <FoundModel... M>
struct Models {};

/// The models of these shapes, of any families. In a .cu file write `Models<Qwen3<kShape>, …>`:
/// nvcc 13.0 cannot name this list in the host's part of a program.
template <auto... kShapes>
using ModelsOf = Models<ModelOf<kShapes>...>;

namespace detail {

template <class... Lists>
struct JoinedLists;
template <class... A>
struct JoinedLists<Models<A...>> {
  using type = Models<A...>;
};
template <class... A, class... B, class... Rest>
struct JoinedLists<Models<A...>, Models<B...>, Rest...> : JoinedLists<Models<A..., B...>, Rest...> {
};

}  // namespace detail

/// The models of several lists, those of the first ahead.
template <class... Lists>
using JoinedModels = typename detail::JoinedLists<Lists...>::type;

namespace detail {

/// Throws UnsupportedModelError.
/// @param mismatches  one for each model of the family that was tried; empty if there is none.
[[noreturn]] void refuse_model(const ModelName& name, std::span<const ModelFamily> families,
                               std::span<const std::string> mismatches);

/// Throws UnsupportedModelError for a checkpoint of a model that `backend` cannot run.
[[noreturn]] void refuse_backend(const Checkpoint& checkpoint, const ModelFamily& family,
                                 std::string_view backend);

/// Why `M` does not take this checkpoint of its family; empty if it does.
template <class M>
[[nodiscard]] std::string mismatch_of(const Checkpoint& checkpoint) {
  if constexpr (requires(const typename M::Config& config) {
                  { M::mismatch(config) } -> std::convertible_to<std::string>;
                }) {
    return M::mismatch(M::Config::load(checkpoint));
  } else {
    return {};
  }
}

template <class Use, class... M>
void with_model(Models<M...>, const Checkpoint& checkpoint, Use& use) {
  constexpr std::array<ModelFamily, sizeof...(M)> kFamilies = {M::kFamily...};
  const ModelName name = read_model_name(checkpoint);
  std::vector<std::string> mismatches;
  [[maybe_unused]] const auto is_used = [&]<class Model>() {
    if (!name.is_of(Model::kFamily)) return false;
    std::string mismatch = mismatch_of<Model>(checkpoint);
    if (!mismatch.empty()) {
      mismatches.push_back(std::move(mismatch));
      return false;
    }
    use.template operator()<Model>();
    return true;
  };
  if (!(is_used.template operator()<M>() || ...)) refuse_model(name, kFamilies, mismatches);
}

}  // namespace detail

/// Calls `use.template operator()<Model>()` for the first model of `List`, a `Models`, that the
/// checkpoint is of. Throws UnsupportedModelError, which names what came and what there is, when
/// there is none; LoadError or ConfigError when config.json is not as it should be.
template <class List, class Use>
void with_model(const Checkpoint& checkpoint, Use&& use) {
  detail::with_model(List{}, checkpoint, use);
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm::detail {

NANOVLLM_INLINE void refuse_model(const ModelName& name, std::span<const ModelFamily> families,
                                  std::span<const std::string> mismatches) {
  std::string text = concat(name.source, ": ");
  if (!mismatches.empty()) {
    text += "this program was not built for a model of these sizes";
    for (const std::string& mismatch : mismatches) text += concat("\n  - ", mismatch);
    throw UnsupportedModelError(text);
  }
  if (!name.model_type.empty())
    text += concat("'model_type' is ", shown(Json(name.model_type)), ", ");
  for (const std::string& architecture : name.architectures)
    text += concat("'architectures' has ", shown(Json(architecture)), ", ");
  text += "but this program was built for ";
  std::vector<std::string_view> listed;
  for (const ModelFamily& family : families) {
    if (std::find(listed.begin(), listed.end(), family.model_type) != listed.end()) continue;
    text += concat(listed.empty() ? "" : ", ", family.model_type, " (", family.architecture, ")");
    listed.push_back(family.model_type);
  }
  if (listed.empty()) throw UnsupportedModelError(text + "no model");
  throw UnsupportedModelError(text + "; docs/adding_a_model.md says how it takes others");
}

NANOVLLM_INLINE void refuse_backend(const Checkpoint& checkpoint, const ModelFamily& family,
                                    std::string_view backend) {
  throw UnsupportedModelError(concat(checkpoint.path_of("config.json"), ": this is of ",
                                     family.model_type, " (", family.architecture, "), and ",
                                     backend, " lacks operations that it needs"));
}

}  // namespace nanovllm::detail

#endif  // NANOVLLM_BODIES
