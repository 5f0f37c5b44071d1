#pragma once
/// What a request asks of the sampler, and when its generation ends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/ops/logit_edits.hpp"

namespace nanovllm {

/// When a beam search ends that has as many hypotheses as beams (BeamSearch).
enum class EarlyStopping : std::uint8_t {
  no,     ///< when the best beam, scored at its length, is worse than all of them
  yes,    ///< at once
  never,  ///< when the best beam can get no better than the worst of them
};

class TokenMaskSource;

/// Sampling settings of one request. Unset optionals take the checkpoint's generation_config.json
/// value, and where that is silent too, the neutral value in the comment.
struct SamplingParams {
  std::optional<float> temperature{};   ///< >= 0; 0 is greedy. Neutral: 1
  std::optional<std::int32_t> top_k{};  ///< keep the k most likely; 0 and -1 keep all. Neutral: 0
  std::optional<float> top_p{};         ///< keep the least set of mass >= p, in (0, 1]. Neutral: 1
  std::optional<float> min_p{};  ///< keep what has min_p of the top's mass, [0, 1]. Neutral: 0
  /// > 0: positive logits of all tokens that prompt or output have are divided by it, others
  /// multiplied. Neutral: 1
  std::optional<float> repetition_penalty{};
  float frequency_penalty = 0;  ///< in [-2, 2], times how often a token was generated, subtracted
  float presence_penalty = 0;   ///< in [-2, 2], subtracted for tokens that were generated
  /// Added to logits, before the penalties; in [-100, 100], each token once.
  std::vector<TokenBias> logit_bias{};
  std::vector<TokenId> allowed_token_ids{};  ///< if any: no token but these may come
  /// Texts that must not come; kMaxBadWords at the most. Needs a tokeniser.
  std::vector<std::string> bad_words{};
  /// A constraint on the text: a choice, a regular expression, a grammar; null for none.
  std::shared_ptr<const TokenMaskSource> token_masks{};
  /// Not 0: the policy's LogitsFunctor is applied, and gets this number.
  float functor_argument = 0;
  std::optional<std::uint64_t> seed{};  ///< same seed, same sample; unset draws one from the engine
  std::int32_t n = 1;  ///< completions wanted, >= 1. Sample i of a seed is the same whatever n is
  std::optional<std::int32_t>
      best_of{};                  ///< samples drawn, n to kMaxSamples; the n likeliest count
  std::int32_t max_tokens = 256;  ///< generated tokens at the most, >= 1
  std::int32_t min_tokens = 0;    ///< no end token and no stop string before this many
  bool ignore_eos = false;        ///< the model's own end tokens do not end generation
  std::vector<TokenId> stop_token_ids{};  ///< further end tokens, kMaxStopTokenIds at the most
  std::vector<std::string>
      stop{};  ///< matched on the detokenised text; kMaxStopStrings at the most
  bool include_stop_str_in_output = false;  ///< keep the matched stop string in the text
  bool skip_special_tokens = true;          ///< leave special tokens out of the text
  std::optional<std::int32_t> logprobs{};   ///< report log-probabilities and the n likeliest
  /// Report the log-probabilities of these tokens, too, at every position; kMaxLogprobTokenIds.
  std::vector<TokenId> logprob_token_ids{};
  /// Report the log-probabilities of the prompt's tokens, too, and the n likeliest there. They have
  /// to be computed, so nothing of the prompt is taken from the prefix cache.
  std::optional<std::int32_t> prompt_logprobs{};
  /// Lower is served earlier, as far as the scheduling policy knows of it; any value.
  std::int32_t priority = 0;
  /// Search with so many beams, n to kMaxSamples, instead of sampling; the n best are the output.
  std::optional<std::int32_t> beam_width{};
  float length_penalty = 1;  ///< of a beam: its score is the sum of log-probabilities / length^this
  EarlyStopping early_stopping = EarlyStopping::no;  ///< of the search
};

/// The n most likely tokens that `logprobs` and `prompt_logprobs` may ask for.
inline constexpr std::int32_t kMaxLogprobs = 20;

/// Ids that `logprob_token_ids` may have, biases of `logit_bias`, texts of `bad_words`, and bytes
/// of one.
inline constexpr std::size_t kMaxLogprobTokenIds = 1024;
inline constexpr std::size_t kMaxLogitBiases = 4096;
inline constexpr std::size_t kMaxBadWords = 1024;
inline constexpr std::size_t kMaxBadWordBytes = 1024;

/// Samples of one request.
inline constexpr std::int32_t kMaxSamples = 128;

/// The likeliest tokens of a beam that a step can list: what the samplers of all backends can give.
inline constexpr std::int32_t kMaxBeamCandidates = 1024;

/// How many samples of a prompt are drawn, or beams searched with.
[[nodiscard]] inline std::int32_t num_samples(const SamplingParams& p) {
  return p.beam_width ? *p.beam_width : p.best_of.value_or(p.n);
}
/// Whether samples are drawn that will not be in the output.
[[nodiscard]] inline bool draws_more(const SamplingParams& p) {
  return !p.beam_width && num_samples(p) > p.n;
}
/// Whether tokens are final when they are drawn. Where samples are chosen from, or beams, nothing
/// of the request is streamed.
[[nodiscard]] inline bool is_streamed(const SamplingParams& p) {
  return !p.beam_width && !draws_more(p);
}

/// Ids that `stop_token_ids`, and strings that `stop` may have, and bytes that one of those may
/// have: every token of the request is compared with all of them.
inline constexpr std::size_t kMaxStopTokenIds = 1024;
inline constexpr std::size_t kMaxStopStrings = 64;
inline constexpr std::size_t kMaxStopStringBytes = 1024;

/// Throws RequestError naming the first field out of range.
void validate(const SamplingParams& p);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/sampling/sampling_params.inc"
#endif
