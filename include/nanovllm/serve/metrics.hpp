#pragma once
/// What a server says of itself to Prometheus: an engine's counters and latencies, and what became
/// of requests, as text of format 0.0.4.
///
/// Names are vLLM's where the meaning is the same, so that its dashboards work, and begin with
/// `nanovllm:` where it is not. docs/serving.md has the list.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/latency.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm::serve {

/// The Content-Type of what `prometheus_text` gives.
inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

/// Counts of HTTP statuses. Any thread may add and read; nothing waits.
class StatusCounts {
 public:
  /// Those that are counted one by one; all others are one count.
  static constexpr std::array kStatuses = {200, 204, 400, 401, 403, 404, 405, 408,
                                           413, 415, 417, 429, 431, 500, 501, 503};

  void add(int status) noexcept { counts_[index(status)].fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t operator[](int status) const noexcept {
    return counts_[index(status)].load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] static std::size_t index(int status) noexcept {
    return static_cast<std::size_t>(std::ranges::find(kStatuses, status) - kStatuses.begin());
  }

  std::array<std::atomic<std::int64_t>, kStatuses.size() + 1> counts_{};
};

/// What became of requests, to be added to by a service. Any thread may add and read.
struct ServiceCounters {
  /// Requests to the engine that have ended, by their reason; a choice of several counts as one.
  void finish(FinishReason reason) noexcept {
    finished_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::int64_t finished(FinishReason reason) const noexcept {
    return finished_[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
  }

  /// Requests that were answered with an error before the engine had them, by status: 400 for a
  /// wrong field, 429 for a full queue, …
  StatusCounts refused{};

 private:
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(FinishReason::error) + 1>
      finished_{};
};

/// What a transport counts, where there is one. Any thread may add and read.
struct HttpCounters {
  std::atomic<std::int64_t> num_open_connections{0};     ///< now
  std::atomic<std::int64_t> num_connections{0};          ///< that were accepted
  std::atomic<std::int64_t> num_refused_connections{0};  ///< for there were too many
  std::atomic<std::int64_t> num_disconnects{0};  ///< clients that left before their reply's end
  std::atomic<std::int64_t> num_timeouts{0};     ///< connections closed for they were too slow
  StatusCounts replies{};                        ///< by status
};

/// All there is to say, for the reply to one scrape. Copies the counters first, each lock held no
/// longer than that takes, and then writes; some 30 µs and 17 KB.
///
/// Each bucket of a histogram counts the times that are certainly not above its bound: those within
/// the last 1/16 below it may be in the next bucket. Counts and sums are exact.
///
/// @param model_name  the label `model_name` of everything.
/// @param http        null where there is no transport, or it speaks for itself.
[[nodiscard]] std::string prometheus_text(const AnyEngine& engine, const ServiceCounters& counters,
                                          std::string_view model_name,
                                          const HttpCounters* http = nullptr);

/// The same of values that were read before.
[[nodiscard]] std::string prometheus_text(const EngineStats& stats, const Latencies& latencies,
                                          const Health& health, const ServiceCounters& counters,
                                          std::string_view model_name,
                                          const HttpCounters* http = nullptr);

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES
#include "nanovllm/serve/metrics.inc"
#endif
