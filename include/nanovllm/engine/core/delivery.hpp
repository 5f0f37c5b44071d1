#pragma once
/// From what a step drew to outcomes for the scheduler and events for the callbacks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/latency.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/engine/step/step_results.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Takes one step after the other: `begin`, `accept`, the scheduler's commit of `outcomes()`,
/// `announce`. Memory is kept from step to step.
class Delivery {
 public:
  using Clock = RequestSequence::Clock;

  /// `events` and `latencies` must outlive this.
  Delivery(std::int64_t vocab_size, EventQueue& events, Latencies& latencies)
      : vocab_size_(vocab_size), events_(events), latencies_(latencies) {}

  /// Takes the memory that the step will need. Before anything is changed, throws Error where
  /// `results` have other rows than `plan` asked for, and std::bad_alloc.
  /// @param num_events  the most tokens that sequences with a listener can get.
  /// @param now         when the step's tokens were there.
  void begin(const StepPlan& plan, const StepResults& results, std::size_t num_events,
             Clock::time_point now);

  /// Gives every sampled sequence its tokens, up to the one that ends it; hidden states to those
  /// that want them, which end; candidates to the TokenChooser; and the
  /// log-probabilities of prompts to their requests. Sequences that ended while the step was under
  /// way get nothing from it.
  void accept(const StepPlan& plan, const StepResults& results);

  /// Queues the events of what was accepted. The update of a token that ends a sequence is part of
  /// its last event.
  void announce();

  /// What was accepted, one entry a sequence.
  [[nodiscard]] std::span<const StepOutcome> outcomes() const { return outcomes_; }
  [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(drawn_.size()); }
  /// Why `sequence` ended with FinishReason::error; empty if it did not.
  [[nodiscard]] const std::string& error_of(const RequestSequence& sequence) const;

 private:
  /// Rows of the results from `row` on are for `use` of `sequence`.
  void accept_scores(RequestSequence& sequence, const RowUse& use, const StepResults& results,
                     std::int64_t row);
  /// Tokens [first, first + count) of the results are those of `sequence`: it gets them up to the
  /// first that is not the one that was guessed.
  void accept_draws(RequestSequence& sequence, const StepResults& results, std::int64_t first,
                    std::int32_t count);
  /// Row `i` of the hidden states is that of `sequence`.
  void accept_hidden(RequestSequence& sequence, const StepResults& results, std::int64_t i);
  /// `sequence` has got `count` tokens, at least one.
  void mark_tokens(RequestSequence& sequence, std::int64_t count);
  /// The gaps that began at `gap_begin_` go to the histogram.
  void count_gaps();
  [[nodiscard]] TokenLogprobs logprobs_of(const RequestSequence& sequence,
                                          const StepResults& results, std::int64_t i) const;
  /// The `count` likeliest tokens of row `i`.
  [[nodiscard]] std::vector<std::pair<TokenId, float>> likeliest(const StepResults& results,
                                                                 std::int64_t i,
                                                                 std::int32_t count) const;

  const std::int64_t vocab_size_;
  EventQueue& events_;
  Latencies& latencies_;
  // Most sequences of a step were in the step before, too: they are counted at once.
  Clock::time_point now_{}, gap_begin_{};
  std::int64_t num_gaps_ = 0;
  std::vector<TokenId> drawn_;
  std::vector<StepOutcome> outcomes_;
  std::vector<std::pair<const RequestSequence*, std::string>> errors_;
  EventList update_;
  EventList::iterator next_event_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

NANOVLLM_INLINE void Delivery::begin(const StepPlan& plan, const StepResults& results,
                                     std::size_t num_events, Clock::time_point now) {
  std::int64_t num_rows = 0, num_hidden = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    num_rows += planned.rows.num_logits();
    num_hidden += planned.rows.count(RowKind::hidden);
  }
  check(results.tokens.extent(0) == num_rows && results.hidden.extent(0) == num_hidden,
        "the step has ", num_rows, " rows of logits and ", num_hidden,
        " hidden states, but the runner gave ", results.tokens.extent(0), " and ",
        results.hidden.extent(0));
  const auto num_samples = static_cast<std::size_t>(num_rows);
  now_ = now;
  num_gaps_ = 0;
  outcomes_.clear();
  outcomes_.reserve(num_samples + static_cast<std::size_t>(results.hidden.extent(0)));
  drawn_.clear();
  drawn_.reserve(num_samples);
  errors_.clear();
  update_ = events_.allocate(num_events);
  next_event_ = update_.begin();
}

NANOVLLM_INLINE void Delivery::accept(const StepPlan& plan, const StepResults& results) {
  std::int64_t row = 0, hidden_row = 0;  // of the results
  for (const PlannedSequence& planned : plan.sequences) {
    RequestSequence& sequence = RequestSequence::of(*planned.sequence);
    const bool has_ended = sequence.status == SequenceStatus::finished;
    for (const RowUse& use : planned.rows.all()) {
      std::int64_t& next = use.kind == RowKind::hidden ? hidden_row : row;
      const std::int64_t first = std::exchange(next, next + use.count);
      if (has_ended || use.count == 0) continue;
      switch (use.kind) {
        case RowKind::score: accept_scores(sequence, use, results, first); break;
        case RowKind::draw: accept_draws(sequence, results, first, use.count); break;
        case RowKind::hidden: accept_hidden(sequence, results, first); break;
      }
    }
  }
  count_gaps();
}

NANOVLLM_INLINE void Delivery::accept_scores(RequestSequence& sequence, const RowUse& use,
                                             const StepResults& results, std::int64_t row) {
  const std::int32_t count = *sequence.params().prompt_logprobs;
  // The row of one token is about the next.
  for (std::int32_t position = use.first + 1; position <= use.end(); ++position, ++row) {
    sequence.request().set_prompt_logprobs(
        position, {.token_id = sequence.tokens[static_cast<std::size_t>(position)],
                   .logprob = results.chosen_logprobs[row].data[0],
                   .top = likeliest(results, row, count)});
  }
}

NANOVLLM_INLINE void Delivery::accept_draws(RequestSequence& sequence, const StepResults& results,
                                            std::int64_t first, std::int32_t count) {
  if (sequence.is_chosen) {
    sequence.request().chooser()->take(sequence.sample(), results.top_tokens.at(first),
                                       results.top_logprobs.at(first));
    outcomes_.push_back({.sequence = &sequence});
    return;
  }
  const std::size_t begin = drawn_.size();
  FinishReason reason = FinishReason::none;
  bool is_as_guessed = true;  // all tokens before
  for (std::int64_t i = first; i < first + count && is_as_guessed && reason == FinishReason::none;
       ++i) {
    const TokenId token = *results.tokens.at(i);
    is_as_guessed =
        sequence.ahead.is_as_guessed(sequence, static_cast<std::size_t>(i - first), token);
    drawn_.push_back(token);
    try {
      std::optional<TokenLogprobs> logprobs;
      if (sequence.num_logprobs() >= 0) logprobs = logprobs_of(sequence, results, i);
      reason = sequence.accept(token, std::move(logprobs));
    } catch (...) {
      reason = FinishReason::error;
      sequence.request().output().is_refused = is_request_error(std::current_exception());
      errors_.emplace_back(&sequence, message_of(std::current_exception()));
    }
    if (reason != FinishReason::none || !sequence.has_listener()) continue;
    *next_event_++ = {.request = *sequence.request().place,
                      .update = sequence.take_update(),
                      .sample = sequence.sample()};
  }
  const std::span<const TokenId> tokens = std::span(drawn_).subspan(begin);
  // One that could not be accepted is not part of the completion.
  const std::size_t num_accepted = tokens.size() - (reason == FinishReason::error ? 1 : 0);
  if (num_accepted > 0) mark_tokens(sequence, static_cast<std::int64_t>(num_accepted));
  outcomes_.push_back({&sequence, tokens, reason});
}

NANOVLLM_INLINE void Delivery::accept_hidden(RequestSequence& sequence, const StepResults& results,
                                             std::int64_t i) {
  FinishReason reason = FinishReason::stop;
  try {
    const auto size = static_cast<std::size_t>(results.hidden.extent(1));
    sequence.pool({results.hidden.at(i), size});
  } catch (...) {
    reason = FinishReason::error;
    errors_.emplace_back(&sequence, message_of(std::current_exception()));
  }
  outcomes_.push_back({.sequence = &sequence, .finish_reason = reason});
}

NANOVLLM_INLINE void Delivery::mark_tokens(RequestSequence& sequence, std::int64_t count) {
  const Clock::time_point before = sequence.mark_tokens(now_);
  if (before == Clock::time_point{}) {
    sequence.request().mark_token(now_, latencies_);
  } else {
    if (before != gap_begin_) count_gaps();
    gap_begin_ = before;
    ++num_gaps_;
  }
  if (count > 1) latencies_.inter_token.add(0, count - 1);
}

NANOVLLM_INLINE void Delivery::count_gaps() {
  if (num_gaps_ == 0) return;
  latencies_.inter_token.add(std::chrono::duration<double>(now_ - gap_begin_).count(),
                             std::exchange(num_gaps_, 0));
}

NANOVLLM_INLINE TokenLogprobs Delivery::logprobs_of(const RequestSequence& sequence,
                                                    const StepResults& results,
                                                    std::int64_t i) const {
  TokenLogprobs out{.token_id = *results.tokens.at(i),
                    .logprob = *results.logprobs.at(i),
                    .top = likeliest(results, i, sequence.num_logprobs())};
  const std::vector<TokenId>& chosen = sequence.params().logprob_token_ids;
  if (chosen.empty()) return out;
  const VectorView<const float> logprobs = results.chosen_logprobs[i];
  for (std::size_t j = 0; j < chosen.size(); ++j)
    out.chosen.emplace_back(chosen[j], logprobs.data[j]);
  return out;
}

NANOVLLM_INLINE std::vector<std::pair<TokenId, float>> Delivery::likeliest(
    const StepResults& results, std::int64_t i, std::int32_t count) const {
  std::vector<std::pair<TokenId, float>> top;
  top.reserve(static_cast<std::size_t>(std::min<std::int64_t>(count, vocab_size_)));
  for (std::int64_t j = 0; j < std::min<std::int64_t>(count, vocab_size_); ++j)
    top.emplace_back(*results.top_tokens.at(i, j), *results.top_logprobs.at(i, j));
  return top;
}

NANOVLLM_INLINE void Delivery::announce() { events_.push(std::move(update_)); }

NANOVLLM_INLINE const std::string& Delivery::error_of(const RequestSequence& sequence) const {
  static const std::string kNone;
  const auto error = std::find_if(errors_.begin(), errors_.end(),
                                  [&](const auto& entry) { return entry.first == &sequence; });
  return error == errors_.end() ? kNone : error->second;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
