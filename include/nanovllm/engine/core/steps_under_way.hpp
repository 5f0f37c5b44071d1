#pragma once
/// The steps of an engine that are launched and not delivered, and how they are undone.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/core/live_requests.hpp"
#include "nanovllm/engine/core/step_launcher.hpp"
#include "nanovllm/engine/core/step_observer.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// In the order of their launches. A step that fails, or is undone, leaves queues, blocks and
/// sequences as they were before it. Called under the core's lock.
///
/// Between two calls these are the steps that the runner has, one for one: a step that the runner
/// took is here until it was waited for, whatever happens after its launch, and a step that the
/// runner did not take is not here. So what `StepRunner::wait` gives is always of the oldest.
template <class Scheduler>
class StepsUnderWay {
 public:
  /// All of them must outlive this.
  StepsUnderWay(StepRunner& runner, Scheduler& scheduler, StepLauncher& launcher,
                LiveRequests<Scheduler>& requests, StepObservers& observers)
      : runner_(runner),
        scheduler_(scheduler),
        launcher_(launcher),
        requests_(requests),
        observers_(observers) {}

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  [[nodiscard]] std::size_t size() const { return steps_.size(); }
  [[nodiscard]] LaunchedStep& oldest() { return steps_.front(); }
  /// Their numbers; 0 for none.
  [[nodiscard]] std::uint64_t oldest_number() const { return empty() ? 0 : steps_.front().number; }
  [[nodiscard]] std::uint64_t newest_number() const { return empty() ? 0 : steps_.back().number; }

  /// Adds a step that is about to be launched.
  LaunchedStep& push(StepPlan&& plan) {
    steps_.push_back({.plan = std::move(plan), .number = ++num_launched_});
    requests_.begin_step(num_launched_);
    return steps_.back();
  }

  /// The oldest is delivered.
  void pop_oldest() { steps_.pop_front(); }

  /// Whether the newest has failed before it was waited for: what is launched after it fails too.
  [[nodiscard]] bool has_failed() const { return !empty() && steps_.back().error != nullptr; }

  /// Ends the requests in `step` whose logits processors threw, with that error. The other requests
  /// stay in the step.
  void end_faulty(const LaunchedStep& step) noexcept {
    for (const auto& [request, error] : step.faults) {
      if (request->has_ended()) continue;
      request->output().is_refused = is_request_error(error);
      requests_.end(*request, FinishReason::error, message_of(error));
    }
  }

  /// All tokens before those of the oldest step, if there is one, are there. Its faulty requests
  /// end, and if it awaits tokens, it is drawn. Where that cannot be done, it has failed.
  void draw_oldest() noexcept {
    if (empty()) return;
    LaunchedStep& step = oldest();
    try {
      if (step.awaits_tokens && !step.error) launcher_.draw(step);
    } catch (...) {
      step.error = std::current_exception();
    }
    end_faulty(step);
  }

  /// `error` was thrown while the newest was handed over. If the runner has it, it has failed: it
  /// is waited for in its turn, and its requests end then. If not, it is undone, and its requests
  /// end. Returns whether it is undone.
  /// @param has_begun  whether the scheduler has begun it.
  bool fail_newest(bool has_begun, const std::exception_ptr& error) {
    if (steps_.back().is_launched) {
      steps_.back().error = error;
      return false;
    }
    if (has_begun) cancel(steps_.back());
    const StepPlan plan = std::move(steps_.back().plan);
    steps_.pop_back();
    requests_.end_all(plan, message_of(error));
    return true;
  }

  /// The oldest, which was waited for, could not be computed, or its results not taken: its
  /// requests end with the error. Steps after it are undone and planned again: they may build on
  /// what it did not compute.
  void fail_oldest(const std::string& error) {
    undo_behind(1);
    cancel(steps_.front());
    const StepPlan plan = std::move(steps_.front().plan);
    steps_.pop_front();
    requests_.end_all(plan, error);
  }

  /// Waits for all and undoes them. Their requests continue from where they were.
  void undo_all() { undo_behind(0); }

  /// Waits for all and drops them: the engine goes.
  void drop_all() noexcept {
    for (; !steps_.empty(); steps_.pop_front()) wait_ignoring_errors();
  }

  /// Throws Error unless the runner has the steps that are here.
  void check_invariants() const {
    check(runner_.num_under_way() == static_cast<int>(size()), "steps: ", size(),
          " are under way, but the runner has ", runner_.num_under_way());
  }

 private:
  /// Waits for the oldest that was not waited for.
  void wait_ignoring_errors() noexcept {
    try {
      static_cast<void>(runner_.wait());
    } catch (...) {
      // If it is more than a consequence, the next step will say so again.
    }
  }

  /// Waits for the steps after the oldest `num_left` and undoes them, the newest first.
  void undo_behind(std::size_t num_left) {
    for (std::size_t i = num_left; i < steps_.size(); ++i) wait_ignoring_errors();
    for (; steps_.size() > num_left; steps_.pop_back()) cancel(steps_.back());
  }

  void cancel(const LaunchedStep& step) {
    scheduler_.cancel(step.plan);
    launcher_.forget();
    observers_.tell(&StepObserver::cancel, step.plan, step.number);
  }

  StepRunner& runner_;
  Scheduler& scheduler_;
  StepLauncher& launcher_;
  LiveRequests<Scheduler>& requests_;
  StepObservers& observers_;
  std::deque<LaunchedStep> steps_;
  std::uint64_t num_launched_ = 0;
};

}  // namespace nanovllm
