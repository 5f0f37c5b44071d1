#pragma once
/// What an engine offers besides text: embeddings of texts, and scores of documents.
///
/// ```cpp
/// const auto vectors = engine.embed({"The king died.", "A queen was born."});
/// const auto scores = engine.score("Who died?", {"The king died.", "A queen was born."});
/// ```

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/pooling/embedding.hpp"
#include "nanovllm/engine/pooling/reranker.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"

namespace nanovllm {

/// The part of an `Engine` that embeds and scores. Both are ordinary requests, in one batch with
/// all others; their blocks stay in the prefix cache as far as that keeps them. Every member may be
/// called from any thread at any time. If an input cannot be served, a call throws RequestError
/// that names the first of them, when all have ended.
///
/// @tparam Engine  derives from this, and has `generate`, `encode` and `tokenizer`.
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

  /// How well each document answers the query, in [0, 1], by the template and the answers of
  /// Qwen3-Reranker. Throws RequestError if the tokeniser has no token "yes" or "no", ConfigError
  /// if there is no tokeniser.
  template <RangeOf<std::string_view> Documents>
  std::vector<float> score(std::string_view query, const Documents& documents,
                           const ScoreOptions& options = {}) {
    const Reranker reranker(self().tokenizer(), options);
    std::vector<Prompt> prompts;
    for (const std::string_view document : documents)
      prompts.emplace_back(reranker.prompt(query, document));
    std::vector<float> scores;
    for (const Output& output : serve(prompts, reranker.params(), "score: document "))
      scores.push_back(reranker.score(output.logprobs.front()));
    return scores;
  }
  std::vector<float> score(std::string_view query,
                           std::initializer_list<std::string_view> documents,
                           const ScoreOptions& options = {}) {
    return score(query, std::vector<std::string_view>(documents), options);
  }

 protected:
  Pooling() = default;
  ~Pooling() = default;

 private:
  Engine& self() { return static_cast<Engine&>(*this); }

  std::vector<std::vector<float>> embed_all(std::vector<Prompt> inputs,
                                            const EmbedOptions& options) {
    if (options.max_prompt_tokens) {
      for (Prompt& input : inputs) cut(input, *options.max_prompt_tokens);
    }
    std::vector<std::vector<float>> vectors;
    for (Output& output : serve(inputs, embedding_params(options), "embed: input "))
      vectors.push_back(std::move(output.pooled));
    return vectors;
  }

  /// Replaces `input` by its last tokens, at most `most`, behind and before those that the
  /// tokeniser adds to it.
  void cut(Prompt& input, std::size_t most) {
    SequenceTemplate added;
    const auto* text = std::get_if<std::string>(&input);
    if (text != nullptr) added = self().tokenizer().sequence_template();
    check<RequestError>(most >= added.size() + 1, "embed: max_prompt_tokens must be at least ",
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
