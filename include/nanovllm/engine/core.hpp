#pragma once
/// The engine's step: take what came, plan, launch, wait, commit, and put events into the queue.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/core/counters.hpp"
#include "nanovllm/engine/core/delivery.hpp"
#include "nanovllm/engine/core/live_requests.hpp"
#include "nanovllm/engine/core/step_launcher.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/core/steps_under_way.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/event_queue.hpp"
#include "nanovllm/engine/request/inbox.hpp"
#include "nanovllm/engine/request/request.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/kv/block_map.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/scheduler.hpp"

namespace nanovllm {

/// What a core is made of, besides its runner and its block manager.
struct CoreConfig {
  BatchConfig batch;
  std::int64_t vocab_size = 0;
  bool overlap = false;  ///< plan and launch a step before the one before it is waited for
};

/// The scheduler and what computes its steps. How a step is undone is in StepsUnderWay, how
/// requests end in LiveRequests.
///
/// A step is a transaction. What throws while it is planned or handed over is undone: queues,
/// blocks and sequences are as they were, and the requests in the step end with the error. What
/// throws later, while it is computed or its results are taken, ends the requests in it, too. No
/// other request is touched, and the results of the next step are the next step's, whatever threw;
/// but a rank that stays broken fails every later step, until `reset`.
///
/// Thread-safe: steps run one at a time. Model and backend are behind `StepRunner`.
template <class Scheduling, class Blocks, class Preemption>
class EngineCore {
 public:
  /// `inbox` and `events` must outlive the core. Throws what `observers` throws.
  EngineCore(std::unique_ptr<StepRunner> runner, const CoreConfig& config, Blocks blocks,
             const ObserverMaker<Blocks>& observers, Inbox& inbox, EventQueue& events);

  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;
  ~EngineCore() { shut_down(); }

  /// Waits for the steps under way and ends all requests with FinishReason::abort, for good.
  void shut_down() noexcept;

  /// One step, without the callbacks: its events are in the queue. Returns whether there was
  /// anything to do. Throws what the scheduling policy throws, and Error when it plans nothing
  /// though there is work and no step is under way; nothing has changed then.
  bool step();

  /// Ends `request` with an error, unless it has ended.
  void fail(const std::shared_ptr<Request>& request, const std::string& error);

  /// Makes failed ranks able to compute again (Runner::reset). Steps under way are undone; all
  /// requests that run are computed from the start. Throws Error when it cannot be done.
  void reset();

  /// Calls `use(scheduler)` while no thread is in a step, and returns what it returns.
  template <class Use>
  auto with_scheduler(const Use& use) {
    const std::lock_guard lock(mutex_);
    const Publisher at_the_end{*this};
    return use(scheduler_);
  }
  /// The same with no step under way: all are waited for, and what they gave is in the events.
  template <class Use>
  auto between_steps(const Use& use) {
    const std::lock_guard lock(mutex_);
    const Publisher at_the_end{*this};
    for (times_.begin(); !steps_.empty(); times_.begin()) finish_oldest();
    return use(scheduler_);
  }

  [[nodiscard]] auto block_map() {  // see AnyEngine
    inbox_.ask_for_blocks();        // a step that is being made answers at its end
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) publish_stats();
    return inbox_.blocks();
  }
  [[nodiscard]] const StepRunner& runner() const { return *runner_; }
  [[nodiscard]] StepRunner& runner() { return *runner_; }
  [[nodiscard]] std::int32_t capacity_tokens() const { return scheduler_.capacity_tokens(); }
  [[nodiscard]] std::int32_t num_kv_blocks() const { return scheduler_.blocks().num_blocks(); }

  /// Throws Error naming the first broken invariant of the scheduler and its block manager.
  void check_invariants() const;

 private:
  using Clock = StepTimes::Clock;
  using Queues = Scheduler<Scheduling, Blocks, Preemption>;
  enum class Launch : std::uint8_t { nothing, done, undone };

  struct Publisher {
    EngineCore& core;
    ~Publisher() { core.publish_stats(); }
  };

  /// Plans a step and hands it to the runner. After a step under way there may be nothing to plan
  /// before that one's results are known.
  Launch launch() {
    if (!scheduler_.has_work()) return Launch::nothing;
    if (observers_.ask(&StepObserver::prepare, scheduler_.running(), !steps_.empty()))
      return Launch::nothing;
    StepPlan plan = scheduler_.schedule();  // decides, changes nothing
    while (plan.empty() && steps_.empty() && scheduler_.free_blocks()) plan = scheduler_.schedule();
    if (plan.empty()) {
      check(!steps_.empty(), "engine: there is work, but the scheduling policy planned nothing");
      return Launch::nothing;
    }
    LaunchedStep& step = steps_.push(std::move(plan));
    bool has_begun = false;
    try {
      scheduler_.begin(step.plan);  // gives the planned sequences their blocks
      has_begun = true;
      observers_.tell(&StepObserver::begin, step.plan, step.number);
      const bool is_behind = steps_.size() > 1;
      launcher_.launch(step, is_behind);
      times_.add_device(step.device_seconds);
      if (!is_behind) steps_.end_faulty(step);
      return Launch::done;
    } catch (...) {
      const bool undone = steps_.fail_newest(has_begun, std::current_exception());
      return undone ? Launch::undone : Launch::done;
    }
  }

  /// Waits for the oldest step and takes its results.
  void finish_oldest() {
    LaunchedStep& step = steps_.oldest();
    const Clock::time_point wait = Clock::now();
    try {
      const StepResults results = runner_->wait();
      const Clock::time_point now = Clock::now();
      const double waited = StepTimes::since(wait, now);
      step.device_seconds += waited;
      times_.add_device(waited);
      if (step.error) std::rethrow_exception(step.error);
      deliver(step, results, now);
    } catch (...) {
      return steps_.fail_oldest(message_of(std::current_exception()));
    }
    count_step(stats_, step.plan, delivery_.outcomes(), step.device_seconds, times_.host_seconds());
    steps_.pop_oldest();   // all tokens before those of the next are there:
    steps_.draw_oldest();  // it is drawn, if it waited for them
  }

  /// Gives every sampled sequence its tokens and commits the step.
  void deliver(const LaunchedStep& step, const StepResults& results, Clock::time_point now) {
    delivery_.begin(step.plan, results, step.num_events, now);
    try {
      delivery_.accept(step.plan, results);
      scheduler_.commit(step.plan, delivery_.outcomes());
    } catch (...) {
      delivery_.announce();  // what was accepted: it is in the outputs
      throw;
    }
    delivery_.announce();
    observers_.tell(&StepObserver::commit, step.plan, step.number);
    requests_.finish_step(delivery_, now);
  }

  /// Whether another step would find anything to do, of what has left the inbox.
  [[nodiscard]] bool has_work() const {
    return !is_shut_down_ && (requests_.has_incoming() || !steps_.empty() ||
                              scheduler_.has_work() || observers_.ask(&StepObserver::is_waiting));
  }

  /// Everything at once, so that a request is always in exactly one counter.
  void publish_stats() noexcept {
    requests_.release(steps_.oldest_number());
    count_queues(stats_, scheduler_);
    stats_.num_finished = requests_.num_finished();
    stats_.num_sampled_tokens = requests_.num_sampled_tokens();
    observers_.tell(&StepObserver::fill, stats_);
    if (inbox_.publish(stats_, has_work())) inbox_.show_blocks(map_blocks(scheduler_.blocks()));
  }

  const std::size_t max_under_way_;
  Inbox& inbox_;
  mutable std::mutex mutex_;  // guards everything below
  std::unique_ptr<StepRunner> runner_;
  Queues scheduler_;
  StepObservers observers_;
  LiveRequests<Queues> requests_;
  StepLauncher launcher_;
  StepsUnderWay<Queues> steps_;
  Delivery delivery_;
  bool is_shut_down_ = false;  // what the queues have is gone
  EngineStats stats_;
  StepTimes times_;
};

template <class Scheduling, class Blocks, class Preemption>
EngineCore<Scheduling, Blocks, Preemption>::EngineCore(std::unique_ptr<StepRunner> runner,
                                                       const CoreConfig& config, Blocks blocks,
                                                       const ObserverMaker<Blocks>& observers,
                                                       Inbox& inbox, EventQueue& events)
    : max_under_way_(config.overlap ? 2 : 1),
      inbox_(inbox),
      runner_(std::move(runner)),
      scheduler_(config.batch, std::move(blocks)),
      observers_(observers(*runner_, scheduler_.blocks())),
      requests_(scheduler_, inbox, events, observers_),
      launcher_(*runner_, Blocks::block_size(), config.vocab_size, config.batch.num_logits(),
                inbox.latencies()),
      steps_(*runner_, scheduler_, launcher_, requests_, observers_),
      delivery_(config.vocab_size, events, inbox.latencies()) {
  publish_stats();
}

template <class Scheduling, class Blocks, class Preemption>
bool EngineCore<Scheduling, Blocks, Preemption>::step() {
  const std::lock_guard lock(mutex_);
  if (is_shut_down_) return false;
  times_.begin();
  const bool took = requests_.take_inbox(steps_.oldest_number(), steps_.newest_number());
  bool undone = false;
  while (steps_.size() < max_under_way_ && !steps_.has_failed()) {
    const Launch launched = launch();
    if (launched == Launch::nothing) break;
    undone |= launched == Launch::undone;  // its requests have ended: another try plans without
  }
  observers_.tell(&StepObserver::end_launches);
  publish_stats();  // while the step is computed, others see it run
  if (steps_.empty()) return observers_.ask(&StepObserver::idle) || took || undone;
  finish_oldest();
  publish_stats();
  return true;
}

template <class Scheduling, class Blocks, class Preemption>
void EngineCore<Scheduling, Blocks, Preemption>::fail(const std::shared_ptr<Request>& request,
                                                      const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (request->has_ended()) return;
  requests_.end(*request, FinishReason::error, error);
  publish_stats();
}

template <class Scheduling, class Blocks, class Preemption>
void EngineCore<Scheduling, Blocks, Preemption>::reset() {
  const std::lock_guard lock(mutex_);
  steps_.undo_all();
  observers_.tell(&StepObserver::reset, [this](Request& request) { requests_.schedule(request); });
  scheduler_.forget_kv();
  launcher_.forget();
  publish_stats();
  runner_->reset();
}

template <class Scheduling, class Blocks, class Preemption>
void EngineCore<Scheduling, Blocks, Preemption>::shut_down() noexcept {
  const std::lock_guard lock(mutex_);
  steps_.drop_all();
  is_shut_down_ = true;
  requests_.shut_down();
  observers_.tell(&StepObserver::finish);
  publish_stats();
}

template <class Scheduling, class Blocks, class Preemption>
void EngineCore<Scheduling, Blocks, Preemption>::check_invariants() const {
  const std::lock_guard lock(mutex_);
  scheduler_.check_invariants();
  observers_.tell(&StepObserver::check_invariants);
  steps_.check_invariants();
}

}  // namespace nanovllm
