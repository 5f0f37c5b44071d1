#pragma once
/// Whether an engine's ranks work.

#include <string>

namespace nanovllm {

/// The state at the time of the call.
struct Health {
  enum class State {
    ok,      ///< the last step succeeded, or there was none
    hung,    ///< a step is running for longer than its limit, `step_timeout`
    failed,  ///< the last step failed. Of one rank later steps may succeed; of several they fail
  };

  State state = State::ok;
  std::string reason{};  ///< why it is not ok
  double seconds = 0;    ///< that the oldest step has been running, or since the failure
  /// The ranks were reset after a failure, and no step has succeeded since: `ok` is not proven.
  bool is_unproven = false;
};

}  // namespace nanovllm
