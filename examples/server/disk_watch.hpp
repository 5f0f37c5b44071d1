#pragma once
/// What to say of the tier on disk when files cannot be written.

#include <nanovllm/core/error.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace nanovllm::examples {

/// Looks at a count of failures now and then, and has something to say once a minute at the most.
class DiskWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kPause{1};

  /// @param num_failures  DiskKvStats::num_failures, so far.
  [[nodiscard]] std::optional<std::string> look(std::int64_t num_failures,
                                                Clock::time_point now = Clock::now()) {
    if (num_failures == num_told_ || (last_ && now < *last_ + kPause)) return {};
    const std::int64_t num_new = num_failures - num_told_;
    num_told_ = num_failures;
    last_ = now;
    return concat(num_new, " files of the tier were not written, or were not as they should be, ",
                  num_failures, " in all; is the disk full?");
  }

 private:
  std::int64_t num_told_ = 0;
  std::optional<Clock::time_point> last_;
};

}  // namespace nanovllm::examples
