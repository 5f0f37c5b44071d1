#pragma once
/// `embed`, `score` and `classify` of engines, and the heads of classifiers. With a library every
/// program has them; a header-only one if one of its files includes this.

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/with/pooling/pooling_options.hpp"
#include "nanovllm/with/pooling/score_head.hpp"

#if NANOVLLM_BODIES

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/pooling/embedding.hpp"
#include "nanovllm/with/pooling/find_score_head.hpp"
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
  const Reranker reranker(engine.tokenizer(), options, engine.score_head());
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
  const std::shared_ptr<const ScoreHead> head = engine.score_head();
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

NANOVLLM_INLINE std::shared_ptr<const ScoreHead> detail::load_score_head(
    const Checkpoint& checkpoint, std::int64_t hidden_size) {
  return ScoreHead::load(checkpoint, hidden_size);
}

namespace detail {

NANOVLLM_OPEN_DOOR(embed_inputs);
NANOVLLM_OPEN_DOOR(score_documents);
NANOVLLM_OPEN_DOOR(classify_inputs);
NANOVLLM_OPEN_DOOR(load_score_head);

}  // namespace detail

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
