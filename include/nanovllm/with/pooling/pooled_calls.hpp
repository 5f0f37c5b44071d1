#pragma once
/// `embed`, `score` and `classify`.
///
/// ```cpp
/// auto vectors = nanovllm::embed(engine, {"The king died.", "A queen was born."});
/// ```
///
/// Each input is an ordinary request, in one batch with all others; its blocks stay in the prefix
/// cache as far as that keeps them. If one cannot be served, a call throws RequestError that names
/// the first of them, when all have ended. Any thread may call, and callbacks may.

#include <initializer_list>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/score_head.hpp"

namespace nanovllm {

namespace detail {

[[nodiscard]] std::vector<std::vector<float>> embed_inputs(AnyEngine& engine,
                                                           std::vector<Prompt> inputs,
                                                           const EmbedOptions& options);
[[nodiscard]] std::vector<float> score_documents(AnyEngine& engine, std::string_view query,
                                                 const std::vector<std::string_view>& documents,
                                                 const ScoreOptions& options);
[[nodiscard]] std::vector<std::vector<float>> classify_inputs(AnyEngine& engine,
                                                              std::vector<Prompt> inputs,
                                                              const ClassifyOptions& options);

}  // namespace detail

/// The embedding of each input, [dimensions or hidden_size]: the hidden state after the last norm
/// at the last token. A text gets the tokens that the tokeniser adds to a text
/// (`Tokenizer::encode_with_template`). Throws ConfigError if `dimensions` is 0.
template <RangeOf<Prompt> Prompts>
std::vector<std::vector<float>> embed(AnyEngine& engine, const Prompts& inputs,
                                      const EmbedOptions& options = {}) {
  return detail::embed_inputs(engine, {std::begin(inputs), std::end(inputs)}, options);
}
inline std::vector<std::vector<float>> embed(AnyEngine& engine,
                                             std::initializer_list<Prompt> inputs,
                                             const EmbedOptions& options = {}) {
  return detail::embed_inputs(engine, inputs, options);
}
inline std::vector<float> embed(AnyEngine& engine, const Prompt& input,
                                const EmbedOptions& options = {}) {
  return std::move(detail::embed_inputs(engine, {input}, options).front());
}

/// How well each document answers the query, in [0, 1], by the template of Qwen3-Reranker, and by
/// its answers or the score head of the checkpoint. Throws RequestError if the tokeniser has no
/// token "yes" or "no", or if the head has several labels; ConfigError if there is no tokeniser.
template <RangeOf<std::string_view> Documents>
std::vector<float> score(AnyEngine& engine, std::string_view query, const Documents& documents,
                         const ScoreOptions& options = {}) {
  return detail::score_documents(engine, query, {std::begin(documents), std::end(documents)},
                                 options);
}
inline std::vector<float> score(AnyEngine& engine, std::string_view query,
                                std::initializer_list<std::string_view> documents,
                                const ScoreOptions& options = {}) {
  return detail::score_documents(engine, query, documents, options);
}

/// What the score head of the checkpoint says of each input, [num_labels]. A text is encoded as for
/// `embed`. Throws RequestError if the checkpoint has no score head.
template <RangeOf<Prompt> Prompts>
std::vector<std::vector<float>> classify(AnyEngine& engine, const Prompts& inputs,
                                         const ClassifyOptions& options = {}) {
  return detail::classify_inputs(engine, {std::begin(inputs), std::end(inputs)}, options);
}
inline std::vector<std::vector<float>> classify(AnyEngine& engine,
                                                std::initializer_list<Prompt> inputs,
                                                const ClassifyOptions& options = {}) {
  return detail::classify_inputs(engine, inputs, options);
}

/// The head of a checkpoint for classification, or null.
[[nodiscard]] std::shared_ptr<const ScoreHead> score_head(const AnyEngine& engine);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/setup.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/pooling/reranker.hpp"

namespace nanovllm {

namespace detail {

/// Replaces each input by its last tokens, at most `most`, after and before those that the
/// tokeniser adds to it.
NANOVLLM_INLINE void cut_inputs(const AnyEngine& engine, std::vector<Prompt>& inputs,
                                std::optional<std::size_t> most, const char* what) {
  if (!most) return;
  for (Prompt& input : inputs) {
    SequenceTemplate added;
    const auto* const text = std::get_if<std::string>(&input);
    if (text != nullptr) added = engine.tokenizer().sequence_template();
    check<RequestError>(*most >= added.size() + 1, what, ": max_prompt_tokens must be at least ",
                        added.size() + 1, ", got ", *most);
    std::vector<TokenId> tokens =
        text != nullptr ? engine.tokenizer().encode(*text) : engine.encode(input);
    std::string salt = std::move(input.cache_salt);
    input = Prompt(added.wrap(std::move(tokens), *most));
    input.cache_salt = std::move(salt);
  }
}

/// Serves all or throws what became of the first that could not be served.
NANOVLLM_INLINE std::vector<Output> serve_pooled(AnyEngine& engine,
                                                 const std::vector<Prompt>& prompts,
                                                 const SamplingParams& params, const char* what) {
  std::vector<Output> outputs = engine.generate(prompts, params);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const FinishReason reason = outputs[i].finish_reason;
    const bool is_served = reason == FinishReason::stop || reason == FinishReason::length;
    check<RequestError>(is_served, what, i, ": ",
                        outputs[i].error.empty() ? "it was aborted" : outputs[i].error);
  }
  return outputs;
}

}  // namespace detail

NANOVLLM_INLINE std::vector<std::vector<float>> detail::embed_inputs(AnyEngine& engine,
                                                                     std::vector<Prompt> inputs,
                                                                     const EmbedOptions& options) {
  cut_inputs(engine, inputs, options.max_prompt_tokens, "embed");
  std::vector<std::vector<float>> vectors;
  for (Output& output : serve_pooled(engine, inputs, embedding_params(options), "embed: input "))
    vectors.push_back(std::move(output.pooled));
  return vectors;
}

NANOVLLM_INLINE std::vector<float> detail::score_documents(
    AnyEngine& engine, std::string_view query, const std::vector<std::string_view>& documents,
    const ScoreOptions& options) {
  const Reranker reranker(engine.tokenizer(), options, score_head(engine));
  std::vector<Prompt> prompts;
  for (const std::string_view document : documents)
    prompts.emplace_back(reranker.prompt(query, document));
  std::vector<float> scores;
  for (const Output& output : serve_pooled(engine, prompts, reranker.params(), "score: document "))
    scores.push_back(reranker.score_of(output));
  return scores;
}

NANOVLLM_INLINE std::vector<std::vector<float>> detail::classify_inputs(
    AnyEngine& engine, std::vector<Prompt> inputs, const ClassifyOptions& options) {
  const std::shared_ptr<const ScoreHead> head = score_head(engine);
  check<RequestError>(head != nullptr,
                      "classify: the checkpoint has no score head, as "
                      "'Qwen3ForSequenceClassification' has");
  cut_inputs(engine, inputs, options.max_prompt_tokens, "classify");
  SamplingParams params;
  params.repetition_penalty = 1;  // instead of the checkpoint's own
  params.priority = options.priority;
  params.pooler = head;
  std::vector<std::vector<float>> labels;
  for (Output& output : serve_pooled(engine, inputs, params, "classify: input ")) {
    labels.push_back(options.activate ? label_probabilities(output.pooled)
                                      : std::move(output.pooled));
  }
  return labels;
}

NANOVLLM_INLINE std::shared_ptr<const ScoreHead> score_head(const AnyEngine& engine) {
  return std::dynamic_pointer_cast<const ScoreHead>(engine.label_head());
}

namespace detail {

NANOVLLM_INLINE std::shared_ptr<const Pooler> load_label_head(const Checkpoint& checkpoint,
                                                              std::int64_t hidden_size) {
  return ScoreHead::load(checkpoint, hidden_size);
}
NANOVLLM_OPEN_DOOR(load_label_head);

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
