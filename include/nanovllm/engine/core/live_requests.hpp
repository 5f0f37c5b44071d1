#pragma once
/// The requests that an engine serves, from the inbox to their ends.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/core/delivery.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Owns the requests, gives their sequences to the scheduler and takes them back, and queues the
/// events of their ends. A request that has ended is kept until no step under way may have its
/// sequences. Called under the core's lock.
template <class Scheduler>
class LiveRequests {
 public:
  using Clock = RequestSequence::Clock;

  /// All of them must outlive this.
  LiveRequests(Scheduler& scheduler, Inbox& inbox, EventQueue& events, StepObservers& observers)
      : scheduler_(scheduler), inbox_(inbox), events_(events), observers_(observers) {}

  /// What other threads left in the inbox: new requests join the scheduler's queue, unless an
  /// observer holds them back, and aborted ones end. Returns whether a request ended.
  /// @param oldest, newest  numbers of the steps under way, 0 for none.
  bool take_inbox(std::uint64_t oldest, std::uint64_t newest) {
    inbox_.take(incoming_);
    bool ended = false;
    observers_.tell(&StepObserver::poll, oldest, newest,
                    [&](Request& request) { ended |= !schedule(request); });
    while (!incoming_.submitted.empty()) {
      Request& request = take_first();
      if (!observers_.ask(&StepObserver::holds_back, request, newest)) ended |= !schedule(request);
    }
    for (; !incoming_.aborted.empty(); incoming_.aborted.pop_front()) {
      Request& request = *incoming_.aborted.front();
      if (request.has_ended()) continue;
      end(request, FinishReason::abort, {});
      ended = true;
    }
    return ended;
  }

  /// Whether the last `take_inbox` threw and left some of what it took.
  [[nodiscard]] bool has_incoming() const {
    return !incoming_.submitted.empty() || !incoming_.aborted.empty();
  }

  /// The engine goes: ends all requests, those in the inbox included, and takes no more. The
  /// scheduler's queues are left as they are.
  void shut_down() noexcept {
    inbox_.close();
    inbox_.take(incoming_);
    while (!incoming_.submitted.empty()) take_first();
    while (!live_.empty()) announce_end(*live_.front(), FinishReason::abort, {});
  }

  /// Gives the sequences of `request` to the scheduler. Returns false if it has ended instead.
  bool schedule(Request& request) {
    try {
      for (const auto& sequence : request.sequences()) scheduler_.add(*sequence);
      return true;
    } catch (const std::exception& error) {
      request.output().is_refused = is_request_error(std::current_exception());
      end(request, FinishReason::error, error.what());
      return false;
    }
  }

  /// Ends `request`, which has not ended, wherever its sequences are.
  void end(Request& request, FinishReason reason, const std::string& error) noexcept {
    for (const auto& sequence : request.sequences()) {
      if (sequence->arrival != 0) scheduler_.abort(*sequence);
    }
    announce_end(request, reason, error);
  }

  /// Ends the requests of all sequences in `plan`, which is in no step any more.
  void end_all(const StepPlan& plan, const std::string& error) noexcept {
    for (const PlannedSequence& planned : plan.sequences) {
      if (planned.sequence->status == SequenceStatus::finished) continue;
      end(RequestSequence::of(*planned.sequence).request(), FinishReason::error, error);
    }
  }

  /// A step is committed. Ends the requests whose sequences it has finished. Where all
  /// sequences of a request await a choice, makes it.
  void finish_step(const Delivery& delivery, Clock::time_point now) noexcept {
    num_sampled_tokens_ += delivery.num_tokens();
    for (const StepOutcome& outcome : delivery.outcomes()) {
      if (outcome.finish_reason != FinishReason::none) finish(outcome, delivery);
    }
    for (const StepOutcome& outcome : delivery.outcomes()) {
      if (outcome.sequence->is_chosen) choose_tokens_of(outcome, now);
    }
  }

  /// Step `number` is launched: requests that end from now on are kept until it is done.
  void begin_step(std::uint64_t number) noexcept { newest_step_ = number; }

  /// Lets go of requests that have ended and are in no step under way.
  /// @param oldest_step  of those under way; 0 for none.
  void release(std::uint64_t oldest_step) noexcept {
    const auto oldest = oldest_step == 0 ? std::numeric_limits<std::uint64_t>::max() : oldest_step;
    while (!ended_.empty() && ended_.front()->newest_step < oldest) ended_.pop_front();
  }

  /// Sequences that have ended, and tokens that were generated.
  [[nodiscard]] std::int64_t num_finished() const { return num_finished_; }
  [[nodiscard]] std::int64_t num_sampled_tokens() const { return num_sampled_tokens_; }

 private:
  /// Moves the first request that was submitted to those that live.
  Request& take_first() {
    live_.splice(live_.end(), incoming_.submitted, incoming_.submitted.begin());
    Request& request = *live_.back();
    request.place = std::prev(live_.end());
    return request;
  }

  void announce_end(Request& request, FinishReason reason, const std::string& error) noexcept {
    request.newest_step = newest_step_;
    ended_.splice(ended_.end(), live_, request.place);
    observers_.tell(&StepObserver::forget, request);
    inbox_.retire(request.id());
    num_finished_ += static_cast<std::int64_t>(request.num_going_on());
    EventList last = request.finish(*request.place, reason, error);
    if (reason == FinishReason::stop || reason == FinishReason::length)
      inbox_.latencies().end_to_end.add(std::as_const(request).output().timings.finished);
    events_.push(std::move(last));
  }

  /// A sequence has ended, and others of its request have not.
  void end_sample(Request& request, RequestSequence& sequence, FinishReason reason) noexcept {
    events_.push(request.finish(*request.place, sequence, reason));
    ++num_finished_;
  }

  /// The scheduler has finished the outcome's sequence.
  void finish(const StepOutcome& outcome, const Delivery& delivery) noexcept {
    RequestSequence& sequence = RequestSequence::of(*outcome.sequence);
    Request& request = sequence.request();
    if (request.has_ended()) return;  // with another of its sequences, by an error
    if (outcome.finish_reason != FinishReason::error && request.num_going_on() > 1)
      end_sample(request, sequence, outcome.finish_reason);
    else
      end(request, outcome.finish_reason, delivery.error_of(sequence));
  }

  void choose_tokens_of(const StepOutcome& outcome, Clock::time_point now) noexcept {
    Request& request = RequestSequence::of(*outcome.sequence).request();
    const auto awaits = [](const auto& sequence) { return sequence->awaits_choice; };
    if (request.has_ended() || !std::ranges::all_of(request.sequences(), awaits)) return;
    try {
      choose_tokens(request, now);
    } catch (...) {
      request.output().is_refused = is_request_error(std::current_exception());
      end(request, FinishReason::error, message_of(std::current_exception()));
    }
  }

  /// All sequences of `request` have drawn: the chosen tokens are theirs, or it is over.
  void choose_tokens(Request& request, Clock::time_point now) {
    const auto choices = request.chooser()->choose(request.sequences());
    scheduler_.choices().apply(choices);
    num_sampled_tokens_ += static_cast<std::int64_t>(request.sequences().size());
    request.mark_choice(now, inbox_.latencies());
    if (!choices.empty()) return;
    const std::vector<FinishReason> reasons = request.complete_chosen();
    for (std::size_t i = reasons.size(); --i > 0;)
      end_sample(request, *request.sequences()[i], reasons[i]);
    end(request, reasons[0], {});
  }

  Scheduler& scheduler_;
  Inbox& inbox_;
  EventQueue& events_;
  StepObservers& observers_;
  Inbox::Content incoming_;
  RequestList live_;
  RequestList ended_;  ///< in the order of their ends
  std::uint64_t newest_step_ = 0;
  std::int64_t num_finished_ = 0;
  std::int64_t num_sampled_tokens_ = 0;
};

}  // namespace nanovllm
