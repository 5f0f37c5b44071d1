#pragma once
/// From what a step drew to outcomes for the scheduler and events for the callbacks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/event_queue.hpp"
#include "nanovllm/engine/latency.hpp"
#include "nanovllm/engine/output.hpp"
#include "nanovllm/engine/request_sequence.hpp"
#include "nanovllm/engine/step_results.hpp"
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

  /// Takes the memory that the step will need; throws std::bad_alloc before anything is changed.
  /// @param num_events  tokens at the most of sequences with a listener.
  /// @param now         when the step's tokens were there.
  void begin(std::size_t num_samples, std::size_t num_events, Clock::time_point now);

  /// Gives every sampled sequence its tokens, as far as it goes on, the candidates of beams to those
  /// who choose, and requests the log-probabilities of their prompts. Sequences that ended while the
  /// step was under way get nothing from it.
  void accept(const StepPlan& plan, const StepResults& results);

  /// Queues the events of what was accepted. The news of a token that ends a sequence are left to
  /// the request's last event.
  void announce();

  /// What was accepted, one entry a sequence.
  [[nodiscard]] std::span<const StepOutcome> outcomes() const { return outcomes_; }
  [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(drawn_.size()); }
  /// Why `sequence` ended with FinishReason::error; empty if it did not.
  [[nodiscard]] const std::string& error_of(const RequestSequence& sequence) const;

 private:
  /// Rows of the results from `first` on are of the prompt of `planned`.
  void accept_prompt(const PlannedSequence& planned, const StepResults& results,
                     std::int64_t first);
  /// Tokens [first, first + count) of the results are those of `sequence`.
  void accept(RequestSequence& sequence, const StepResults& results, std::int64_t first,
              std::int32_t count);
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
  EventList news_;
  EventList::iterator next_event_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/delivery.inc"
#endif
