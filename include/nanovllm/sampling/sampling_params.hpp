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
  /// Texts that must not be generated; at most kMaxBadWords. Needs a tokeniser.
  std::vector<std::string> bad_words{};
  /// A constraint on the text: a choice, a regular expression, a grammar; null for none.
  std::shared_ptr<const TokenMaskSource> token_masks{};
  /// Not 0: the policy's LogitsFunctor is applied, and gets this number.
  float functor_argument = 0;
  std::optional<std::uint64_t> seed{};  ///< same seed, same sample; unset draws one from the engine
  std::int32_t n = 1;  ///< completions wanted, >= 1. Sample i of a seed is the same whatever n is
  std::optional<std::int32_t>
      best_of{};                  ///< samples drawn, n to kMaxSamples; the n likeliest count
  std::int32_t max_tokens = 256;  ///< most generated tokens, >= 1
  std::int32_t min_tokens = 0;    ///< no end token and no stop string before this many
  bool ignore_eos = false;        ///< the model's own end tokens do not end generation
  std::vector<TokenId> stop_token_ids{};  ///< further end tokens, at most kMaxStopTokenIds
  std::vector<std::string> stop{};  ///< matched on the detokenised text; at most kMaxStopStrings
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

#include <algorithm>
#include <cmath>

namespace nanovllm {

namespace detail {

/// Throws RequestError when a beam search is asked for what it cannot give.
NANOVLLM_INLINE void validate_beams(const SamplingParams& p) {
  if (!p.beam_width) {
    check<RequestError>(p.length_penalty == 1.f && p.early_stopping == EarlyStopping::no,
                        "length_penalty and early_stopping are of a beam search and need "
                        "beam_width");
    return;
  }
  check<RequestError>(*p.beam_width >= p.n && *p.beam_width <= kMaxSamples,
                      "beam_width must be in [n = ", p.n, ", ", kMaxSamples, "], got ",
                      *p.beam_width);
  check<RequestError>(std::isfinite(p.length_penalty), "length_penalty must be finite, got ",
                      p.length_penalty);
  const auto refuse = [](bool is_set, const char* field) {
    check<RequestError>(!is_set, "beam_width cannot be combined with ", field);
  };
  refuse(p.best_of.has_value(), "best_of");
  refuse(p.temperature.value_or(0.f) != 0.f, "a temperature other than 0");
  refuse(p.top_k.has_value(), "top_k");
  refuse(p.top_p.has_value(), "top_p");
  refuse(p.min_p.has_value(), "min_p");
  refuse(p.logprobs.has_value(), "logprobs");
  refuse(!p.stop.empty(), "stop strings");
  refuse(!p.logprob_token_ids.empty(), "logprob_token_ids");
  refuse(p.prompt_logprobs.has_value(), "prompt_logprobs");
}

/// Throws RequestError for what edits of logits cannot be made from.
NANOVLLM_INLINE void validate_edits(const SamplingParams& p) {
  const auto in = [](float x, float low, float high) { return x >= low && x <= high; };  // no NaN
  if (p.repetition_penalty) {
    check<RequestError>(*p.repetition_penalty > 0 && std::isfinite(*p.repetition_penalty),
                        "repetition_penalty must be > 0 and finite, got ", *p.repetition_penalty);
  }
  check<RequestError>(in(p.frequency_penalty, -2, 2), "frequency_penalty must be in [-2, 2], got ",
                      p.frequency_penalty);
  check<RequestError>(in(p.presence_penalty, -2, 2), "presence_penalty must be in [-2, 2], got ",
                      p.presence_penalty);
  check<RequestError>(std::isfinite(p.functor_argument), "functor_argument must be finite, got ",
                      p.functor_argument);
  check<RequestError>(p.logit_bias.size() <= kMaxLogitBiases, "logit_bias must have at most ",
                      kMaxLogitBiases, " tokens, got ", p.logit_bias.size());
  std::vector<TokenId> biased;
  for (const TokenBias& bias : p.logit_bias) {
    check<RequestError>(in(bias.bias, -100, 100), "logit_bias must be in [-100, 100], got ",
                        bias.bias, " for token ", bias.token);
    biased.push_back(bias.token);
  }
  std::sort(biased.begin(), biased.end());
  const auto twice = std::adjacent_find(biased.begin(), biased.end());
  check<RequestError>(twice == biased.end(), "logit_bias must have each token once, got token ",
                      twice == biased.end() ? 0 : *twice, " twice");
  check<RequestError>(p.bad_words.size() <= kMaxBadWords, "bad_words must have at most ",
                      kMaxBadWords, " texts, got ", p.bad_words.size());
  for (const std::string& word : p.bad_words) {
    check<RequestError>(!word.empty(), "bad_words: a bad word must not be empty");
    check<RequestError>(word.size() <= kMaxBadWordBytes, "bad_words: a bad word must have at most ",
                        kMaxBadWordBytes, " bytes, got ", word.size());
  }
  check<RequestError>(p.logprob_token_ids.size() <= kMaxLogprobTokenIds,
                      "logprob_token_ids must have at most ", kMaxLogprobTokenIds, " ids, got ",
                      p.logprob_token_ids.size());
}

}  // namespace detail

NANOVLLM_INLINE void validate(const SamplingParams& p) {
  const auto in = [](float x, float low, float high) { return x >= low && x <= high; };  // no NaN
  if (p.temperature) {
    check<RequestError>(in(*p.temperature, 0.f, 1e6f), "temperature must be in [0, 1e6], got ",
                        *p.temperature);
  }
  if (p.top_k)
    check<RequestError>(*p.top_k >= -1, "top_k must be >= -1 (0 and -1 keep all), got ", *p.top_k);
  if (p.top_p) {
    check<RequestError>(*p.top_p > 0.f && in(*p.top_p, 0.f, 1.f), "top_p must be in (0, 1], got ",
                        *p.top_p);
  }
  if (p.min_p)
    check<RequestError>(in(*p.min_p, 0.f, 1.f), "min_p must be in [0, 1], got ", *p.min_p);
  check<RequestError>(p.n >= 1 && p.n <= kMaxSamples, "n must be in [1, ", kMaxSamples, "], got ",
                      p.n);
  if (p.best_of) {
    check<RequestError>(*p.best_of >= p.n && *p.best_of <= kMaxSamples,
                        "best_of must be in [n = ", p.n, ", ", kMaxSamples, "], got ", *p.best_of);
  }
  check<RequestError>(p.max_tokens >= 1, "max_tokens must be >= 1, got ", p.max_tokens);
  check<RequestError>(p.min_tokens >= 0 && p.min_tokens <= p.max_tokens,
                      "min_tokens must be in [0, max_tokens = ", p.max_tokens, "], got ",
                      p.min_tokens);
  const auto check_logprobs = [](const std::optional<std::int32_t>& n, const char* field) {
    check<RequestError>(n.value_or(0) >= 0 && n.value_or(0) <= kMaxLogprobs, field,
                        " must be in [0, ", kMaxLogprobs, "], got ", n.value_or(0));
  };
  check_logprobs(p.logprobs, "logprobs");
  check_logprobs(p.prompt_logprobs, "prompt_logprobs");
  check<RequestError>(p.stop_token_ids.size() <= kMaxStopTokenIds,
                      "stop_token_ids must have at most ", kMaxStopTokenIds, " ids, got ",
                      p.stop_token_ids.size());
  check<RequestError>(p.stop.size() <= kMaxStopStrings, "stop must have at most ", kMaxStopStrings,
                      " strings, got ", p.stop.size());
  for (const std::string& s : p.stop) {
    check<RequestError>(!s.empty(), "a stop string must not be empty");
    check<RequestError>(s.size() <= kMaxStopStringBytes, "a stop string must have at most ",
                        kMaxStopStringBytes, " bytes, got ", s.size());
  }
  detail::validate_edits(p);
  detail::validate_beams(p);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
