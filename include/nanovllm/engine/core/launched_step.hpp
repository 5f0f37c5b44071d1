#pragma once
/// A step of an engine between its plan and its results.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

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

}  // namespace nanovllm
