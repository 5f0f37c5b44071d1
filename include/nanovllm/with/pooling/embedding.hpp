#pragma once
/// Settings of `embed`, `score` and `classify`, the form of queries that Qwen3-Embedding was
/// trained with, and requests for embeddings.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

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

/// The hidden state itself: an embedding of the prompt.
class LastTokenPooler : public Pooler {
 public:
  /// @param normalize   whether to scale the vector to length 1.
  /// @param dimensions  how many of its first elements to keep, before it is scaled; unset: all.
  ///                    Throws ConfigError if that is 0.
  explicit LastTokenPooler(bool normalize = true, std::optional<std::size_t> dimensions = {})
      : normalize_(normalize), dimensions_(dimensions) {
    check<ConfigError>(dimensions != 0, "pooler: dimensions must be >= 1, got 0");
  }

  /// Throws RequestError if the network has fewer dimensions than are to be kept.
  [[nodiscard]] std::vector<float> pool(std::span<const float> hidden) const override {
    const std::size_t size = dimensions_.value_or(hidden.size());
    check<RequestError>(size <= hidden.size(), "pooler: dimensions must be at most ", hidden.size(),
                        ", got ", size);
    std::vector<float> out(hidden.begin(), hidden.begin() + static_cast<std::ptrdiff_t>(size));
    if (!normalize_) return out;
    double sum = 0;
    for (const float x : out) sum += double{x} * x;
    const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (float& x : out) x = static_cast<float>(x * scale);
    return out;
  }

 private:
  bool normalize_;
  std::optional<std::size_t> dimensions_;
};

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
