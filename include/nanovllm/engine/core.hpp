#pragma once
/// The engine's step: take what came, plan, launch, wait, commit, and put events into the queue.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/disk/disk_loads.hpp"
#include "nanovllm/engine/disk/disk_tier.hpp"
#include "nanovllm/engine/disk/no_disk_loads.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/delivery.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/session/kv_file.hpp"
#include "nanovllm/engine/session/session_host.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_sampling.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/scheduler.hpp"

namespace nanovllm {

/// Queues, steps under way and counters of one engine.
///
/// A step is a transaction. What throws while it is planned or handed over is undone: queues,
/// blocks and sequences are as they were, and the requests in the step end with the error. What
/// throws later, while it is computed or its results are taken, ends the requests in it, too. No
/// other request is touched.
///
/// Thread-safe: steps run one at a time.
///
/// The template's parameters are those of `Scheduler`; model and backend are behind `StepRunner`.
template <class Scheduling, class Blocks, class Preemption>
class EngineCore : public SessionStore {
 public:
  /// `inbox` and `events` must outlive the core.
  /// @param overlap  plan and launch a step before the one before it is waited for.
  EngineCore(std::unique_ptr<StepRunner> runner, const BatchConfig& batch, Blocks blocks,
             bool overlap, std::int64_t vocab_size, Inbox& inbox, EventQueue& events);

  /// Puts `disk` below the host's pool. Once, before the first request.
  /// @param min_tokens  that a request waits for at the least.
  void add_disk_tier(std::unique_ptr<DiskTier> disk, int min_tokens);

  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  ~EngineCore() override;

  /// Waits for the steps under way and ends all requests with FinishReason::abort: the engine takes
  /// no more, and steps do nothing.
  void shut_down() noexcept;

  /// One step, without the callbacks: its events are in the queue. Returns whether there was
  /// anything to do. Throws what the scheduling policy throws, and Error when it plans nothing
  /// though there is work and no step is under way; nothing has changed then.
  bool step();

  /// Ends `request` with an error, unless it has ended.
  void fail(const std::shared_ptr<Request>& request, const std::string& error);

  /// Makes ranks that have failed able to compute again (Runner::reset). Steps under way are
  /// undone; their requests are not lost: all that run are computed from the start. Throws Error
  /// when it cannot be done.
  void reset();

  // ---- Sessions ----
  void open_session(Sequence& held) override;
  void close_session(Sequence& held) noexcept override;
  void clear_session(Sequence& held) noexcept override;
  void fork_session(const Sequence& from, Sequence& to) override;
  void save_session(const Sequence& held, std::span<const TokenId> tokens,
                    SectionWriter& file) override;
  void load_session(Sequence& held, std::vector<TokenId> tokens,
                    std::span<const std::byte* const> rows) override;

  // ---- The prefix cache as a whole ----

  /// Adds all that the prefix cache has to `file`. Throws ConfigError when it cannot be listed.
  void save_cache(SectionWriter& file);
  /// Reads what `save_cache` wrote; returns the number of blocks that were put in. Throws
  /// LoadError, having changed nothing.
  std::int32_t load_cache(SectionReader& file, const KvRows& layout);

  [[nodiscard]] const StepRunner& runner() const { return *runner_; }
  [[nodiscard]] StepRunner& runner() { return *runner_; }
  [[nodiscard]] std::int32_t capacity_tokens() const { return scheduler_.capacity_tokens(); }
  [[nodiscard]] std::int32_t num_kv_blocks() const { return scheduler_.blocks().num_blocks(); }

  /// Throws Error naming the first broken invariant of the scheduler and its block manager.
  void check_invariants() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Disk = std::conditional_t<HasHostPool<Blocks>, DiskLoads<Blocks>, NoDiskLoads>;
  enum class Launch : std::uint8_t { nothing, done, undone };

  /// A step between `launch` and the end of `deliver`.
  struct Step {
    StepPlan plan;
    std::size_t num_events = 0;  ///< at the most, of sequences with a listener
    double device_seconds = 0;
    bool is_deferred = false;  ///< how its logits are drawn from is yet to be said
    RequestList ended{};       ///< meanwhile: this plan, or an older one, may have their sequences
    std::uint64_t number = 0;
    /// Requests in it that cannot be drawn for. They end when the step before has been delivered,
    /// with the tokens that they would have without it.
    std::vector<StepSampling::Fault> faults{};
  };

  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// What other threads left since the last step. Returns whether a request ended.
  bool take_inbox() {
    inbox_.take(incoming_);
    bool ended = false;
    const std::uint64_t newest = under_way_.empty() ? 0 : under_way_.back().number;
    if (disk_) {
      disk_->poll(under_way_.empty() ? 0 : under_way_.front().number, newest,
                  [&](Request& request) { ended |= !add(request); });
    }
    while (!incoming_.submitted.empty()) {
      live_.splice(live_.end(), incoming_.submitted, incoming_.submitted.begin());
      Request& request = *live_.back();
      request.place = std::prev(live_.end());
      if (!disk_ || !disk_->begin(request, newest)) ended |= !add(request);
    }
    for (; !incoming_.aborted.empty(); incoming_.aborted.pop_front()) {
      Request& request = *incoming_.aborted.front();
      if (request.has_ended()) continue;
      drop(request);
      end(request, FinishReason::abort, {});
      ended = true;
    }
    return ended;
  }

  /// Gives the sequences of `request` to the scheduler. Returns false if it has ended instead.
  bool add(Request& request) {
    try {
      for (const auto& sequence : request.sequences()) scheduler_.add(*sequence);
      return true;
    } catch (const std::exception& error) {
      drop(request);
      end(request, FinishReason::error, error.what());
      return false;
    }
  }

  /// Plans a step and hands it to the runner. Behind a step under way there may be nothing to plan
  /// before that one's results are known.
  Launch launch() {
    if (!scheduler_.has_work()) return Launch::nothing;
    StepPlan plan = scheduler_.schedule();  // decides, changes nothing
    while (plan.empty() && under_way_.empty() && scheduler_.free_blocks())
      plan = scheduler_.schedule();
    if (plan.empty()) {
      check(!under_way_.empty(),
            "engine: there is work, but the scheduling policy planned nothing");
      return Launch::nothing;
    }
    under_way_.push_back({.plan = std::move(plan)});
    Step& step = under_way_.back();
    step.number = ++num_launched_;
    bool has_begun = false;
    try {
      scheduler_.begin(step.plan);  // gives the planned sequences their blocks
      has_begun = true;
      if (disk_) disk_->hold(step.plan.copies_down, step.number);
      build_inputs(step);
      const Clock::time_point begin = Clock::now();
      runner_->launch(inputs_);
      if (inputs_.is_deferred() && !step.is_deferred) runner_->sample(sampling_.pack());
      if (!runner_->is_asynchronous()) {  // it has computed the step right here
        step.device_seconds = seconds_since(begin);
        device_seconds_ += step.device_seconds;
      }
      return Launch::done;
    } catch (...) {
      undo_newest(has_begun, message_of(std::current_exception()));
      return Launch::undone;
    }
  }

  /// Flattens the plan, and the sampler's settings of those sequences that get a token. Where these
  /// depend on tokens that the step ahead is yet to draw, the step is left open.
  void build_inputs(Step& step) {
    Clock::time_point now{};  // read once, where there is a new one
    for (const PlannedSequence& planned : step.plan.sequences) {
      RequestSequence& sequence = RequestSequence::of(*planned.sequence);
      if (sequence.has_listener()) step.num_events += static_cast<std::size_t>(planned.num_logits);
      if (sequence.is_first_step()) {
        if (now == Clock::time_point{}) now = Clock::now();
        sequence.request().mark_scheduled(now, inbox_.latencies());
      }
    }
    step.is_deferred = under_way_.size() > 1 && sampling_.awaits_tokens(step.plan);
    if (!step.is_deferred) sampling_.fill(step.plan, step.faults);
    if (step.is_deferred || sampling_.has_edits()) {
      inputs_.build_open(step.plan, Blocks::block_size());
    } else {
      inputs_.build(step.plan, Blocks::block_size(), sampling_.rows());
    }
    if (under_way_.size() == 1) end_faulty(step);  // whose blocks the inputs have named until now
  }

  /// Requests whose logits processors threw end with the error; the step goes on without them.
  void end_faulty(const Step& step) {
    for (const auto& [request, error] : step.faults) {
      if (request->has_ended()) continue;
      drop(*request);
      end(*request, FinishReason::error, message_of(error));
    }
  }

  /// All tokens before those of the oldest step are there: what waited for them is done. Its faulty
  /// requests end, and if it is deferred, it is drawn. Where that cannot be done its requests end
  /// with the error.
  void close_oldest() {
    if (under_way_.empty()) return;
    Step& step = under_way_.front();
    try {
      if (step.is_deferred) sampling_.fill(step.plan, step.faults);
      end_faulty(step);
      if (!step.is_deferred) return;
      const Clock::time_point begin = Clock::now();
      runner_->sample(sampling_.pack());
      step.is_deferred = false;
      if (!runner_->is_asynchronous()) step.device_seconds += seconds_since(begin);
    } catch (...) {
      const std::string error = message_of(std::current_exception());
      wait_ignoring_errors();
      fail_oldest(error);
    }
  }

  /// A step that could not be handed over never was: its requests end.
  void undo_newest(bool has_begun, const std::string& error) {
    Step& step = under_way_.back();
    if (has_begun) cancel(step);
    RequestList ended = std::move(step.ended);
    const StepPlan plan = std::move(step.plan);
    under_way_.pop_back();
    end_all(plan, error, ended);
    // What has ended may be in the step before this.
    if (!under_way_.empty()) under_way_.back().ended.splice(under_way_.back().ended.end(), ended);
  }

  /// No step is under way any more; what they gave is in the events.
  void settle() {
    while (!under_way_.empty()) {
      device_seconds_ = 0;
      finish_oldest(Clock::now());
    }
    publish_stats();
  }

  /// How many of `num_tokens` tokens are in each of the blocks that hold them.
  static std::vector<std::int32_t> tokens_a_block(std::int32_t num_tokens) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(Blocks::blocks_for(num_tokens)),
                                     Blocks::block_size());
    if (const std::int32_t in_last = num_tokens % Blocks::block_size()) counts.back() = in_last;
    return counts;
  }

  /// Waits for the oldest step and takes its results.
  void finish_oldest(Clock::time_point begin) {
    Step& oldest = under_way_.front();
    const Clock::time_point wait = Clock::now();
    try {
      const StepResults results = runner_->wait();
      const Clock::time_point now = Clock::now();
      const double waited = std::chrono::duration<double>(now - wait).count();
      oldest.device_seconds += waited;
      device_seconds_ += waited;
      deliver(oldest, results, now);
    } catch (...) {
      return fail_oldest(message_of(std::current_exception()));
    }
    count_step(oldest, seconds_since(begin) - device_seconds_);
    under_way_.pop_front();
    close_oldest();
  }

  /// Gives every sampled sequence its tokens and commits the step. What was accepted is announced,
  /// even if the commit fails: it is in the outputs.
  void deliver(const Step& step, const StepResults& results, Clock::time_point now) {
    delivery_.begin(static_cast<std::size_t>(results.tokens.extent(0)), step.num_events, now);
    try {
      delivery_.accept(step.plan, results);
      scheduler_.commit(step.plan, delivery_.outcomes());
    } catch (...) {
      delivery_.announce();
      throw;
    }
    delivery_.announce();
    if (disk_) disk_->save(step.plan.copies_down, step.number);
    end_finished();
    choose_beams(now);
  }

  /// Ends the requests whose sequences the committed step has finished.
  void end_finished() noexcept {
    num_sampled_tokens_ += delivery_.num_tokens();
    for (const StepOutcome& outcome : delivery_.outcomes()) {
      if (outcome.finish_reason == FinishReason::none) continue;
      RequestSequence& sequence = RequestSequence::of(*outcome.sequence);
      Request& request = sequence.request();
      if (request.has_ended()) continue;  // with another of its sequences, by an error
      if (outcome.finish_reason == FinishReason::error) {
        drop(request);
      } else if (request.num_going_on() > 1) {
        events_.push(request.finish(*request.place, sequence, outcome.finish_reason));
        ++num_finished_;
        continue;
      }
      end(request, outcome.finish_reason, delivery_.error_of(sequence));
    }
  }

  /// Requests of which the step's beams were the last to draw go on with the best candidates, or
  /// have found what they searched for.
  void choose_beams(Clock::time_point now) noexcept {
    for (const StepOutcome& outcome : delivery_.outcomes()) {
      if (!outcome.sequence->is_beam) continue;
      Request& request = RequestSequence::of(*outcome.sequence).request();
      if (request.has_ended() || !BeamGroup::is_ready(request.sequences())) continue;
      try {
        choose_beams(request, now);
      } catch (...) {
        drop(request);
        end(request, FinishReason::error, message_of(std::current_exception()));
      }
    }
  }

  void choose_beams(Request& request, Clock::time_point now) {
    const auto slots = request.beams()->choose(request.sequences());
    scheduler_.reorder_beams(slots);
    num_sampled_tokens_ += static_cast<std::int64_t>(request.sequences().size());
    request.mark_beams(now, inbox_.latencies());
    if (!slots.empty()) return;
    const std::vector<FinishReason> reasons = request.complete_beams();
    drop(request);
    for (std::size_t i = reasons.size(); --i > 0;) {
      events_.push(request.finish(*request.place, *request.sequences()[i], reasons[i]));
      ++num_finished_;
    }
    end(request, reasons[0], {});
  }

  /// The oldest step could not be computed, or its results not taken. Steps behind it are undone
  /// and planned again: they may build on what it did not compute.
  void fail_oldest(const std::string& error) {
    RequestList ended = undo_behind(1);
    Step& step = under_way_.front();
    cancel(step);
    ended.splice(ended.end(), step.ended);
    const StepPlan plan = std::move(step.plan);
    under_way_.pop_front();
    end_all(plan, error, ended);
  }

  /// Waits for all steps under way behind the oldest `num_left`, and undoes them, the newest first.
  /// Returns the requests that have ended meanwhile: older steps may still have their sequences.
  [[nodiscard]] RequestList undo_behind(std::size_t num_left) {
    RequestList ended;
    for (std::size_t i = num_left; i < under_way_.size(); ++i) wait_ignoring_errors();
    for (; under_way_.size() > num_left; under_way_.pop_back()) {
      cancel(under_way_.back());
      ended.splice(ended.end(), under_way_.back().ended);
    }
    return ended;
  }

  void cancel(const Step& step) {
    scheduler_.cancel(step.plan);
    sampling_.forget();
    if (disk_) disk_->cancel(step.plan.copies_down, step.number);
  }

  void wait_ignoring_errors() noexcept {
    try {
      static_cast<void>(runner_->wait());
    } catch (...) {
      // If it is more than a consequence, the next step will say so again.
    }
  }

  /// Ends the requests of all sequences in `plan`, which is in no step any more. They are moved to
  /// `ended`.
  void end_all(const StepPlan& plan, const std::string& error, RequestList& ended) {
    for (const PlannedSequence& planned : plan.sequences) {
      if (planned.sequence->status == SequenceStatus::finished) continue;
      Request& request = RequestSequence::of(*planned.sequence).request();
      drop(request);
      const RequestList::iterator place = request.place;
      ended.splice(ended.end(), live_, place);
      announce_end(request, FinishReason::error, error);
    }
  }

  /// Takes all sequences of `request` from the scheduler.
  void drop(Request& request) {
    for (const auto& sequence : request.sequences()) {
      if (sequence->arrival != 0) scheduler_.abort(*sequence);
    }
  }

  /// Ends a request that the scheduler has let go of, and forgets it as soon as no step under way
  /// has its sequences.
  void end(Request& request, FinishReason reason, const std::string& error) noexcept {
    RequestList ended;
    ended.splice(ended.end(), live_, request.place);
    announce_end(request, reason, error);
    if (!under_way_.empty()) under_way_.back().ended.splice(under_way_.back().ended.end(), ended);
  }

  void announce_end(Request& request, FinishReason reason, const std::string& error) noexcept {
    if (disk_) disk_->forget(request);
    inbox_.retire(request.id());
    num_finished_ += static_cast<std::int64_t>(request.num_going_on());
    EventList last = request.finish(*request.place, reason, error);
    if (reason == FinishReason::stop || reason == FinishReason::length)
      inbox_.latencies().end_to_end.add(std::as_const(request).output().timings.finished);
    events_.push(std::move(last));
  }

  /// Time is split between prefill and decode by the tokens of a step.
  void count_step(const Step& step, double host_seconds);

  /// Whether another step would find anything to do, of what has left the inbox.
  [[nodiscard]] bool has_work() const {
    return !incoming_.submitted.empty() || !incoming_.aborted.empty() || !under_way_.empty() ||
           scheduler_.has_work() || (disk_ && disk_->is_loading());
  }

  /// Everything at once, so that a request is always in exactly one counter.
  void publish_stats() noexcept;

  const std::int64_t vocab_size_;
  Inbox& inbox_;
  EventQueue& events_;

  mutable std::mutex mutex_;  // guards everything below
  std::unique_ptr<StepRunner> runner_;
  Scheduler<Scheduling, Blocks, Preemption> scheduler_;
  const std::size_t max_under_way_;
  RequestList live_;
  Inbox::Content incoming_;
  std::deque<Step> under_way_;  // oldest first
  bool is_shut_down_ = false;   // what the queues have is gone
  std::uint64_t num_launched_ = 0;
  std::unique_ptr<Disk> disk_;  // null without
  EngineStats totals_;
  std::int64_t num_finished_ = 0;
  std::int64_t num_sampled_tokens_ = 0;
  double device_seconds_ = 0;  // of this call of step

  // Kept from step to step for their memory.
  StepInputs inputs_;
  StepSampling sampling_;
  Delivery delivery_;
};

}  // namespace nanovllm

#include "nanovllm/engine/core.inc"
