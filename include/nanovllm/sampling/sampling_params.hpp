#pragma once
/// What a request asks of the sampler, and when its generation ends.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// Sampling settings of one request. Unset optionals take the checkpoint's generation_config.json
/// value, and where that is silent too, the neutral value in the comment.
struct SamplingParams {
  std::optional<float> temperature{};   ///< >= 0; 0 is greedy. Neutral: 1
  std::optional<std::int32_t> top_k{};  ///< keep the k most likely; 0 and -1 keep all. Neutral: 0
  std::optional<float> top_p{};         ///< keep the least set of mass >= p, in (0, 1]. Neutral: 1
  std::optional<float> min_p{};  ///< keep what has min_p of the top's mass, [0, 1]. Neutral: 0
  std::optional<std::uint64_t> seed{};  ///< same seed, same sample; unset draws one from the engine
  std::int32_t max_tokens = 256;        ///< generated tokens at the most, >= 1
  std::int32_t min_tokens = 0;          ///< no end token and no stop string before this many
  bool ignore_eos = false;              ///< the model's own end tokens do not end generation
  std::vector<TokenId> stop_token_ids{};  ///< further end tokens, kMaxStopTokenIds at the most
  std::vector<std::string>
      stop{};  ///< matched on the detokenised text; kMaxStopStrings at the most
  bool include_stop_str_in_output = false;  ///< keep the matched stop string in the text
  bool skip_special_tokens = true;          ///< leave special tokens out of the text
  std::optional<std::int32_t> logprobs{};   ///< report log-probabilities and the n likeliest
};

/// The n most likely tokens that `logprobs` may ask for.
inline constexpr std::int32_t kMaxLogprobs = 20;

/// Ids that `stop_token_ids`, and strings that `stop` may have, and bytes that one of those may have:
/// every token of the request is compared with all of them.
inline constexpr std::size_t kMaxStopTokenIds = 1024;
inline constexpr std::size_t kMaxStopStrings = 64;
inline constexpr std::size_t kMaxStopStringBytes = 1024;

/// Throws RequestError naming the first field out of range.
inline void validate(const SamplingParams& p) {
  const auto in = [](float x, float low, float high) { return x >= low && x <= high; };  // no NaN
  if (p.temperature) {
    check<RequestError>(in(*p.temperature, 0.f, 1e6f), "temperature must be >= 0, got ",
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
  check<RequestError>(p.max_tokens >= 1, "max_tokens must be >= 1, got ", p.max_tokens);
  check<RequestError>(p.min_tokens >= 0 && p.min_tokens <= p.max_tokens,
                      "min_tokens must be in [0, max_tokens = ", p.max_tokens, "], got ",
                      p.min_tokens);
  if (p.logprobs) {
    check<RequestError>(*p.logprobs >= 0 && *p.logprobs <= kMaxLogprobs, "logprobs must be in [0, ",
                        kMaxLogprobs, "], got ", *p.logprobs);
  }
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
}

}  // namespace nanovllm
