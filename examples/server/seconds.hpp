#pragma once
/// Seconds as people give them, and the points in time that they lead to.

#include <chrono>

namespace nanovllm::examples {

/// Longer than this, some thirty years, is for ever.
inline constexpr std::chrono::duration<double> kForever{1e9};

/// The point in time that is `time` away; the clock's last one for whatever is for ever, which a
/// clock's integers may not hold.
template <class Clock>
[[nodiscard]] typename Clock::time_point after(std::chrono::duration<double> time) {
  if (!(time < kForever)) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<typename Clock::duration>(time);
}

}  // namespace nanovllm::examples
