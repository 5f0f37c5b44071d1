#pragma once
/// What a server answers to a load balancer's health check.

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/utf8.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/runner/health.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::serve {

/// The reply to GET /health.
struct HealthReport {
  int status = 200;  ///< or 503: send requests elsewhere
  std::string body;  ///< JSON: {"status": "ok"}, or what is wrong, since when and why
};

/// 200 and {"status": "ok"}; or 503 and
///   {"status": "draining"}, of a server that finishes what it has and then ends;
///   {"status": "hung", "seconds": 12.5, "reason": "…"}, while a step runs for longer than
///     EngineConfig::step_timeout; without that limit a step that hangs is not noticed, but one in
///     which a GPU waits 60 s for another fails;
///   {"status": "failed", "seconds": 3.0, "reason": "…"}, from a step that failed until one goes
///     well;
///   {"status": "recovering"}, from Engine::reset until a step goes well.
[[nodiscard]] inline HealthReport health_report(const Health& health, bool is_draining = false) {
  const auto unavailable = [&](const char* status) -> HealthReport {
    Json body = Json::object({{"status", status}});
    if (health.state != Health::State::ok) {
      body["seconds"] = std::round(health.seconds * 10) / 10;
      std::string reason;
      utf8::append_lossy(reason, health.reason);
      body["reason"] = std::move(reason);
    }
    return {503, body.dump()};
  };
  if (health.state == Health::State::hung) return unavailable("hung");
  if (health.state == Health::State::failed) return unavailable("failed");
  if (is_draining) return unavailable("draining");
  if (health.is_unproven) return unavailable("recovering");
  return {200, Json::object({{"status", "ok"}}).dump()};
}

[[nodiscard]] inline HealthReport health_report(const AnyEngine& engine, bool is_draining = false) {
  return health_report(engine.health(), is_draining);
}

/// Reports the health of an engine that may recover. After a failure, or a reset after one, the
/// report is 503, so a load balancer sends no requests, and without requests no step could show
/// that the engine works again. So each report of such an engine that is idle also submits a
/// request of one token in and one out, at most once every `interval`. If that succeeds, the next
/// report is 200.
///
/// Thread-safe. The engine must outlive this; another thread must run it.
class HealthCheck {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HealthCheck(AnyEngine& engine, Clock::duration interval = std::chrono::seconds(1))
      : engine_(engine), interval_(interval) {}

  /// Never waits for the engine, and never throws for it.
  [[nodiscard]] HealthReport report(bool is_draining = false) {
    const Health health = engine_.health();
    const bool needs_proof = health.state == Health::State::failed || health.is_unproven;
    if (needs_proof && !is_draining) try_a_step();
    return health_report(health, is_draining);
  }

 private:
  /// Submits such a request if none is under way and `interval` has passed.
  void try_a_step() {
    const EngineStats stats = engine_.stats();
    if (stats.num_running + stats.num_waiting > 0) return;  // their steps will show it
    {
      const std::lock_guard lock(mutex_);
      const Clock::time_point now = Clock::now();
      if (last_ && now - *last_ < interval_) return;
      if (is_trying_->exchange(true)) return;
      last_ = now;
    }
    try {
      SamplingParams params{.temperature = 0.f, .max_tokens = 1};
      engine_.submit(std::vector<TokenId>{0}, params, [flag = is_trying_](const TokenEvent& event) {
        if (event.output) *flag = false;
      });
    } catch (const std::exception&) {
      *is_trying_ = false;  // the engine takes no requests: its state remains failed
    }
  }

  AnyEngine& engine_;
  const Clock::duration interval_;
  std::mutex mutex_;
  std::optional<Clock::time_point> last_;  // guarded by it
  /// Its callback may come when this is gone.
  std::shared_ptr<std::atomic<bool>> is_trying_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace nanovllm::serve
