#pragma once
/// Picks, for a checkpoint, the model type whose shape is fixed at compile time where one fits, and
/// the one that reads its sizes from config.json otherwise.

#include <filesystem>
#include <utility>

#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"

namespace nanovllm::examples {

/// Calls `use.template operator()<Model>()` for the first of `kShapes` that matches `config`, else
/// for `Qwen3<shapes::qwen3_any>`.
template <Qwen3Shape... kShapes, class Use>
auto with_model(const Qwen3Config& config, Use&& use) {
  using Result = decltype(use.template operator()<Qwen3<shapes::qwen3_any>>());
  Result result{};
  const bool found =
      ((matches<kShapes>(config) && (result = use.template operator()<Qwen3<kShapes>>(), true)) ||
       ...);
  return found ? result : use.template operator()<Qwen3<shapes::qwen3_any>>();
}

}  // namespace nanovllm::examples
