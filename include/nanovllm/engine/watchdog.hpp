#pragma once
/// The time that steps take, and what became of the last one.

#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/health.hpp"

namespace nanovllm {

/// Watches the oldest step under way, if there is one. `health` may be called from any thread; the
/// rest belongs to the runner's caller.
class Watchdog {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

 public:
  /// Throws ConfigError for a limit that is not positive.
  explicit Watchdog(std::optional<Seconds> limit);

  void begin_step();
  /// `more`: there is another behind it, whose time begins now.
  void end_step(bool more);

  /// What became of the last step.
  void well();
  void failed(const std::exception_ptr& error);

  [[nodiscard]] bool has_limit() const { return limit_.has_value(); }
  /// What a step may take. There is a limit.
  [[nodiscard]] Clock::duration limit() const {
    return std::chrono::duration_cast<Clock::duration>(*limit_);
  }
  [[nodiscard]] std::string limit_text() const;
  [[nodiscard]] bool is_late() const;

  /// The ranks were made anew: what became of steps before does not count.
  void renewed();

  /// The step under way has been given up, and these ranks did not come back when they were
  /// released. Returns what to say about it.
  [[nodiscard]] std::string bite(const std::vector<int>& hanging);
  /// A step was given up since the last that went well.
  [[nodiscard]] bool has_bitten() const { return has_bitten_; }

  [[nodiscard]] Health health() const;

 private:
  struct Failure {
    std::string reason;
    Clock::time_point when;
  };

  [[nodiscard]] static double since(Clock::time_point when) {
    return Seconds(Clock::now() - when).count();
  }
  [[nodiscard]] double seconds_under_way() const;
  /// "2.50 s".
  [[nodiscard]] static std::string seconds_text(double seconds);

  const std::optional<Seconds> limit_;
  bool has_bitten_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Clock::time_point> begun_;
  std::optional<Failure> failure_;
  bool is_unproven_ = false;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/watchdog.inc"
#endif
