#pragma once
/// One request inside the engine: its sequence, its text so far, and when it ends.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request.hpp"
#include "nanovllm/model/generation_config.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sampling/stop_matcher.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

/// How a request is sampled once the checkpoint's defaults have filled what it left unset.
[[nodiscard]] inline SamplingRow resolve_sampling(const SamplingParams& params,
                                                  const GenerationConfig& defaults,
                                                  std::uint64_t engine_seed) {
  const auto pick = [](const auto& own, const auto& theirs, auto neutral) {
    return own ? *own : theirs ? *theirs : neutral;
  };
  return {.temperature = pick(params.temperature, defaults.temperature, 1.f),
          .top_k = pick(params.top_k, defaults.top_k, std::int32_t{0}),
          .top_p = pick(params.top_p, defaults.top_p, 1.f),
          .min_p = pick(params.min_p, defaults.min_p, 0.f),
          .seed = params.seed.value_or(engine_seed),
          .position = 0,
          .num_logprobs = params.logprobs.value_or(-1)};
}

/// The state of one request from submission to its last event. The scheduler's part of it is its
/// base, so that a sequence in a plan leads straight to its request.
class Generation : public Sequence {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param length_limit  tokens at the most, prompt and generated.
  /// @param tokenizer  may be null: the output then has token ids and no text.
  /// @param eos_token_ids  the checkpoint's end tokens.
  Generation(RequestId request_id, std::vector<TokenId> prompt, std::int32_t length_limit,
             SamplingParams params, const SamplingRow& sampling,
             std::span<const TokenId> eos_token_ids, const Tokenizer* tokenizer,
             TokenCallback callback)
      : params_(std::move(params)),
        sampling_(sampling),
        stop_matcher_(params_.stop, params_.include_stop_str_in_output),
        callback_(std::move(callback)) {
    id = request_id;
    num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
    max_total_tokens = length_limit;
    tokens = std::move(prompt);
    end_tokens_ = params_.stop_token_ids;
    if (!params_.ignore_eos) {
      end_tokens_.insert(end_tokens_.end(), eos_token_ids.begin(), eos_token_ids.end());
    }
    if (tokenizer) detokenizer_.emplace(*tokenizer, params_.skip_special_tokens);
    output_.id = id;
    output_.num_prompt_tokens = num_prompt_tokens;
  }

  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// The request that `sequence` is part of. The engine makes no other sequences.
  [[nodiscard]] static Generation& of(Sequence& sequence) {
    return static_cast<Generation&>(sequence);
  }

  /// Settings for drawing the token that will be number `position` of the sequence.
  [[nodiscard]] SamplingRow sampling_row(std::int32_t position) const {
    SamplingRow row = sampling_;
    row.position = static_cast<std::uint64_t>(position);
    return row;
  }

  /// What that draw must not give: while fewer than min_tokens come before it, the tokens that
  /// would end the request.
  [[nodiscard]] std::span<const TokenId> banned_tokens(std::int32_t position) const {
    if (position - num_prompt_tokens >= params_.min_tokens) return {};
    return end_tokens_;
  }

  /// Most likely tokens to report with every token; -1 for no log-probabilities at all.
  [[nodiscard]] std::int32_t num_logprobs() const { return sampling_.num_logprobs; }

  void mark_scheduled() {
    if (output_.timings.scheduled == 0) output_.timings.scheduled = elapsed();
  }

  /// Takes the next token, of which the scheduler has not heard yet. `logprobs` may be null.
  [[nodiscard]] FinishReason accept(TokenId token, std::optional<TokenLogprobs> logprobs) {
    if (output_.token_ids.empty()) output_.timings.first_token = elapsed();
    output_.token_ids.push_back(token);
    if (logprobs) output_.logprobs.push_back(*std::move(logprobs));
    new_text_.clear();
    const bool can_stop = num_generated() >= params_.min_tokens;
    if (can_stop && std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end()) {
      return FinishReason::stop;  // an end token is not part of the text
    }
    if (detokenizer_ && add_text(detokenizer_->push(token), can_stop)) return FinishReason::stop;
    const bool is_last = num_generated() >= params_.max_tokens ||
                         num_prompt_tokens + num_generated() >= max_total_tokens;
    return is_last ? FinishReason::length : FinishReason::none;
  }

  /// Completes the output. Text that was held back is released unless a stop string was found.
  void finish(FinishReason reason, std::string error = {}) {
    if (!stop_string_found_ && detokenizer_) {
      if (!add_text(detokenizer_->flush(), false)) release(stop_matcher_.flush());
    }
    output_.finish_reason = reason;
    output_.error = std::move(error);
    output_.num_cached_tokens = num_cached_tokens;
    output_.timings.finished = elapsed();
  }

  /// Tells the callback what the latest `accept`, `finish` or both did. What it throws is returned.
  [[nodiscard]] std::string notify(bool has_token) {
    if (!callback_) return {};
    TokenEvent event{.id = output_.id, .text = new_text_};
    if (has_token) {
      event.token = &output_.token_ids.back();
      if (params_.logprobs) event.logprobs = &output_.logprobs.back();
    }
    if (output_.finish_reason != FinishReason::none) event.output = &output_;
    try {
      callback_(event);
    } catch (const std::exception& e) {
      return concat("the request's callback threw: ", e.what());
    } catch (...) {
      return "the request's callback threw";
    }
    return {};
  }

  /// Forgets the text that `notify` has reported.
  void clear_new_text() { new_text_.clear(); }

 private:
  [[nodiscard]] std::int32_t num_generated() const {
    return static_cast<std::int32_t>(output_.token_ids.size());
  }

  [[nodiscard]] double elapsed() const {
    return std::chrono::duration<double>(Clock::now() - submitted_).count();
  }

  /// Whether a stop string ends the request here.
  bool add_text(const std::string& piece, bool can_stop) {
    if (!can_stop) {
      release(stop_matcher_.pass(piece));
      return false;
    }
    StopMatcher::Result result = stop_matcher_.push(piece);
    release(result.text);
    stop_string_found_ = result.stopped;
    return result.stopped;
  }

  void release(const std::string& text) {
    new_text_ += text;
    output_.text += text;
  }

  SamplingParams params_;
  SamplingRow sampling_;
  std::vector<TokenId> end_tokens_;
  std::optional<Detokenizer> detokenizer_;
  StopMatcher stop_matcher_;
  bool stop_string_found_ = false;
  std::string new_text_;  // released since the last event
  TokenCallback callback_;
  Output output_;
  Clock::time_point submitted_ = Clock::now();
};

}  // namespace nanovllm
