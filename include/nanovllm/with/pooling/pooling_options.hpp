#pragma once
/// Settings of `embed`, `score` and `classify`, and the form of queries that
/// Qwen3-Embedding was trained with.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// How embeddings are made.
struct EmbedOptions {
  bool normalize = true;  ///< scale each vector to length 1
  /// How many elements of a vector to keep, its first ones, before it is scaled; unset: all.
  std::optional<std::size_t> dimensions{};
  /// Of an input with more tokens, those that the tokeniser adds included, the last ones are kept.
  /// Unset: an input that does not fit into the model's context is refused.
  std::optional<std::size_t> max_prompt_tokens{};
  std::int32_t priority = 0;  ///< as SamplingParams has it
};

/// A query for Qwen3-Embedding: the task in a sentence, then the query; there is no space between
/// "Query:" and the query. Documents are embedded as they are.
[[nodiscard]] inline std::string embedding_query(std::string_view task, std::string_view query) {
  return concat("Instruct: ", task, "\nQuery:", query);
}

/// How documents are scored.
struct ScoreOptions {
  /// The task in a sentence.
  std::string instruction =
      "Given a web search query, retrieve relevant passages that answer the query";
  /// The answers, unless the checkpoint has a score head; unset: the tokens "yes" and "no".
  std::optional<TokenId> yes{}, no{};
  /// Of a longer prompt the end of the document is cut off. Unset: it is refused if it does not fit
  /// into the model's context.
  std::optional<std::size_t> max_prompt_tokens{};
  /// Of a document of more tokens the end is cut off. Unset: none is.
  std::optional<std::size_t> max_tokens_per_doc{};
  std::int32_t priority = 0;  ///< as SamplingParams has it
};

/// How inputs are classified.
struct ClassifyOptions {
  bool activate = true;  ///< give probabilities (`label_probabilities`), not logits
  std::optional<std::size_t> max_prompt_tokens{};  ///< as EmbedOptions has it
  std::int32_t priority = 0;                       ///< as SamplingParams has it
};

}  // namespace nanovllm
