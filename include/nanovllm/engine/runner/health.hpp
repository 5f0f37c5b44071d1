#pragma once
/// Whether an engine's ranks can be counted on.

#include <string>

namespace nanovllm {

/// A value; how it was when asked.
struct Health {
  enum class State {
    ok,      ///< the last step went well, or there was none
    hung,    ///< a step is running for longer than its limit, `step_timeout`
    failed,  ///< the last step failed. Of one rank later ones may go well; of several they fail, too
  };

  State state = State::ok;
  std::string reason{};  ///< of what is not ok
  double seconds = 0;    ///< that the oldest step is running for, or since the failure
  /// The ranks were made anew after a failure, and no step has gone well since. They are ok, as far
  /// as anybody knows.
  bool is_unproven = false;
};

}  // namespace nanovllm
