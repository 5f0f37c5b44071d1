#pragma once
/// Requests for embeddings.

#include <memory>

#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/pooling/pooler.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"

namespace nanovllm {

/// The request that gives the embedding of a prompt as `Output::pooled`. Throws ConfigError if
/// `dimensions` is 0.
[[nodiscard]] inline SamplingParams embedding_params(const EmbedOptions& options) {
  SamplingParams params;
  params.repetition_penalty = 1;  // the checkpoint's own would cost time, and nothing is drawn
  params.priority = options.priority;
  params.pooler = std::make_shared<LastTokenPooler>(options.normalize, options.dimensions);
  return params;
}

}  // namespace nanovllm
