#pragma once
/// Waiting for what can only be asked for.

#include <algorithm>
#include <chrono>
#include <thread>

namespace nanovllm {

/// How long to pause before asking again: not at all for the first 0.2 ms, and then a sixteenth of
/// the time since this object was made, at most `longest`. It sleeps and does not yield: on a
/// machine whose cores are all in use, a thread that yields gets its core back milliseconds later,
/// and one that wakes is preferred.
class Backoff {
 public:
  using Duration = std::chrono::duration<double, std::micro>;

  /// For steps, of which the shortest take about a millisecond.
  static constexpr Duration kForSteps{50};

  explicit Backoff(Duration longest) : longest_(longest) {}

  /// Time since this object was made.
  [[nodiscard]] Duration waited() const { return std::chrono::steady_clock::now() - begin_; }

  void pause() const {
    const Duration waited = this->waited();
    if (waited > kAtOnce) std::this_thread::sleep_for(std::min(waited / 16, longest_));
  }

 private:
  static constexpr Duration kAtOnce{200};
  Duration longest_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace nanovllm
