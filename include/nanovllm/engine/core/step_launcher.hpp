#pragma once
/// How a planned step is handed to a runner: its inputs, and how it is drawn from.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/request/latency.hpp"
#include "nanovllm/engine/runner/step_runner.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/engine/step/step_sampling.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// A step from its launch to its delivery.
struct LaunchedStep {
  StepPlan plan{};
  std::uint64_t number = 0;
  std::size_t num_events = 0;  ///< at most; of sequences with a listener
  double device_seconds = 0;
  bool awaits_tokens = false;  ///< its draw needs tokens of the step ahead
  bool is_launched = false;    ///< the runner has it, and must be waited for
  std::exception_ptr error{};  ///< why its results are of no use, known before it is waited for
  /// Requests in it that cannot be drawn for. They end when the step before has been delivered,
  /// with the tokens that they would have without it.
  std::vector<StepSampling::Fault> faults{};
};

/// Memory is kept from step to step.
class StepLauncher {
 public:
  /// `runner` and `latencies` must outlive this.
  StepLauncher(StepRunner& runner, std::int64_t block_size, std::int64_t vocab_size,
               std::int64_t max_rows, Latencies& latencies);

  /// Flattens the plan and the sampler's settings of those sequences that get a token, and hands
  /// them over. If `is_behind`, another step is under way; where the settings depend on tokens that
  /// it has not drawn yet, `step` awaits them. Whether the runner has the step when this throws is
  /// in `step.is_launched`.
  void launch(LaunchedStep& step, bool is_behind);

  /// Hands over the settings of `step`, which awaited tokens and is the oldest: all tokens before
  /// its own are there.
  void draw(LaunchedStep& step);

  /// A launched step is undone.
  void forget() { sampling_.forget(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Counts events, and notes who is in a step for the first time.
  void visit(LaunchedStep& step);
  /// A runner that is not asynchronous has computed the step since `begin`.
  void count_time(LaunchedStep& step, Clock::time_point begin) const;

  StepRunner& runner_;
  const std::int64_t block_size_;
  Latencies& latencies_;
  StepInputs inputs_;
  StepSampling sampling_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include "nanovllm/engine/request/request.hpp"

namespace nanovllm {

NANOVLLM_INLINE StepLauncher::StepLauncher(StepRunner& runner, std::int64_t block_size,
                                           std::int64_t vocab_size, std::int64_t max_rows,
                                           Latencies& latencies)
    : runner_(runner),
      block_size_(block_size),
      latencies_(latencies),
      inputs_({}, static_cast<std::int32_t>(max_rows)),
      sampling_(vocab_size, max_rows, runner.edits_logits()) {}

NANOVLLM_INLINE void StepLauncher::launch(LaunchedStep& step, bool is_behind) {
  visit(step);
  step.awaits_tokens = is_behind && sampling_.awaits_tokens(step.plan);
  if (!step.awaits_tokens) sampling_.fill(step.plan, step.faults);
  const bool is_deferred = step.awaits_tokens || sampling_.has_edits();
  inputs_.set_share_from(runner_.share_reads_from());
  if (is_deferred) {
    inputs_.build_deferred(step.plan, block_size_);
  } else {
    inputs_.build(step.plan, block_size_, sampling_.rows());
  }
  const bool is_drawn_now = is_deferred && !step.awaits_tokens;
  if (is_drawn_now) sampling_.pack();
  const Clock::time_point begin = Clock::now();
  runner_.launch(inputs_);
  step.is_launched = true;
  if (is_drawn_now) runner_.sample(sampling_.packed());
  count_time(step, begin);
}

NANOVLLM_INLINE void StepLauncher::draw(LaunchedStep& step) {
  sampling_.fill(step.plan, step.faults);
  sampling_.pack();
  const Clock::time_point begin = Clock::now();
  runner_.sample(sampling_.packed());
  step.awaits_tokens = false;
  count_time(step, begin);
}

NANOVLLM_INLINE void StepLauncher::visit(LaunchedStep& step) {
  Clock::time_point now{};  // read once, where there is a new one
  for (const PlannedSequence& planned : step.plan.sequences) {
    RequestSequence& sequence = RequestSequence::of(*planned.sequence);
    if (sequence.has_listener())
      step.num_events += static_cast<std::size_t>(planned.rows.count(RowKind::draw));
    if (!sequence.is_first_step()) continue;
    if (now == Clock::time_point{}) now = Clock::now();
    sequence.request().mark_scheduled(now, latencies_);
  }
}

NANOVLLM_INLINE void StepLauncher::count_time(LaunchedStep& step, Clock::time_point begin) const {
  if (runner_.is_asynchronous()) return;
  step.device_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
