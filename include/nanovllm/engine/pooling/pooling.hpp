#pragma once
/// What an engine offers besides text: embeddings of texts, scores of documents, and labels.
///
/// ```cpp
/// const auto vectors = engine.embed({"The king died.", "A queen was born."});
/// const auto scores = engine.score("Who died?", {"The king died.", "A queen was born."});
/// ```

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/pooling/embedding.hpp"
#include "nanovllm/engine/pooling/reranker.hpp"
#include "nanovllm/engine/pooling/score_head.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"

namespace nanovllm {

/// How inputs are classified.
struct ClassifyOptions {
  bool activate = true;  ///< give probabilities (`label_probabilities`), not logits
  std::optional<std::size_t> max_prompt_tokens{};  ///< as EmbedOptions has it
  std::int32_t priority = 0;                       ///< as SamplingParams has it
};

/// The part of an `Engine` that embeds and scores. Both are ordinary requests, in one batch with
/// all others; their blocks stay in the prefix cache as far as that keeps them. Every member may be
/// called from any thread at any time. If an input cannot be served, a call throws RequestError
/// that names the first of them, when all have ended.
///
/// @tparam Engine  derives from this, and has `generate`, `encode`, `tokenizer` and `score_head`.
template <class Engine>
class Pooling {
 public:
  /// The embedding of each input, [dimensions or hidden_size]: the hidden state behind the last
  /// norm at the last token. A text gets the tokens that the tokeniser adds to a text
  /// (`Tokenizer::encode_with_template`). Throws ConfigError if `dimensions` is 0.
  template <RangeOf<Prompt> Prompts>
  std::vector<std::vector<float>> embed(const Prompts& inputs, const EmbedOptions& options = {}) {
    return embed_all(std::vector<Prompt>(std::begin(inputs), std::end(inputs)), options);
  }
  std::vector<std::vector<float>> embed(std::initializer_list<Prompt> inputs,
                                        const EmbedOptions& options = {}) {
    return embed_all(inputs, options);
  }
  std::vector<float> embed(const Prompt& input, const EmbedOptions& options = {}) {
    return std::move(embed_all({input}, options).front());
  }

  /// How well each document answers the query, in [0, 1], by the template of Qwen3-Reranker, and by
  /// its answers or the score head of the checkpoint. Throws RequestError if the tokeniser has no
  /// token "yes" or "no", or if the head has several labels; ConfigError if there is no tokeniser.
  template <RangeOf<std::string_view> Documents>
  std::vector<float> score(std::string_view query, const Documents& documents,
                           const ScoreOptions& options = {}) {
    const Reranker reranker(self().tokenizer(), options, self().score_head());
    std::vector<Prompt> prompts;
    for (const std::string_view document : documents)
      prompts.emplace_back(reranker.prompt(query, document));
    std::vector<float> scores;
    for (const Output& output : serve(prompts, reranker.params(), "score: document "))
      scores.push_back(reranker.score_of(output));
    return scores;
  }
  std::vector<float> score(std::string_view query,
                           std::initializer_list<std::string_view> documents,
                           const ScoreOptions& options = {}) {
    return score(query, std::vector<std::string_view>(documents), options);
  }

  /// What the score head of the checkpoint says of each input, [num_labels]. A text is encoded as
  /// for `embed`. Throws RequestError if the checkpoint has no score head.
  template <RangeOf<Prompt> Prompts>
  std::vector<std::vector<float>> classify(const Prompts& inputs,
                                           const ClassifyOptions& options = {}) {
    return classify_all(std::vector<Prompt>(std::begin(inputs), std::end(inputs)), options);
  }
  std::vector<std::vector<float>> classify(std::initializer_list<Prompt> inputs,
                                           const ClassifyOptions& options = {}) {
    return classify_all(inputs, options);
  }

 protected:
  Pooling() = default;
  ~Pooling() = default;

 private:
  Engine& self() { return static_cast<Engine&>(*this); }

  std::vector<std::vector<float>> embed_all(std::vector<Prompt> inputs,
                                            const EmbedOptions& options) {
    cut(inputs, options.max_prompt_tokens, "embed");
    std::vector<std::vector<float>> vectors;
    for (Output& output : serve(inputs, embedding_params(options), "embed: input "))
      vectors.push_back(std::move(output.pooled));
    return vectors;
  }

  std::vector<std::vector<float>> classify_all(std::vector<Prompt> inputs,
                                               const ClassifyOptions& options) {
    check<RequestError>(self().score_head() != nullptr,
                        "classify: the checkpoint has no score head, as "
                        "'Qwen3ForSequenceClassification' has");
    cut(inputs, options.max_prompt_tokens, "classify");
    SamplingParams params;
    params.repetition_penalty = 1;  // instead of the checkpoint's own
    params.priority = options.priority;
    params.pooler = self().score_head();
    std::vector<std::vector<float>> labels;
    for (Output& output : serve(inputs, params, "classify: input ")) {
      labels.push_back(options.activate ? label_probabilities(output.pooled)
                                        : std::move(output.pooled));
    }
    return labels;
  }

  void cut(std::vector<Prompt>& inputs, std::optional<std::size_t> most, const char* what) {
    if (!most) return;
    for (Prompt& input : inputs) cut(input, *most, what);
  }

  /// Replaces `input` by its last tokens, at most `most`, behind and before those that the
  /// tokeniser adds to it.
  void cut(Prompt& input, std::size_t most, const char* what) {
    SequenceTemplate added;
    const auto* text = std::get_if<std::string>(&input);
    if (text != nullptr) added = self().tokenizer().sequence_template();
    check<RequestError>(most >= added.size() + 1, what, ": max_prompt_tokens must be at least ",
                        added.size() + 1, ", got ", most);
    std::vector<TokenId> tokens =
        text != nullptr ? self().tokenizer().encode(*text) : self().encode(input);
    std::string salt = std::move(input.cache_salt);
    input = Prompt(added.wrap(std::move(tokens), most));
    input.cache_salt = std::move(salt);
  }

  std::vector<Output> serve(const std::vector<Prompt>& prompts, const SamplingParams& params,
                            const char* what) {
    std::vector<Output> outputs = self().generate(prompts, params);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const FinishReason reason = outputs[i].finish_reason;
      const bool is_served = reason == FinishReason::stop || reason == FinishReason::length;
      check<RequestError>(is_served, what, i, ": ",
                          outputs[i].error.empty() ? "it was aborted" : outputs[i].error);
    }
    return outputs;
  }
};

}  // namespace nanovllm
