#pragma once
/// What takes part in an engine's steps besides its scheduler and its runner.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

class Request;
class StepRunner;
struct EngineStats;

/// Is told of requests that come and end, and of steps that begin, are committed or are undone.
/// This class does nothing; others derive from it. Called under the core's lock. Steps have numbers
/// from 1 on, in the order of their launches; 0 is none.
class StepObserver {
 public:
  using Admit = std::function<void(Request&)>;

  StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;
  virtual ~StepObserver() = default;

  /// Before requests are taken from the inbox. Calls `admit` for those that were delayed and need
  /// no longer wait.
  /// @param oldest, newest  numbers of the steps under way, 0 for none.
  virtual void poll(std::uint64_t /*oldest*/, std::uint64_t /*newest*/, const Admit& /*admit*/) {}

  /// Whether `request`, which is new, is kept from the scheduler for now.
  [[nodiscard]] virtual bool holds_back(Request& /*request*/, std::uint64_t /*newest*/) {
    return false;
  }
  /// Whether any request is delayed now.
  [[nodiscard]] virtual bool is_waiting() const { return false; }
  /// `request` has ended.
  virtual void forget(const Request& /*request*/) noexcept {}

  /// A step is about to be planned. Where no other is under way, may set `guesses` of the sequences
  /// that run. Returns whether the results of the step under way are to be awaited first.
  [[nodiscard]] virtual bool prepare(std::span<Sequence* const> /*running*/, bool /*is_behind*/) {
    return false;
  }

  /// The scheduler has begun the step.
  virtual void begin(const StepPlan& /*plan*/, std::uint64_t /*number*/) {}
  /// All steps that can be are launched.
  virtual void end_launches() noexcept {}
  virtual void commit(const StepPlan& /*plan*/, std::uint64_t /*number*/) noexcept {}
  virtual void cancel(const StepPlan& /*plan*/, std::uint64_t /*number*/) noexcept {}

  /// No step is under way and none can be launched. May sleep for some milliseconds where requests
  /// are delayed. Returns whether they are.
  virtual bool idle() { return false; }

  /// What the pools hold is gone. Calls `admit` for all requests that were delayed.
  virtual void reset(const Admit& /*admit*/) {}
  /// All requests have ended, and no more steps come.
  virtual void finish() noexcept {}

  /// Adds its counters, and the delayed sequences as waiting ones.
  virtual void fill(EngineStats& /*stats*/) const {}
  /// Throws Error naming the broken invariant.
  virtual void check_invariants() const {}
};

/// The observers of a core, which are told one after the other. Empty by default.
class StepObservers {
 public:
  void add(std::unique_ptr<StepObserver> observer) { all_.push_back(std::move(observer)); }

  /// Calls `member` of each.
  template <class Member, class... Args>
  void tell(Member member, Args&&... args) const {
    for (const auto& each : all_) std::invoke(member, *each, args...);
  }
  /// Whether `member` of any returns true. Those after it are not asked.
  template <class Member, class... Args>
  [[nodiscard]] bool ask(Member member, Args&&... args) const {
    return std::ranges::any_of(
        all_, [&](const auto& each) { return std::invoke(member, *each, args...); });
  }

 private:
  std::vector<std::unique_ptr<StepObserver>> all_;
};

/// Makes the observers of a core from its runner and its block manager, which outlive them.
template <class Blocks>
using ObserverMaker = std::function<StepObservers(StepRunner&, Blocks&)>;

}  // namespace nanovllm
