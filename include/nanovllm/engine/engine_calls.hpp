#pragma once
/// What `Engine` and `AnyEngine` both offer on top of `AnyEngine::generate_each`.

#include <concepts>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"

namespace nanovllm {

/// @tparam Self  derives from this, and has `AnyEngine& any()`.
template <class Self>
class EngineCalls {
 public:
  /// Serves one prompt. As below, what cannot be served is an output with an error.
  Output generate(const Prompt& prompt, const SamplingParams& params = {}) {
    return std::move(any().generate_each(std::span(&prompt, 1), std::span(&params, 1)).front());
  }

  /// Serves all `prompts` and returns their outputs in the same order. A prompt that cannot be
  /// served fails alone: its output has finish_reason `error` and the reason. If this throws,
  /// its requests are taken back.
  template <RangeOf<Prompt> Prompts>
  std::vector<Output> generate(const Prompts& prompts, const SamplingParams& params = {}) {
    return any().generate_each(list_of(prompts), std::span(&params, 1));
  }
  std::vector<Output> generate(std::initializer_list<Prompt> prompts,
                               const SamplingParams& params = {}) {
    return any().generate_each(prompts, std::span(&params, 1));
  }

  /// The same with settings for every prompt. Throws RequestError when their numbers differ.
  template <RangeOf<Prompt> Prompts, std::convertible_to<std::span<const SamplingParams>> Params>
  std::vector<Output> generate(const Prompts& prompts, const Params& params) {
    const std::vector<Prompt> list = list_of(prompts);
    const std::span<const SamplingParams> settings(params);
    check<RequestError>(settings.size() == list.size(), "generate: ", list.size(),
                        " prompts need as many SamplingParams, got ", settings.size());
    return any().generate_each(list, settings);
  }

  // ---- Embeddings, scores, labels ----
  // All are ordinary requests, in one batch with all others; their blocks stay in the prefix cache
  // as far as that keeps them. If an input cannot be served, a call throws RequestError that names
  // the first of them, when all have ended.

  /// The embedding of each input, [dimensions or hidden_size]: the hidden state after the last
  /// norm at the last token. A text gets the tokens that the tokeniser adds to a text
  /// (`Tokenizer::encode_with_template`). Throws ConfigError if `dimensions` is 0.
  template <RangeOf<Prompt> Prompts>
  std::vector<std::vector<float>> embed(const Prompts& inputs, const EmbedOptions& options = {}) {
    return any().embed_each(list_of(inputs), options);
  }
  std::vector<std::vector<float>> embed(std::initializer_list<Prompt> inputs,
                                        const EmbedOptions& options = {}) {
    return any().embed_each(inputs, options);
  }
  std::vector<float> embed(const Prompt& input, const EmbedOptions& options = {}) {
    return std::move(any().embed_each({input}, options).front());
  }

  /// How well each document answers the query, in [0, 1], by the template of Qwen3-Reranker, and by
  /// its answers or the score head of the checkpoint. Throws RequestError if the tokeniser has no
  /// token "yes" or "no", or if the head has several labels; ConfigError if there is no tokeniser.
  template <RangeOf<std::string_view> Documents>
  std::vector<float> score(std::string_view query, const Documents& documents,
                           const ScoreOptions& options = {}) {
    return any().score_each(query, {std::begin(documents), std::end(documents)}, options);
  }
  std::vector<float> score(std::string_view query,
                           std::initializer_list<std::string_view> documents,
                           const ScoreOptions& options = {}) {
    return any().score_each(query, documents, options);
  }

  /// What the score head of the checkpoint says of each input, [num_labels]. A text is encoded as
  /// for `embed`. Throws RequestError if the checkpoint has no score head.
  template <RangeOf<Prompt> Prompts>
  std::vector<std::vector<float>> classify(const Prompts& inputs,
                                           const ClassifyOptions& options = {}) {
    return any().classify_each(list_of(inputs), options);
  }
  std::vector<std::vector<float>> classify(std::initializer_list<Prompt> inputs,
                                           const ClassifyOptions& options = {}) {
    return any().classify_each(inputs, options);
  }

 protected:
  EngineCalls() = default;
  ~EngineCalls() = default;

 private:
  auto& any() { return static_cast<Self&>(*this).any(); }

  template <class Prompts>
  static std::vector<Prompt> list_of(const Prompts& prompts) {
    return std::vector<Prompt>(std::begin(prompts), std::end(prompts));
  }
};

}  // namespace nanovllm
