#pragma once
/// What a request asks of the sampler, and when its generation ends.

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/number_range.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/ops/logit_edits.hpp"

namespace nanovllm {

/// When a beam search ends that has as many hypotheses as beams (BeamSearch).
enum class EarlyStopping : std::uint8_t {
  no,     ///< when the best beam, scored at its length, is worse than all of them
  yes,    ///< at once
  never,  ///< when the best beam can get no better than the worst of them
};

class TokenMaskSource;

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

/// Ids that `stop_token_ids`, and strings that `stop` may have, and bytes that one of those may
/// have: every token of the request is compared with all of them.
inline constexpr std::size_t kMaxStopTokenIds = 1024;
inline constexpr std::size_t kMaxStopStrings = 64;
inline constexpr std::size_t kMaxStopStringBytes = 1024;

/// Makes the outcome of a request, `Completion::pooled`, from what the network gives for the last
/// token of the prompt: an embedding, or scores. A type of your own may have the weights of a head.
/// One object may serve several requests and engines.
class Pooler {
 public:
  Pooler() = default;
  Pooler(const Pooler&) = delete;
  Pooler& operator=(const Pooler&) = delete;
  virtual ~Pooler() = default;

  /// Called in the step that has computed the prompt. What it throws is the request's error.
  /// @param hidden  [hidden_size]: the hidden state after the network's last norm.
  [[nodiscard]] virtual std::vector<float> pool(std::span<const float> hidden) const = 0;
};

/// Sampling settings of one request. Unset optionals take the checkpoint's generation_config.json
/// value, and where that is silent too, the neutral value in the comment.
struct SamplingParams {
  std::optional<float> temperature{};   ///< >= 0; 0 is greedy. Neutral: 1
  std::optional<std::int32_t> top_k{};  ///< keep the k most likely; 0 and -1 keep all. Neutral: 0
  /// Keep the least set of mass >= p, in [0, 1]; 0 is greedy. Neutral: 1
  std::optional<float> top_p{};
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
  /// Keep in the text what ended it: the stop string, or the text of the end token.
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;         ///< leave special tokens out of the text
  std::optional<std::int32_t> logprobs{};  ///< report log-probabilities and the n likeliest
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
  /// Not null: the request is done when its prompt is computed. It generates no tokens, and its
  /// outcome is what this makes of the prompt's hidden state.
  std::shared_ptr<const Pooler> pooler{};
};

using SamplingMember =
    std::variant<bool SamplingParams::*, float SamplingParams::*, std::int32_t SamplingParams::*,
                 EarlyStopping SamplingParams::*, std::optional<float> SamplingParams::*,
                 std::optional<std::int32_t> SamplingParams::*,
                 std::optional<std::uint64_t> SamplingParams::*,
                 std::vector<TokenId> SamplingParams::*, std::vector<TokenBias> SamplingParams::*,
                 std::vector<std::string> SamplingParams::*>;

/// A member of SamplingParams by its name, which is also that in JSON, and what it may be.
struct SamplingField {
  std::string_view name;
  SamplingMember member;
  NumberRange range = {};           ///< of a number, and of each number of a list
  std::size_t max_size = SIZE_MAX;  ///< of a list
};

inline constexpr double kMinInt32 = std::numeric_limits<std::int32_t>::min();
inline constexpr double kMaxInt32 = std::numeric_limits<std::int32_t>::max();

/// Every field of SamplingParams but `token_masks`, `functor_argument` and `pooler`, which are of
/// the program's own types. `validate` and everything that reads JSON go by this table.
inline constexpr SamplingField kSamplingFields[] = {
    {"temperature", &SamplingParams::temperature, {0, 1e6}},
    {"top_k", &SamplingParams::top_k, {-1, kMaxInt32}},
    {"top_p", &SamplingParams::top_p, {0, 1}},
    {"min_p", &SamplingParams::min_p, {0, 1}},
    {"seed", &SamplingParams::seed},
    {"n", &SamplingParams::n, {1, kMaxSamples}},
    {"best_of", &SamplingParams::best_of, {1, kMaxSamples}},
    {"max_tokens", &SamplingParams::max_tokens, {1, kMaxInt32}},
    {"min_tokens", &SamplingParams::min_tokens, {0, kMaxInt32}},
    {"ignore_eos", &SamplingParams::ignore_eos},
    {"stop_token_ids", &SamplingParams::stop_token_ids, {}, kMaxStopTokenIds},
    {"stop", &SamplingParams::stop, {}, kMaxStopStrings},
    {"include_stop_str_in_output", &SamplingParams::include_stop_str_in_output},
    {"skip_special_tokens", &SamplingParams::skip_special_tokens},
    {"logprobs", &SamplingParams::logprobs, {0, kMaxLogprobs}},
    {"prompt_logprobs", &SamplingParams::prompt_logprobs, {0, kMaxLogprobs}},
    {"logprob_token_ids", &SamplingParams::logprob_token_ids, {}, kMaxLogprobTokenIds},
    {"priority", &SamplingParams::priority, {kMinInt32, kMaxInt32}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, {0, FLT_MAX, true}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2}},
    {"presence_penalty", &SamplingParams::presence_penalty, {-2, 2}},
    {"logit_bias", &SamplingParams::logit_bias, {-100, 100}, kMaxLogitBiases},
    {"allowed_token_ids", &SamplingParams::allowed_token_ids},
    {"bad_words", &SamplingParams::bad_words, {}, kMaxBadWords},
    {"beam_width", &SamplingParams::beam_width, {1, kMaxSamples}},
    {"length_penalty", &SamplingParams::length_penalty},
    {"early_stopping", &SamplingParams::early_stopping},
};

/// The field of that name, or null.
[[nodiscard]] constexpr const SamplingField* find_sampling_field(std::string_view name) {
  for (const SamplingField& field : kSamplingFields)
    if (field.name == name) return &field;
  return nullptr;
}

/// "temperature, top_k, ...": the names in kSamplingFields.
[[nodiscard]] std::string sampling_field_names();

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

/// Throws RequestError naming the first field out of range.
void validate(const SamplingParams& p);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>

namespace nanovllm {

namespace detail {

/// Throws RequestError when a beam search is asked for what it cannot give.
NANOVLLM_INLINE void check_beams(const SamplingParams& p) {
  if (!p.beam_width) {
    check<RequestError>(p.length_penalty == 1.f && p.early_stopping == EarlyStopping::no,
                        "length_penalty and early_stopping are of a beam search and need "
                        "beam_width");
    return;
  }
  check<RequestError>(*p.beam_width >= p.n, "beam_width must be at least n = ", p.n, ", got ",
                      *p.beam_width);
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

/// Throws RequestError when a prompt is to be pooled, and something is asked of its tokens.
NANOVLLM_INLINE void check_pooler(const SamplingParams& p) {
  const auto refuse = [&](bool is_set, const char* field) {
    check<RequestError>(!is_set || p.pooler == nullptr, "pooler cannot be combined with ", field);
  };
  refuse(num_samples(p) > 1 || p.beam_width, "several samples or beams");
  refuse(p.logprobs.has_value(), "logprobs");
  refuse(!p.logprob_token_ids.empty(), "logprob_token_ids");
  refuse(p.prompt_logprobs.has_value(), "prompt_logprobs");
  refuse(p.token_masks != nullptr, "token_masks");
}

/// Throws RequestError for a value that `field` cannot have.
struct SamplingCheck {
  const SamplingField& field;

  void check_value(bool) const {}
  void check_value(EarlyStopping) const {}
  void check_value(std::uint64_t) const {}
  void check_value(float x) const { check_number(x); }
  void check_value(std::int32_t x) const { check_number(x); }
  void check_value(const std::vector<TokenId>& ids) const { check_size(ids.size(), "ids"); }
  void check_value(const std::vector<TokenBias>& biases) const {
    check_size(biases.size(), "tokens");
    for (const TokenBias& one : biases)
      check<RequestError>(field.range.contains(one.bias), field.name, " must be ",
                          field.range.interval(), ", got ", one.bias, " for token ", one.token);
  }
  void check_value(const std::vector<std::string>& texts) const {
    static_assert(kMaxStopStringBytes == kMaxBadWordBytes);
    check_size(texts.size(), "strings");
    for (const std::string& text : texts) {
      check<RequestError>(!text.empty(), field.name, ": a string must not be empty");
      check<RequestError>(text.size() <= kMaxStopStringBytes, field.name,
                          ": a string must have at most ", kMaxStopStringBytes, " bytes, got ",
                          text.size());
    }
  }
  template <class T>
  void check_value(const std::optional<T>& value) const {
    if (value) check_value(*value);
  }

 private:
  template <class T>
  void check_number(T x) const {
    if (field.range.contains(x)) return;
    throw RequestError(concat(field.name, " must be ", field.range.interval(), ", got ", x));
  }
  void check_size(std::size_t size, const char* what) const {
    check<RequestError>(size <= field.max_size, field.name, " must have at most ", field.max_size,
                        ' ', what, ", got ", size);
  }
};

NANOVLLM_INLINE void check_each_bias_once(const std::vector<TokenBias>& biases) {
  std::vector<TokenId> biased;
  for (const TokenBias& bias : biases) biased.push_back(bias.token);
  std::sort(biased.begin(), biased.end());
  const auto twice = std::adjacent_find(biased.begin(), biased.end());
  check<RequestError>(twice == biased.end(), "logit_bias must have each token once, got token ",
                      twice == biased.end() ? 0 : *twice, " twice");
}

}  // namespace detail

NANOVLLM_INLINE std::string sampling_field_names() {
  std::string names;
  for (const SamplingField& field : kSamplingFields)
    (names += names.empty() ? "" : ", ") += field.name;
  return names;
}

NANOVLLM_INLINE void validate(const SamplingParams& p) {
  for (const SamplingField& field : kSamplingFields) {
    std::visit([&](auto member) { detail::SamplingCheck{field}.check_value(p.*member); },
               field.member);
  }
  check<RequestError>(std::isfinite(p.functor_argument), "functor_argument must be finite, got ",
                      p.functor_argument);
  if (p.best_of)
    check<RequestError>(*p.best_of >= p.n, "best_of must be at least n = ", p.n, ", got ",
                        *p.best_of);
  check<RequestError>(p.min_tokens <= p.max_tokens,
                      "min_tokens must be at most max_tokens = ", p.max_tokens, ", got ",
                      p.min_tokens);
  detail::check_each_bias_once(p.logit_bias);
  detail::check_beams(p);
  detail::check_pooler(p);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
