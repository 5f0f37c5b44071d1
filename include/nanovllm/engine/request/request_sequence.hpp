#pragma once
/// One sequence of a request inside the engine: how it is drawn, its text so far, when it stops.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/rules_ahead.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/sampling/logits_processor.hpp"
#include "nanovllm/sampling/resolve.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "nanovllm/sampling/standard_processors.hpp"
#include "nanovllm/sampling/stop_matcher.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/text/detokenizer.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

class Request;

/// What all sequences of a request have in common.
struct SequenceTerms {
  SamplingParams params;              ///< with the checkpoint's defaults filled in
  std::vector<TokenId> end_tokens{};  ///< ascending: stop_token_ids and the checkpoint's own
  std::int32_t max_total_tokens = 0;  ///< at most, prompt and generated
  std::int64_t vocab_size = 0;
  std::vector<std::vector<TokenId>> bad_words{};  ///< of `params`, as tokens
  /// Makes the policy's logits processors for a new sequence.
  std::unique_ptr<SequenceProcessors> (*make_processors)(const LogitsProcessorSetup&) =
      &StandardLogitsProcessors<>::make;

  /// Each sequence draws so many candidates, of which a TokenChooser chooses; unset: tokens.
  std::optional<std::int32_t> num_candidates{};
};

/// The state of one sequence from submission to its end. The scheduler's part of it is its base, so
/// that a sequence in a plan leads straight to its request.
class RequestSequence : public Sequence {
 public:
  /// What came with `accept` and was not reported yet.
  struct Update {
    std::optional<TokenId> token{};
    std::optional<TokenLogprobs> logprobs{};
    std::string text{};
  };

  /// `request` and `terms` must outlive the sequence.
  /// @param sample        its number within the request, from 0; each draws with another seed.
  /// @param tokenizer     may be null: the output then has token ids and no text.
  /// @param has_listener  whether a callback is called for its tokens.
  RequestSequence(Request& request, const SequenceTerms& terms, RequestId request_id,
                  std::int32_t sample, std::vector<TokenId> prompt, const Tokenizer* tokenizer,
                  bool has_listener);

  RequestSequence(const RequestSequence&) = delete;
  RequestSequence& operator=(const RequestSequence&) = delete;

  using Clock = std::chrono::steady_clock;

  /// The same object as `sequence`. The engine makes no other sequences.
  [[nodiscard]] static RequestSequence& of(Sequence& sequence) {
    return static_cast<RequestSequence&>(sequence);
  }

  [[nodiscard]] Request& request() const { return request_; }
  [[nodiscard]] std::int32_t sample() const { return sample_; }
  /// Whether a callback is called for its tokens.
  [[nodiscard]] bool has_listener() const { return has_listener_; }
  /// True once, for the first step that has the sequence.
  [[nodiscard]] bool is_first_step() { return !std::exchange(was_scheduled_, true); }
  [[nodiscard]] const Completion& completion() const { return completion_; }
  [[nodiscard]] std::int32_t num_generated() const {
    return static_cast<std::int32_t>(completion_.token_ids.size());
  }
  /// The stop string that ended it, of the terms; empty if none did.
  [[nodiscard]] std::string_view stop_string() const {
    const auto& stops = terms_.params.stop;
    const auto found = std::find(stops.begin(), stops.end(), completion_.stop_string);
    return found == stops.end() ? std::string_view() : std::string_view(*found);
  }
  [[nodiscard]] bool has_ended() const { return completion_.finish_reason != FinishReason::none; }

  /// Tokens came at `now`. Returns when those before them did; the epoch if there were none.
  Clock::time_point mark_tokens(Clock::time_point now) {
    const Clock::time_point before = std::exchange(last_token_at_, now);
    if (before == Clock::time_point{}) {
      first_token_at_ = now;
    } else {
      longest_gap_ = std::max(longest_gap_, now - before);
    }
    return before;
  }
  /// The epoch if there was none.
  [[nodiscard]] Clock::time_point first_token_at() const { return first_token_at_; }
  [[nodiscard]] Clock::time_point last_token_at() const { return last_token_at_; }
  [[nodiscard]] Clock::duration longest_gap() const { return longest_gap_; }

  /// Settings for drawing the token that will be number `position` of the sequence.
  [[nodiscard]] SamplingRow sampling_row(std::int32_t position) const {
    SamplingRow row = sampling_;
    row.position = static_cast<std::uint64_t>(position);
    return row;
  }

  /// Whether draws need more than their settings: `process`, penalties, biases or
  /// log-probabilities of chosen tokens.
  [[nodiscard]] bool has_rules() const { return has_rules_; }
  [[nodiscard]] bool has_penalties() const { return has_penalties_; }
  /// Whether `process` must know all tokens before the one that is to be drawn.
  [[nodiscard]] bool reads_tokens() const { return reads_tokens_; }
  [[nodiscard]] const SamplingParams& params() const { return terms_.params; }

  /// Unlike any other sequence's of the engine, and not 0.
  [[nodiscard]] std::uint64_t owner_id() const {
    return id * kMaxSamples + static_cast<std::uint64_t>(sample_) + 1;
  }
  /// Where its tokens were marked last, see MarkSlots.
  std::optional<std::int32_t> mark_slot{};
  RulesAhead ahead{};

  /// Adds to `mask` what that draw must not give. Calls of a step are in the order of positions.
  void process(std::int32_t position, TokenMask& mask) {
    if (!has_processors_) return;
    if (is_chosen) return process_anew(position, mask);
    const SequenceProcessors& all =
        reads_tokens_ ? ahead.before(*this, position, *processors_) : *processors_;
    all.process(position - num_prompt_tokens, mask);
  }

  /// Most likely tokens to report with every token; -1 for no log-probabilities at all.
  [[nodiscard]] std::int32_t num_logprobs() const { return sampling_.num_logprobs; }

  /// Takes the next token, of which the scheduler has not heard yet. If it throws, the token is not
  /// part of the completion.
  [[nodiscard]] FinishReason accept(TokenId token, std::optional<TokenLogprobs>&& logprobs);

  /// Takes the hidden state of the prompt's last token. Throws what the pooler throws.
  void pool(std::span<const float> hidden);

  /// Takes all tokens of the completion at once: those that were chosen. Returns how they end.
  /// Throws like `accept`.
  FinishReason complete(std::span<const TokenId> all, double cumulative_logprob, float score);

  /// Ends the completion. Text that was held back is released unless a stop string was found.
  void finish(FinishReason reason) noexcept;

  /// What came since the last call, for the listener. A token is reported once, and so is every
  /// piece of text.
  [[nodiscard]] Update take_update() noexcept;

  /// The completion, to be moved out when the request ends.
  [[nodiscard]] Completion take_completion() noexcept { return std::move(completion_); }

 private:
  [[nodiscard]] LogitsProcessorSetup processor_setup(const SamplingParams& params) const;
  /// The same where tokens are chosen, and may be another's after each step: new processors are
  /// made and given them.
  void process_anew(std::int32_t position, TokenMask& mask) const;

  [[nodiscard]] FinishReason accept_last(TokenId token, std::optional<TokenLogprobs>&& logprobs);

  /// Whether a stop string ends the sequence here.
  bool add_text(const std::string& piece, bool can_stop);

  /// The completion and the update get it, or neither.
  void release(const std::string& text);

  // What every step reads comes first, copies of the terms too: a step finds each sequence's memory
  // cold.
  Request& request_;
  const SamplingRow sampling_;
  const std::int32_t min_tokens_, max_tokens_;
  const std::span<const TokenId> end_tokens_;
  const std::int32_t sample_;
  const bool has_listener_;
  const bool keeps_logprobs_;
  bool has_penalties_ = false;
  bool reads_tokens_ = false;
  /// Where tokens are chosen: whether other edits apply than `min_tokens`, which is the chooser's.
  bool has_processors_ = false;
  bool has_rules_ = false;
  bool was_scheduled_ = false;
  bool has_new_token_ = false;
  bool stop_string_found_ = false;
  Clock::time_point last_token_at_{};
  Clock::duration longest_gap_{};
  std::unique_ptr<SequenceProcessors> processors_;
  const SequenceTerms& terms_;
  Completion completion_;
  Clock::time_point first_token_at_{};
  std::optional<Detokenizer> detokenizer_;
  StopMatcher stop_matcher_;
  std::string new_text_;  // released since `take_update`; empty without a listener
  std::optional<TokenLogprobs> new_logprobs_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cstddef>
#include <exception>

#include "nanovllm/core/philox.hpp"

namespace nanovllm {

namespace detail {

/// How sample `i` of a request is drawn. Whether its log-probabilities are wanted or not, they are
/// needed to tell the likeliest.
NANOVLLM_INLINE SamplingRow sampling_of(const SequenceTerms& terms, std::int32_t i) {
  if (terms.num_candidates) {  // they count alone
    SamplingRow row{};
    row.temperature = 0;
    row.num_logprobs = *terms.num_candidates;
    return row;
  }
  SamplingRow row = sampling_row(terms.params);
  if (!terms.params.logprob_token_ids.empty() || draws_more(terms.params))
    row.num_logprobs = std::max(row.num_logprobs, 0);
  if (i > 0) {
    const auto words = philox4x32(row.seed, {static_cast<std::uint32_t>(i), 0, 0, 2});
    row.seed = std::uint64_t{words[0]} << 32 | words[1];
  }
  return row;
}

}  // namespace detail

NANOVLLM_INLINE RequestSequence::RequestSequence(Request& request, const SequenceTerms& terms,
                                                 RequestId request_id, std::int32_t sample,
                                                 std::vector<TokenId> prompt,
                                                 const Tokenizer* tokenizer, bool has_listener)
    : request_(request),
      sampling_(detail::sampling_of(terms, sample)),
      min_tokens_(terms.params.min_tokens),
      max_tokens_(terms.params.max_tokens),
      end_tokens_(terms.end_tokens),
      sample_(sample),
      has_listener_(has_listener),
      keeps_logprobs_(terms.params.logprobs || !terms.params.logprob_token_ids.empty()),
      terms_(terms),
      stop_matcher_(terms.params.stop, terms.params.include_stop_str_in_output) {
  id = request_id;
  num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
  max_total_tokens = terms.max_total_tokens;
  priority = terms.params.priority;
  tokens = std::move(prompt);
  is_chosen = terms.num_candidates.has_value();
  awaits_choice = is_chosen && sample > 0;
  if (terms.params.pooler != nullptr) output = RowKind::hidden;
  has_penalties_ = nanovllm::has_penalties(terms.params);
  const bool has_edits =
      has_penalties_ || !terms.params.logit_bias.empty() || terms.params.functor_argument != 0;
  if (is_chosen) {
    SamplingParams params = terms.params;
    if (!has_edits) params.min_tokens = 0;
    has_processors_ = terms.make_processors(processor_setup(params)) != nullptr;
  } else {
    processors_ = terms.make_processors(processor_setup(terms.params));
    has_processors_ = processors_ != nullptr;
  }
  reads_tokens_ = processors_ && processors_->reads_tokens();
  has_rules_ = has_processors_ || has_edits || !terms.params.logprob_token_ids.empty();
  if (terms.params.prompt_logprobs && sample == 0)  // the others share its prompt
    scores.count = num_prompt_tokens - 1;
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, terms.params.skip_special_tokens);
}

NANOVLLM_INLINE LogitsProcessorSetup
RequestSequence::processor_setup(const SamplingParams& params) const {
  return {.params = params,
          .end_tokens = terms_.end_tokens,
          .prompt = std::span(tokens).first(static_cast<std::size_t>(num_prompt_tokens)),
          .vocab_size = terms_.vocab_size,
          .bad_words = terms_.bad_words};
}

NANOVLLM_INLINE void RequestSequence::process_anew(std::int32_t position, TokenMask& mask) const {
  const auto processors = terms_.make_processors(processor_setup(terms_.params));
  for (std::int32_t i = num_prompt_tokens; i < position; ++i)
    processors->accept(tokens[static_cast<std::size_t>(i)]);
  processors->process(position - num_prompt_tokens, mask);
}

NANOVLLM_INLINE FinishReason RequestSequence::accept(TokenId token,
                                                     std::optional<TokenLogprobs>&& logprobs) {
  completion_.token_ids.push_back(token);
  const double logprob = logprobs ? logprobs->logprob : 0;
  completion_.cumulative_logprob += logprob;
  try {
    return accept_last(token, std::move(logprobs));
  } catch (...) {
    completion_.cumulative_logprob -= logprob;
    completion_.token_ids.pop_back();
    completion_.logprobs.resize(
        std::min(completion_.logprobs.size(), completion_.token_ids.size()));
    throw;
  }
}

NANOVLLM_INLINE void RequestSequence::pool(std::span<const float> hidden) {
  completion_.pooled = terms_.params.pooler->pool(hidden);
}

NANOVLLM_INLINE FinishReason RequestSequence::complete(std::span<const TokenId> all,
                                                       double cumulative_logprob, float score) {
  FinishReason reason = FinishReason::none;
  for (const TokenId token : all) reason = accept(token, std::nullopt);
  completion_.cumulative_logprob = cumulative_logprob;
  completion_.beam_score = score;
  return reason;
}

NANOVLLM_INLINE void RequestSequence::finish(FinishReason reason) noexcept {
  completion_.finish_reason = reason;
  if (stop_string_found_ || !detokenizer_) return;
  try {
    if (!add_text(detokenizer_->flush(), false)) release(stop_matcher_.flush());
  } catch (const std::exception&) {
    // Out of memory: the few bytes held back are in no event and not in the output.
  }
}

NANOVLLM_INLINE RequestSequence::Update RequestSequence::take_update() noexcept {
  Update update{.text = std::move(new_text_)};
  new_text_.clear();
  if (std::exchange(has_new_token_, false)) {
    update.token = completion_.token_ids.back();
    update.logprobs = std::move(new_logprobs_);
  }
  new_logprobs_.reset();
  return update;
}

NANOVLLM_INLINE FinishReason RequestSequence::accept_last(TokenId token,
                                                          std::optional<TokenLogprobs>&& logprobs) {
  if (processors_) processors_->accept(token);
  if (logprobs && keeps_logprobs_) {
    completion_.logprobs.push_back(*logprobs);
    if (has_listener_) new_logprobs_ = std::move(logprobs);
  }
  const bool can_stop = num_generated() >= min_tokens_;
  const bool ends = can_stop && std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
  // An end token is part of the text only if the request asks for that.
  const bool has_text = detokenizer_ && (!ends || terms_.params.include_stop_str_in_output);
  const bool stops = (has_text && add_text(detokenizer_->push(token), can_stop)) || ends ||
                     (can_stop && processors_ && processors_->is_complete());
  has_new_token_ = true;
  if (stops) return FinishReason::stop;
  const bool is_last =
      num_generated() >= max_tokens_ || num_prompt_tokens + num_generated() >= max_total_tokens;
  return is_last ? FinishReason::length : FinishReason::none;
}

NANOVLLM_INLINE bool RequestSequence::add_text(const std::string& piece, bool can_stop) {
  if (!stop_matcher_.has_stops()) {
    release(piece);
    return false;
  }
  if (!can_stop) {
    release(stop_matcher_.pass(piece));
    return false;
  }
  StopMatcher::Result result = stop_matcher_.push(piece);
  release(result.text);
  stop_string_found_ = result.stopped;
  completion_.stop_string = std::move(result.stop);
  return result.stopped;
}

NANOVLLM_INLINE void RequestSequence::release(const std::string& text) {
  completion_.text += text;
  if (!has_listener_) return;
  try {
    new_text_ += text;
  } catch (...) {
    completion_.text.resize(completion_.text.size() - text.size());
    throw;
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
