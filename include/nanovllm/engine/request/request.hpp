#pragma once
/// One request inside the engine: its sequences, its callback and its output.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/latency.hpp"
#include "nanovllm/engine/request/output.hpp"
#include "nanovllm/engine/request/request_sequence.hpp"
#include "nanovllm/engine/request/token_chooser.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

class Request;

/// What a callback is told. It is a value: it stays true whatever happens to the request before the
/// callback is called.
struct Event {
  std::shared_ptr<Request> request{};
  RequestSequence::Update update{};
  std::int32_t sample = 0;
  FinishReason finish_reason = FinishReason::none;  ///< of the sample
  std::string_view stop_string{};                   ///< of the request's terms
  bool is_last = false;                             ///< of the request
};

/// Lists of events and requests are spliced, so that what ends a request allocates nothing.
using EventList = std::list<Event>;
using RequestList = std::list<std::shared_ptr<Request>>;

/// Owner of the sequences of one request. The engine's step changes it under the step's lock; when
/// `has_ended` says so, its output is final and may be read by any thread.
class Request {
 public:
  Request(RequestId id, SequenceTerms terms, std::vector<TokenId> prompt,
          const Tokenizer* tokenizer, TokenCallback callback);

  ~Request();

  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  [[nodiscard]] RequestId id() const { return id_; }
  [[nodiscard]] std::span<const std::unique_ptr<RequestSequence>> sequences() const {
    return sequences_;
  }

  /// Its sequences continue `s`, which it keeps until it is destroyed. To be called before it is
  /// submitted.
  void continue_from(std::shared_ptr<Sequence> s) {
    for (const auto& sequence : sequences_) sequence->continues = s.get();
    continued_ = std::move(s);
  }

  /// With which its prompt is looked for in the prefix cache. To be called before it is submitted.
  void set_salt(const CacheSalt& salt) {
    for (const auto& sequence : sequences_) sequence->salt = salt;
  }

  /// Of its sequences' tokens; null where they are drawn.
  [[nodiscard]] TokenChooser* chooser() const { return chooser_.get(); }

  using Clock = RequestSequence::Clock;

  /// One of its sequences is in a step for the first time.
  void mark_scheduled(Clock::time_point now, Latencies& latencies) {
    mark(output_.timings.scheduled, now, latencies.queue);
  }
  /// One of its sequences has its first token.
  void mark_token(Clock::time_point now, Latencies& latencies) {
    mark(output_.timings.first_token, now, latencies.first_token);
  }

  /// What a step has found out of token `position` of the prompt.
  void set_prompt_logprobs(std::int32_t position, TokenLogprobs&& logprobs) {
    output_.prompt_logprobs[static_cast<std::size_t>(position)] = std::move(logprobs);
  }

  /// Its sequences have the tokens that were chosen.
  void mark_choice(Clock::time_point now, Latencies& latencies);

  /// The chooser is done. Returns how each sequence ends.
  [[nodiscard]] std::vector<FinishReason> complete_chosen() {
    return chooser_->complete(sequences_, static_cast<std::size_t>(terms_.params.n));
  }

  /// Whether `output` is final.
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  [[nodiscard]] const Output& output() const { return output_; }
  /// The output of a request that has ended and has no callback, to be moved out.
  [[nodiscard]] Output& output() { return output_; }

  /// Sequences that have not ended.
  [[nodiscard]] std::size_t num_going_on() const { return end_events_.size(); }

  /// Ends `sequence`, while others have not ended, and gives its last event. The events of ends
  /// were allocated with the request.
  [[nodiscard]] EventList finish(std::shared_ptr<Request> self, RequestSequence& sequence,
                                 FinishReason reason) noexcept;

  /// Ends all sequences that have not ended, makes the output final and gives their last events.
  /// Once. An error is the whole request's: its completions that had ended are errors, too.
  [[nodiscard]] EventList finish(std::shared_ptr<Request> self, FinishReason reason,
                                 const std::string& error) noexcept;

  /// Whether it was given one; true even after the last call, which may be on another thread.
  [[nodiscard]] bool has_callback() const { return has_callback_; }

  /// Where the engine keeps it.
  RequestList::iterator place{};
  /// When it ended, the newest step that had been launched: those up to it may have its sequences.
  std::uint64_t newest_step = 0;

 private:
  friend class EventQueue;

  void mark(double& timing, Clock::time_point now, LatencyHistogram& histogram) {
    if (timing != 0) return;
    timing = seconds_to(now);
    histogram.add(timing);
  }
  [[nodiscard]] double seconds_to(Clock::time_point now) const {
    return std::chrono::duration<double>(now - submitted_).count();
  }
  void sum_up_gaps() noexcept;
  /// The completions that were wanted, from all that were drawn.
  void choose_completions() noexcept;
  /// Makes an output that is complete that of a request which failed.
  void fail_output(const std::string& error) noexcept;

  const RequestId id_;
  SequenceTerms terms_;
  const bool has_callback_;
  std::shared_ptr<Sequence> continued_;
  std::vector<std::unique_ptr<RequestSequence>> sequences_;
  std::unique_ptr<TokenChooser> chooser_;
  Output output_;
  std::atomic<bool> has_ended_{false};
  EventList end_events_;  // one for each sequence that has not ended
  const Clock::time_point submitted_ = Clock::now();

  // The event queue's:
  TokenCallback callback_;
  bool is_in_callback_ = false;
  std::string thrown_;  // by the callback before its last event; empty if nothing was
  std::vector<std::string> unheard_texts_;  // of events that came after it threw, by sample
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <exception>
#include <limits>

namespace nanovllm {

NANOVLLM_INLINE Request::Request(RequestId id, SequenceTerms terms, std::vector<TokenId> prompt,
                                 const Tokenizer* tokenizer, TokenCallback callback)
    : id_(id),
      terms_(std::move(terms)),
      has_callback_(static_cast<bool>(callback)),
      callback_(std::move(callback)) {
  output_.id = id;
  output_.num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
  if (terms_.params.prompt_logprobs) output_.prompt_logprobs.resize(prompt.size());
  const std::int32_t count = num_samples(terms_.params);
  if (terms_.params.beam_width) {
    const auto search = detail::through<RequestError>(search_with_beams_door,
                                                      "nanovllm/with/beams.hpp", "beam_width");
    chooser_ = search(terms_, output_.num_prompt_tokens);
  }
  const bool has_listener = has_callback_ && is_streamed(terms_.params);
  for (std::int32_t i = 0; i < count; ++i) {
    const bool is_last = i + 1 == count;
    sequences_.push_back(std::make_unique<RequestSequence>(
        // NOLINTNEXTLINE(bugprone-use-after-move): moved for the last one alone
        *this, terms_, id, i, is_last ? std::move(prompt) : prompt, tokenizer, has_listener));
    end_events_.emplace_back();
  }
  for (std::size_t i = 0; count > 1 && i < sequences_.size(); ++i)
    sequences_[i]->next_sibling = sequences_[(i + 1) % sequences_.size()].get();
  output_.alternatives.reserve(static_cast<std::size_t>(terms_.params.n) - 1);
  if (has_callback_) unheard_texts_.resize(sequences_.size());
}

NANOVLLM_INLINE Request::~Request() = default;

namespace detail {

/// Ends `sequence`; `event` tells of it.
NANOVLLM_INLINE void finish(RequestSequence& sequence, FinishReason reason,
                            std::shared_ptr<Request> request, Event& event) noexcept {
  sequence.finish(reason);
  event.request = std::move(request);
  event.update = sequence.take_update();
  event.sample = sequence.sample();
  event.finish_reason = reason;
  if (reason == FinishReason::stop) event.stop_string = sequence.stop_string();
}

}  // namespace detail

NANOVLLM_INLINE void Request::mark_choice(Clock::time_point now, Latencies& latencies) {
  mark_token(now, latencies);
  for (std::int32_t i = 0; i < terms_.params.n; ++i) {  // as if the completions were drawn
    const Clock::time_point before = sequences_[static_cast<std::size_t>(i)]->mark_tokens(now);
    if (before != Clock::time_point{})
      latencies.inter_token.add(std::chrono::duration<double>(now - before).count());
  }
}

NANOVLLM_INLINE EventList Request::finish(std::shared_ptr<Request> self, RequestSequence& sequence,
                                          FinishReason reason) noexcept {
  EventList ended;
  ended.splice(ended.end(), end_events_, end_events_.begin());
  detail::finish(sequence, reason, std::move(self), ended.front());
  return sequence.has_listener() ? std::move(ended) : EventList();
}

NANOVLLM_INLINE EventList Request::finish(std::shared_ptr<Request> self, FinishReason reason,
                                          const std::string& error) noexcept {
  EventList events = std::move(end_events_);
  auto event = events.begin();
  for (const auto& sequence : sequences_) {
    if (!sequence->has_ended()) detail::finish(*sequence, reason, self, *event++);
  }
  events.back().is_last = true;
  if (!is_streamed(terms_.params)) {
    while (events.size() > 1) events.pop_front();
    events.front().update.token.reset();
    events.front().sample = 0;
    events.front().stop_string = {};
  }
  output_.num_cached_tokens = sequences_.front()->num_cached_tokens;
  sum_up_gaps();
  choose_completions();
  output_.timings.finished = seconds_to(Clock::now());
  if (reason == FinishReason::error) fail_output(error);
  has_ended_.store(true, std::memory_order_release);
  return events;
}

NANOVLLM_INLINE void Request::fail_output(const std::string& error) noexcept {
  output_.finish_reason = FinishReason::error;
  for (Completion& other : output_.alternatives) other.finish_reason = FinishReason::error;
  try {
    output_.error = error;
  } catch (...) {
    output_.error = "out of memory";  // short enough to need none
  }
}

NANOVLLM_INLINE void Request::choose_completions() noexcept {
  // Those that were cut off by an abort or an error have fewer tokens, but count as well. They are
  // few, and a sort would take memory.
  if (draws_more(terms_.params)) {
    const auto is_worse = [](const auto& a, const auto& b) {
      const double of_a = a->completion().cumulative_logprob;
      const double of_b = b->completion().cumulative_logprob;
      return of_a != of_b ? of_a < of_b : a->sample() > b->sample();
    };
    const auto end = sequences_.begin() + terms_.params.n;
    for (auto first = sequences_.begin(); first != end; ++first)
      std::iter_swap(first, std::max_element(first, sequences_.end(), is_worse));
  }
  static_cast<Completion&>(output_) = sequences_.front()->take_completion();
  for (std::size_t i = 1; i < static_cast<std::size_t>(terms_.params.n); ++i)
    output_.alternatives.push_back(sequences_[i]->take_completion());
}

NANOVLLM_INLINE void Request::sum_up_gaps() noexcept {
  Clock::duration sum{}, longest{};
  std::int64_t num_gaps = 0;
  for (const auto& sequence : sequences_) {
    sum += sequence->last_token_at() - sequence->first_token_at();
    longest = std::max(longest, sequence->longest_gap());
    num_gaps += std::max(0, sequence->num_generated() - 1);
  }
  const auto seconds = [](Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  };
  if (num_gaps > 0) output_.timings.mean_inter_token = seconds(sum) / static_cast<double>(num_gaps);
  output_.timings.max_inter_token = seconds(longest);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
