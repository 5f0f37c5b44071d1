#pragma once
/// The head of a checkpoint for classification, for those who know none.

#include <cstdint>
#include <memory>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"

namespace nanovllm {

class ScoreHead;

namespace detail {

/// `ScoreHead::load`.
[[nodiscard]] std::shared_ptr<const ScoreHead> load_score_head(const Checkpoint& checkpoint,
                                                               std::int64_t hidden_size);
NANOVLLM_DOOR(load_score_head);

}  // namespace detail

/// The head of `checkpoint`, which is null for weights of noise; null if the model has another, or
/// none.
template <class Config>
[[nodiscard]] std::shared_ptr<const ScoreHead> score_head_of(const Config& config,
                                                             const Checkpoint* checkpoint) {
  if constexpr (requires { config.head, config.hidden_size; }) {
    if (checkpoint != nullptr && head_of(config) == ModelHead::labels)
      return detail::through<LoadError>(detail::load_score_head_door, detail::kPoolingPart, "'",
                                        checkpoint->name(), "', which is of a classifier,")(
          *checkpoint, config.hidden_size);
  }
  return nullptr;
}

}  // namespace nanovllm
