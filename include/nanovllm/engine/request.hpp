#pragma once
/// One request inside the engine: its sequences, its callback and its output.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/beam_group.hpp"
#include "nanovllm/engine/latency.hpp"
#include "nanovllm/engine/output.hpp"
#include "nanovllm/engine/request_sequence.hpp"
#include "nanovllm/text/tokenizer.hpp"

namespace nanovllm {

class Request;

/// What a callback is to hear, whole in itself: it stays true whatever happens to the request
/// before the callback is called.
struct Event {
  std::shared_ptr<Request> request{};
  RequestSequence::News news{};
  std::int32_t sample = 0;
  FinishReason finish_reason = FinishReason::none;  ///< of the sample
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

  /// Its sequences go on from `held`, which it keeps as long as it lives. Before it is submitted.
  void continue_from(std::shared_ptr<Sequence> held) {
    for (const auto& sequence : sequences_) sequence->continues = held.get();
    held_ = std::move(held);
  }

  /// The search that its sequences are the beams of; null where they are samples.
  [[nodiscard]] BeamGroup* beams() const { return beams_.get(); }

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

  /// Its beams have their next tokens.
  void mark_beams(Clock::time_point now, Latencies& latencies);

  /// A beam search is over: the first sequences get the completions, best first. Returns how each
  /// sequence ends; those without a completion like the first.
  [[nodiscard]] std::vector<FinishReason> complete_beams();

  /// Whether `output` is final.
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  [[nodiscard]] const Output& output() const { return output_; }
  /// The output of a request that has ended and has no callback, to be moved out.
  [[nodiscard]] Output& output() { return output_; }

  /// Sequences that have not ended.
  [[nodiscard]] std::size_t num_going_on() const { return end_events_.size(); }

  /// Ends `sequence`, one of several that go on, and gives its last event. The events of ends were
  /// allocated with the request.
  [[nodiscard]] EventList finish(std::shared_ptr<Request> self, RequestSequence& sequence,
                                 FinishReason reason) noexcept;

  /// Ends all sequences that have not ended, makes the output final and gives their last events.
  /// Once.
  [[nodiscard]] EventList finish(std::shared_ptr<Request> self, FinishReason reason,
                                 const std::string& error) noexcept;

  /// Whether it was given one; true even after the last call, which may be on another thread.
  [[nodiscard]] bool has_callback() const { return has_callback_; }

  /// Where the engine keeps it while it lives.
  RequestList::iterator place{};

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

  const RequestId id_;
  /// The completions that were wanted, from all that were drawn.
  void choose_completions() noexcept;

  const SequenceTerms terms_;
  const bool has_callback_;
  std::shared_ptr<Sequence> held_;  // that it continues
  std::vector<std::unique_ptr<RequestSequence>> sequences_;
  std::unique_ptr<BeamGroup> beams_;
  Output output_;
  std::atomic<bool> has_ended_{false};
  EventList end_events_;  // one for each sequence that goes on
  const Clock::time_point submitted_ = Clock::now();

  // The event queue's:
  TokenCallback callback_;
  bool is_in_callback_ = false;
  bool has_thrown_ = false;
  std::vector<std::string> unheard_texts_;  // of events that came after it threw, by sample
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/request.inc"
#endif
