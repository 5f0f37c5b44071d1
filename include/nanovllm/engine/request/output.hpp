#pragma once
/// What users get back: outputs, and events while they are made.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// A token, its log-probability by the model, and the most likely ones, best first.
struct TokenLogprobs {
  TokenId token_id = 0;
  float logprob = 0.f;
  std::vector<std::pair<TokenId, float>> top{};
  std::vector<std::pair<TokenId, float>> chosen{};  ///< of SamplingParams::logprob_token_ids
};

/// Seconds from submission, and between tokens. A token is there when its step's results are, so
/// those of one step come at the same time.
struct RequestTimings {
  double scheduled = 0;         ///< first computed in a step: its time in the queue; 0 if never
  double first_token = 0;       ///< first token out; 0 if none
  double finished = 0;          ///< the request's end
  double mean_inter_token = 0;  ///< between two tokens that follow each other; 0 if there were none
  double max_inter_token = 0;   ///< preemption and other pauses included
};

/// What one sequence generated.
struct Completion {
  std::string text;                ///< detokenised, without prompt, end token and stop string
  std::vector<TokenId> token_ids;  ///< generated, an end or stop token included
  FinishReason finish_reason = FinishReason::none;
  std::string stop_string;              ///< of SamplingParams::stop, if one ended it
  std::vector<TokenLogprobs> logprobs;  ///< one a token, if SamplingParams::logprobs was set
  /// Of all tokens, if SamplingParams::logprobs was set, best_of draws more than n, or it is from a
  /// beam search; else 0.
  double cumulative_logprob = 0;
  /// Of a beam search: cumulative_logprob / tokens^length_penalty, which orders completions.
  std::optional<float> beam_score{};
  std::vector<float> pooled{};  ///< what SamplingParams::pooler has made of the prompt
};

/// Everything about a finished request: its completion and what is said of the whole. The first of
/// several completions is the output itself: sample 0, or with more samples drawn than wanted
/// (`best_of`) the likeliest, and of a beam search the best.
struct Output : Completion {
  /// The other n - 1: samples 1, 2, …; or those drawn that are next likeliest by
  /// cumulative_logprob; or the next best of a beam search.
  std::vector<Completion> alternatives;
  RequestId id = 0;
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_cached_tokens = 0;  ///< of the prompt, taken from the prefix cache
  /// If SamplingParams::prompt_logprobs was set, one for each token of the prompt: how likely it
  /// was after the tokens before it, and the likeliest tokens there. Empty for the first token, and
  /// for those that were not computed when the request was aborted or failed.
  std::vector<std::optional<TokenLogprobs>> prompt_logprobs;
  RequestTimings timings;
  /// Why finish_reason is `error`, of the output and of all alternatives, also of those that had
  /// ended before. Otherwise empty; in a beam search a single alternative may be an `error`.
  std::string error;
  /// That error is a RequestError: what the request asks for cannot be had. Else the engine failed.
  bool is_refused = false;
};

/// What a callback receives: an event for every token, and one for the end. The texts of all events
/// of a sample, joined, are the text of its completion, whatever ends it. If more samples are drawn
/// than wanted (`best_of`), or in a beam search, there is only the last event, without a text
/// and a stop string. Views are valid during the call.
struct TokenEvent {
  RequestId id = 0;
  std::int32_t sample = 0;                          ///< of SamplingParams::n
  FinishReason finish_reason = FinishReason::none;  ///< of the sample, on its last event
  std::string_view stop_string{};           ///< of SamplingParams::stop, if one ended the sample
  const TokenId* token = nullptr;           ///< null when the request ended without a new one
  std::string_view text;                    ///< newly released text; may be empty
  const TokenLogprobs* logprobs = nullptr;  ///< of `token`, if asked for
  const Output* output = nullptr;           ///< the whole result; only on the last event
  /// Output::prompt_logprobs if they were asked for, with every token of sample 0.
  const std::vector<std::optional<TokenLogprobs>>* prompt_logprobs = nullptr;
};

/// Called when a step's results are final, on a thread that is in `step`, `run` or `generate` and
/// holds no lock of the engine: a callback may call anything of it, `generate` included. Callbacks
/// of an engine run one at a time, except those that run inside such a call.
///
/// If a callback throws, its request ends with an error, `Output::error` has the message, and the
/// callback is called once more for each sample that had not ended; other requests continue, and
/// `step` does not throw. This also holds if the request has ended by itself meanwhile: unless the
/// event was the last one, the output that follows has FinishReason::error. What is thrown at the
/// last event is ignored.
using TokenCallback = std::function<void(const TokenEvent&)>;

}  // namespace nanovllm
