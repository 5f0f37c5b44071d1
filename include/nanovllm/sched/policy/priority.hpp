#pragma once
/// A scheduling policy by priority, under which every request finishes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/fwd.hpp"
#include "nanovllm/sched/plan_builder.hpp"

namespace nanovllm {

/// Mixed steps as in `ContinuousBatching`, in an order of requests that goes by priority and age: a
/// request of priority p is served as if p · kWindow more requests had come before it. So a lower
/// priority goes before a higher one, but not before all of those that came long ago. The order
/// between two requests never changes. The window counts arrivals and not seconds, so that plans
/// depend on what was submitted and on nothing else, and waiting is bounded in the unit that makes
/// it long, whatever the load.
///
/// Running and waiting sequences have one order. A running one that finds no block takes those of
/// one after it, which the preemption policy chooses, by default the last. A waiting one without a
/// place or room also takes those of running ones, if they are kMargin after it: half a window, so
/// that work which has begun is not thrown away for a small lead. Both only if that is enough. No
/// waiting sequence overtakes another, except one that waits for a prefix that one before it
/// computes.
///
/// Why everything admitted finishes, and none starves:
/// - Of requests with priority q that came later than one of priority p, fewer than
///   (p - q) · kWindow go before it. So the requests before it are a bounded number, fixed when it
///   comes.
/// - Only one that goes before another preempts it, and the order is fixed: no two preempt each
///   other repeatedly.
/// - If the first of all runs, it advances in every step: its turn is before anything is planned,
///   it can take any block that others hold, and the decodes leave at least one token of the
///   budget.
/// - If the first of all waits, none is admitted before it is. In every step the first of those
///   that run advances, because admission keeps the blocks that running ones need next; so they
///   come to their ends, and when none runs the whole pool is free and the first of all gets in.
/// - The first of all thus finishes after a bounded number of steps, and then the next one is
///   first.
/// - A step under way may put this off until its results are known, as in `ContinuousBatching`.
///
/// @tparam kWindow  arrivals that one step of priority is worth, ≥ 1. `Priority` has 1024: four
///                  batches of the default max_num_seqs.
template <std::int64_t kWindow>
struct PriorityWithin {
  static_assert(kWindow >= 1 && kWindow <= std::int64_t{1} << 30,
                "nanovllm: the window must be 1 to 2^30 arrivals");
  static constexpr std::int64_t kMargin = (kWindow + 1) / 2;

  [[nodiscard]] static std::int64_t order(const Sequence& s) noexcept {
    return static_cast<std::int64_t>(s.arrival) + s.priority * kWindow;
  }

  template <class Blocks>
  [[nodiscard]] static StepPlan plan(const SchedulerView& queues, const Blocks& blocks,
                                     const BatchConfig& config) {
    Turns<Blocks> turns(queues, blocks, config);
    auto waiting = queues.waiting.begin();
    bool admits = true;
    for (std::size_t i = 0;; ++i) {
      while (admits && waiting != queues.waiting.end() && turns.is_next(**waiting, i)) {
        if (!turns.must_wait(**waiting)) admits = turns.admit(**waiting, i);
        ++waiting;
      }
      if (i >= turns.num_running()) break;
      turns.extend(i);
    }
    return turns.finish();
  }

 private:
  /// A plan in the making, and those that run, in their order.
  template <class Blocks>
  class Turns {
   public:
    Turns(const SchedulerView& queues, const Blocks& blocks, const BatchConfig& config)
        : builder_(queues, blocks),
          running_(queues.running.begin(), queues.running.end()),
          max_running_(static_cast<std::size_t>(config.max_num_seqs)),
          budget_(config.max_num_batched_tokens) {
      std::ranges::sort(running_,
                        [](const Sequence* a, const Sequence* b) { return goes_before(*a, *b); });
      for (const Sequence* s : running_) budget_ -= is_decode(*s) ? 1 : 0;
      has_budget_ = budget_ > 0;
    }

    /// Of running sequences that are not to be preempted.
    [[nodiscard]] std::size_t num_running() const { return running_.size(); }

    /// Whether waiting sequence `s` has its turn before running sequence `i`.
    [[nodiscard]] bool is_next(const Sequence& s, std::size_t i) const {
      return i == running_.size() || goes_before(s, *running_[i]);
    }

    [[nodiscard]] bool must_wait(const Sequence& s) const { return builder_.must_wait(s); }

    void extend(std::size_t i) {
      const Sequence& s = *running_[i];
      const std::int32_t limit = is_decode(s) ? 1 : budget_;
      if (limit == 0) return;
      const std::int32_t n = builder_.extend_or_preempt(running_, i, limit);
      if (!is_decode(s)) budget_ -= n;
    }

    /// Plans to admit `s`, whose turn is before running sequence `i`, if need be in the place of
    /// some after it. Returns whether it has.
    [[nodiscard]] bool admit(Sequence& s, std::size_t i) {
      const bool is_overtaking = std::ranges::any_of(
          builder_.preempted(), [&](const Sequence* p) { return goes_before(*p, s); });
      const bool is_step_full = has_budget_ && budget_ == 0;  // the next one has room
      if (is_overtaking || is_step_full || s.has_pending_token()) return false;
      if (try_admit(s)) return true;
      const auto far_behind =
          std::partition_point(running_.begin() + static_cast<std::ptrdiff_t>(i), running_.end(),
                               [&](const Sequence* r) { return r->order - kMargin < s.order; });
      const auto first = static_cast<std::size_t>(far_behind - running_.begin());
      if (first == running_.size() || !builder_.may_preempt()) return false;
      std::vector<Sequence*> before = running_;
      const std::int32_t budget_before = budget_;
      std::size_t num_preempted = 0;
      while (first < running_.size()) {
        builder_.preempt_one(running_, first);
        ++num_preempted;
        budget_ += is_decode(*builder_.preempted().back()) ? 1 : 0;
        if (try_admit(s)) return true;
      }
      for (; num_preempted > 0; --num_preempted) builder_.undo_preempt();
      running_ = std::move(before);
      budget_ = budget_before;
      return false;
    }

    [[nodiscard]] StepPlan finish() { return builder_.finish(); }

   private:
    [[nodiscard]] bool try_admit(Sequence& s) {
      if (budget_ == 0 || builder_.num_running() >= max_running_) return false;
      const std::int32_t n = builder_.admit_chunk(s, budget_);
      budget_ -= n;
      return n > 0;
    }

    PlanBuilder<Blocks> builder_;
    std::vector<Sequence*> running_;
    std::size_t max_running_;
    std::int32_t budget_;  ///< tokens left for chunks
    bool has_budget_;      ///< whether there were any
  };
};

}  // namespace nanovllm
