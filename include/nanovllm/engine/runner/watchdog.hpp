#pragma once
/// The time that steps take, and what became of the last one.

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/engine/runner/health.hpp"

namespace nanovllm {

namespace detail {

/// Keeps an object alive until the process ends, on purpose: a hanging thread may still use it.
inline void leak(std::shared_ptr<const void> object) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(object));
}

}  // namespace detail

/// Watches the oldest step under way, if there is one. `health` may be called from any thread; the
/// rest belongs to the runner's caller.
class Watchdog {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

 public:
  /// Throws ConfigError for a limit that is not positive.
  explicit Watchdog(std::optional<Seconds> limit) : limit_(limit) {
    check<ConfigError>(!limit_ || (limit_->count() > 0 && limit_->count() < 1e9),
                       "step_timeout must be > 0 and < 1e9 s, got ", limit_ ? limit_->count() : 0);
  }

  void begin_step() noexcept {
    const std::lock_guard lock(mutex_);
    begun_ = Clock::now();
  }
  /// `more`: another step follows, whose time begins now.
  void end_step(bool more) noexcept {
    const std::lock_guard lock(mutex_);
    begun_.reset();
    if (more) begun_ = Clock::now();
  }

  /// The outcome of the last step: it succeeded, or failed with `error`.
  void recovered() noexcept {
    const std::lock_guard lock(mutex_);
    failure_.reset();
    is_unproven_ = false;
    has_fired_ = false;
  }
  void failed(const std::exception_ptr& error) noexcept {
    std::string reason = message_of(error);
    const std::lock_guard lock(mutex_);
    if (failure_ && failure_->reason == reason) return;
    failure_ = Failure{std::move(reason), Clock::now()};
  }

  [[nodiscard]] bool has_limit() const { return limit_.has_value(); }
  /// The time that a step may take. Only if there is a limit.
  [[nodiscard]] Clock::duration limit() const {
    return std::chrono::duration_cast<Clock::duration>(*limit_);
  }
  [[nodiscard]] std::string limit_text() const { return seconds_text(limit_->count()); }
  [[nodiscard]] bool is_late() const { return limit_ && seconds_under_way() > limit_->count(); }

  /// The ranks were reset: outcomes of earlier steps no longer count.
  void renewed() {
    const std::lock_guard lock(mutex_);
    failure_.reset();
    is_unproven_ = true;
    has_fired_ = false;
  }

  /// The step under way exceeded its limit, and these ranks did not return when they were
  /// released. Returns the message of the error.
  [[nodiscard]] std::string fire(const std::vector<int>& hanging) {
    has_fired_ = true;
    std::string who;
    for (const int& rank : hanging)
      who += concat(&rank == hanging.data() ? "rank " : " and rank ", rank);
    if (!who.empty()) who += hanging.size() == 1 ? " hangs: " : " hang: ";
    return concat(who, "a step has not ended after ", seconds_text(seconds_under_way()),
                  ", its limit (step_timeout) is ", limit_text());
  }
  /// Whether a step exceeded its limit since the last one that succeeded.
  [[nodiscard]] bool has_fired() const { return has_fired_; }

  [[nodiscard]] Health health() const {
    const double seconds = seconds_under_way();
    const std::lock_guard lock(mutex_);
    if (failure_) return {Health::State::failed, failure_->reason, since(failure_->when)};
    if (limit_ && seconds > limit_->count()) {
      return {Health::State::hung,
              concat("a step has been running for ", seconds_text(seconds), ", its limit is ",
                     limit_text()),
              seconds};
    }
    return {Health::State::ok, {}, seconds, is_unproven_};
  }

 private:
  struct Failure {
    std::string reason;
    Clock::time_point when;
  };

  [[nodiscard]] static double since(Clock::time_point when) {
    return Seconds(Clock::now() - when).count();
  }
  [[nodiscard]] double seconds_under_way() const {
    const std::lock_guard lock(mutex_);
    return begun_ ? since(*begun_) : 0;
  }
  /// "2.50 s".
  [[nodiscard]] static std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f s", seconds);
    return text;
  }

  const std::optional<Seconds> limit_;
  bool has_fired_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Clock::time_point> begun_;
  std::optional<Failure> failure_;
  bool is_unproven_ = false;
};

}  // namespace nanovllm
