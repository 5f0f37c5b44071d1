#pragma once
/// What steps and the state behind them add to `EngineStats`.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Where the time of a call of `EngineCore::step` goes.
class StepTimes {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() { begin_ = Clock::now(), device_seconds_ = 0; }
  /// The call has waited for the device that long.
  void add_device(double seconds) { device_seconds_ += seconds; }
  [[nodiscard]] double host_seconds() const {
    return since(begin_, Clock::now()) - device_seconds_;
  }

  [[nodiscard]] static double since(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
  }

 private:
  Clock::time_point begin_{};
  double device_seconds_ = 0;
};

/// Adds a step that was delivered. Its time is split between prefill and decode by its tokens.
/// @param outcomes        in the order of the plan's sequences; some may have none.
/// @param device_seconds  waiting for its results.
/// @param host_seconds    the rest of the call.
inline void count_step(EngineStats& stats, const StepPlan& plan,
                       std::span<const StepOutcome> outcomes, double device_seconds,
                       double host_seconds) {
  std::int64_t num_decode_tokens = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(plan.num_decodes); ++i) {
    num_decode_tokens += plan.sequences[i].num_tokens();
    if (outcomes.empty() || outcomes.front().sequence != plan.sequences[i].sequence) continue;
    // One that awaits a choice gets one token.
    stats.num_sampled_by_decodes += std::max<std::int64_t>(1, std::ssize(outcomes.front().tokens));
    outcomes = outcomes.subspan(1);
  }
  const double decode_share =
      static_cast<double>(num_decode_tokens) / static_cast<double>(plan.num_tokens);
  ++stats.num_steps;
  stats.num_prefill_tokens += plan.num_tokens - num_decode_tokens;
  stats.num_decode_tokens += num_decode_tokens;
  stats.prefill_seconds += device_seconds * (1.0 - decode_share);
  stats.decode_seconds += device_seconds * decode_share;
  stats.host_seconds += host_seconds;
}

/// `stats`, and what the runner knows: it is asked only by who wants to know.
[[nodiscard]] inline EngineStats with_network(EngineStats stats, const StepRunner& runner) {
  runner.add_statistics(stats.extras);
  return stats;
}

/// Sets what a scheduler and its block manager know.
template <class Scheduler>
void count_queues(EngineStats& stats, const Scheduler& scheduler) noexcept {
  const auto& blocks = scheduler.blocks();
  stats.num_waiting = scheduler.num_waiting();
  stats.num_running = scheduler.num_running();
  stats.num_preemptions = scheduler.num_preemptions();
  stats.num_queried_tokens = blocks.stats().num_queried_tokens;
  stats.num_hit_tokens = blocks.stats().num_hit_tokens;
  stats.num_kv_blocks = blocks.num_blocks();
  stats.num_free_kv_blocks = blocks.num_free();
  for (const auto& owner : scheduler.owners()) owner->add_statistics(stats.extras);
}

}  // namespace nanovllm
