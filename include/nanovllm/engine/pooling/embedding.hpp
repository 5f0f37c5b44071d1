#pragma once
/// Requests for embeddings, and the form of queries that Qwen3-Embedding was trained with.

#include <memory>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/pooling/pooling_options.hpp"
#include "nanovllm/sampling/pooler.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

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

/// A query for Qwen3-Embedding: the task in a sentence, then the query; there is no space between
/// "Query:" and the query. Documents are embedded as they are.
[[nodiscard]] inline std::string embedding_query(std::string_view task, std::string_view query) {
  return concat("Instruct: ", task, "\nQuery:", query);
}

}  // namespace nanovllm
