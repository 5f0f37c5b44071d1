#pragma once
/// A server's metrics for Prometheus, as text of format 0.0.4: the engine's counters and latencies,
/// and counts of requests. Names are vLLM's where the meaning is the same, so that its dashboards
/// work, and begin with `nanovllm:` where it is not. docs/serving.md has the list.
/// Longer than 400 lines: a hundred are tables of names and texts.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/finish_reason.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/engine/any_engine.hpp"
#include "nanovllm/engine/engine_config.hpp"
#include "nanovllm/engine/request/latency.hpp"

namespace nanovllm::serve {

/// The Content-Type of `prometheus_text`.
inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

/// Counts of HTTP statuses. Any thread may add and read; nothing waits.
class StatusCounts {
 public:
  /// Statuses with a count each; all others share one.
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

/// Counts of requests, kept by a service. Any thread may add and read.
struct ServiceCounters {
  /// Requests to the engine that have ended, by their reason. A request with several samples counts
  /// once; an HTTP request with several prompts is one for each prompt.
  void finish(FinishReason reason) noexcept {
    finished_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::int64_t finished(FinishReason reason) const noexcept {
    return finished_[static_cast<std::size_t>(reason)].load(std::memory_order_relaxed);
  }

  /// Requests that were answered with an error before the engine had them, by status: 400 for a
  /// wrong field, 429 for a full queue, …
  StatusCounts refused{};

  /// Requests that have come and are not submitted yet: they wait for a thread, or one makes their
  /// tokens or compiles their constraint.
  std::atomic<std::int64_t> num_preparing{0};
  /// Tokens of the prompts that were submitted, each counted once.
  std::atomic<std::int64_t> num_prompt_tokens{0};

 private:
  std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(FinishReason::error) + 1>
      finished_{};
};

/// Counts of a transport. Any thread may add and read.
struct HttpCounters {
  std::atomic<std::int64_t> num_open_connections{0};     ///< now
  std::atomic<std::int64_t> num_connections{0};          ///< that were accepted
  std::atomic<std::int64_t> num_refused_connections{0};  ///< because there were too many
  std::atomic<std::int64_t> num_disconnects{0};  ///< clients that left before their reply's end
  std::atomic<std::int64_t> num_timeouts{0};     ///< connections closed because they were too slow
  std::atomic<std::int64_t> num_dropped_log_lines{0};  ///< as their reader was too slow
  StatusCounts replies{};                              ///< by status
  StatusCounts refused{};  ///< of the replies, errors of the transport: 401, 413, ...
};

/// All metrics, for one scrape. Copies the counters under their locks and then writes the text:
/// about 30 µs and 17 KB.
///
/// Each bucket of a histogram counts the times that are certainly not above its bound: those within
/// the last 1/16 below it may be in the next bucket. Counts and sums are exact.
///
/// @param model_name  the label `model_name` of everything.
/// @param http        null if there is no transport, or if it has its own metrics.
[[nodiscard]] std::string prometheus_text(const AnyEngine& engine, const ServiceCounters& counters,
                                          std::string_view model_name,
                                          const HttpCounters* http = nullptr);

/// The same, of values that were read before.
[[nodiscard]] std::string prometheus_text(const EngineStats& stats, const Latencies& latencies,
                                          const Health& health, const ServiceCounters& counters,
                                          std::string_view model_name,
                                          const HttpCounters* http = nullptr);

}  // namespace nanovllm::serve

#if NANOVLLM_SERVE_BODIES

#include <initializer_list>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/version.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/sessions/options.hpp"
#include "nanovllm/with/speculation/config.hpp"
#include "nanovllm/with/tiers/options.hpp"

namespace nanovllm::serve {
namespace detail {

/// Writes metric families one after the other.
class PrometheusWriter {
 public:
  /// `labels` of every sample: pairs of a name and a value.
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  explicit PrometheusWriter(std::string_view model_name) {
    append_label(labels_, "model_name", model_name);
    out_.reserve(std::size_t{16} << 10);
  }

  /// Begins a family. `type` is "counter", "gauge" or "histogram".
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    for (const auto& [keyword, text] : {std::pair{"# HELP ", help}, std::pair{"# TYPE ", type}}) {
      out_ += keyword;
      out_ += name;
      out_ += ' ';
      out_ += text;
      out_ += '\n';
    }
  }

  /// A sample of the family.
  template <class Number>
  void sample(Number value, Labels labels = {}, std::string_view suffix = {}) {
    out_ += name_;
    out_ += suffix;
    out_ += '{';
    out_ += labels_;
    for (const auto& [label, text] : labels) {
      out_ += ',';
      append_label(out_, label, text);
    }
    out_ += "} ";
    append(out_, value);
    out_ += '\n';
  }

  template <class Number>
  void single(std::string_view name, std::string_view type, std::string_view help, Number value) {
    family(name, type, help);
    sample(value);
  }

  void histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                 const LatencyHistogram& times) {
    family(name, "histogram", help);
    const std::vector<std::int64_t> counts = times.cumulative(bounds);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::string bound;
      append(bound, i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity());
      sample(counts[i], {{"le", bound}}, "_bucket");
    }
    sample(times.sum(), {}, "_sum");
    sample(counts.back(), {}, "_count");
  }

  /// One sample a status from `least` on, and one of all others. `more` is added, if not null.
  void statuses(std::string_view name, std::string_view help, const StatusCounts& counts, int least,
                const StatusCounts* more = nullptr) {
    const auto count = [&](int status) {
      return counts[status] + (more != nullptr ? (*more)[status] : 0);
    };
    family(name, "counter", help);
    for (const int status : StatusCounts::kStatuses)
      if (status >= least) sample(count(status), {{"status", std::to_string(status)}});
    sample(count(0), {{"status", "other"}});
  }

  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  static void append(std::string& out, std::int64_t value) { out += std::to_string(value); }
  /// As Python's client writes them, since `le` is compared as a text: "1.0", "+Inf".
  static void append(std::string& out, double value) {
    nanovllm::detail::append_python_float(out, value, "NaN", "+Inf");
  }

  static void append_label(std::string& out, std::string_view name, std::string_view value) {
    out += name;
    out += "=\"";
    std::string text;
    utf8::append_lossy(text, value);
    for (const char c : text) {
      if (c == '\\' || c == '"') out += '\\';
      if (c == '\n') {
        out += "\\n";
      } else {
        out += c;
      }
    }
    out += '"';
  }

  std::string out_, labels_;
  std::string_view name_;
};

/// A metric that is a member of `Stats`: EngineStats, or one of its extras.
template <class Number, class Stats = EngineStats>
struct StatMetric {
  std::string_view name, type, help;
  Number Stats::*member;
};

inline constexpr StatMetric<std::int64_t> kCountMetrics[] = {
    {"vllm:num_requests_running", "gauge", "Sequences in the running batch.",
     &EngineStats::num_running},
    {"vllm:num_requests_waiting", "gauge", "Sequences that wait to be computed.",
     &EngineStats::num_waiting},
    {"vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache.",
     &EngineStats::num_queried_tokens},
    {"vllm:prefix_cache_hits_total", "counter", "Of them, tokens found.",
     &EngineStats::num_hit_tokens},
    {"vllm:generation_tokens_total", "counter", "Tokens generated.",
     &EngineStats::num_sampled_tokens},
    {"vllm:num_preemptions_total", "counter", "Sequences that lost their blocks to others.",
     &EngineStats::num_preemptions},
    {"nanovllm:steps_total", "counter", "Steps of the engine.", &EngineStats::num_steps},
    {"nanovllm:sequences_finished_total", "counter",
     "Sequences that have ended, for whatever reason; a request has one a sample.",
     &EngineStats::num_finished},
    {"nanovllm:prefill_tokens_total", "counter", "Tokens computed in chunks of prompts.",
     &EngineStats::num_prefill_tokens},
    {"nanovllm:decode_tokens_total", "counter", "Tokens of decodes, refused drafts included.",
     &EngineStats::num_decode_tokens},
    {"nanovllm:decode_generation_tokens_total", "counter",
     "Of the tokens generated, those of decodes.", &EngineStats::num_sampled_by_decodes},
    {"nanovllm:kv_blocks", "gauge", "Blocks of the KV pool.", &EngineStats::num_kv_blocks},
    {"nanovllm:kv_blocks_free", "gauge", "Of them, free: unused, or cached and in no use.",
     &EngineStats::num_free_kv_blocks},
};

inline constexpr StatMetric<std::int64_t, HostKvStats> kHostMetrics[] = {
    {"nanovllm:host_hit_tokens_total", "counter", "Tokens found in host memory.",
     &HostKvStats::num_hit_tokens},
    {"nanovllm:swapped_out_total", "counter", "Preempted sequences copied to host memory.",
     &HostKvStats::num_swapped_out},
    {"nanovllm:swapped_in_total", "counter", "Of them, copied back and not computed again.",
     &HostKvStats::num_swapped_in},
    {"nanovllm:swap_drops_total", "counter", "Of them, ended or of no use.",
     &HostKvStats::num_swap_drops},
    {"nanovllm:swap_fallbacks_total", "counter", "Preempted sequences that were not copied.",
     &HostKvStats::num_swap_fallbacks},
    {"nanovllm:host_kv_blocks", "gauge", "Blocks of the pool in host memory.",
     &HostKvStats::num_blocks},
    {"nanovllm:host_kv_blocks_free", "gauge", "Of them, free.", &HostKvStats::num_free_blocks},
};

inline constexpr StatMetric<std::int64_t, DiskKvStats> kDiskMetrics[] = {
    {"nanovllm:disk_hit_tokens_total", "counter", "Tokens read from disk.",
     &DiskKvStats::num_hit_tokens},
    {"nanovllm:disk_writes_total", "counter", "Blocks written to disk.", &DiskKvStats::num_writes},
    {"nanovllm:disk_failures_total", "counter", "Files not written, or not as they should be.",
     &DiskKvStats::num_failures},
    {"nanovllm:disk_blocks", "gauge", "Blocks on disk.", &DiskKvStats::num_blocks},
};

inline constexpr StatMetric<std::int64_t, SessionStats> kSessionMetrics[] = {
    {"nanovllm:session_blocks", "gauge", "Blocks of the KV pool held by sessions.",
     &SessionStats::num_blocks},
};

inline constexpr StatMetric<std::int64_t, SpeculationStats> kSpeculationMetrics[] = {
    {"vllm:spec_decode_num_drafts_total", "counter", "Drafts that steps checked, one a sequence.",
     &SpeculationStats::num_drafts},
    {"vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens of these drafts.",
     &SpeculationStats::num_drafted},
    {"vllm:spec_decode_num_accepted_tokens_total", "counter", "Of them, tokens that were drawn.",
     &SpeculationStats::num_accepted},
    {"nanovllm:spec_decode_failures_total", "counter", "Times that the drafter threw.",
     &SpeculationStats::num_failed},
};

inline constexpr StatMetric<double> kSecondMetrics[] = {
    {"nanovllm:prefill_seconds_total", "counter",
     "Time spent waiting for the results of steps, the share of prompts.",
     &EngineStats::prefill_seconds},
    {"nanovllm:decode_seconds_total", "counter", "And that of tokens computed one at a time.",
     &EngineStats::decode_seconds},
    {"nanovllm:host_seconds_total", "counter",
     "Rest of the time in steps: planning, delivering, callbacks.", &EngineStats::host_seconds},
};

// vLLM's bounds. Between tokens there are three more below, where small models are.
inline constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                               0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                               20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
inline constexpr double kInterTokenBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                               0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1.0,   2.5,
                                               5.0,   7.5,    10.0,  20.0, 40.0,  80.0};
inline constexpr double kRequestBounds[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                            5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                            60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};

template <class Stats, class Metrics>
void write_stats(PrometheusWriter& out, const Stats& stats, const Metrics& metrics) {
  for (const auto& [name, type, help, member] : metrics)
    out.single(name, type, help, stats.*member);
}

/// Nothing of an engine that does not draft.
NANOVLLM_SERVE_INLINE void write_speculation(PrometheusWriter& out, const SpeculationStats& stats) {
  const std::vector<std::int64_t>& by_position = stats.accepted_by_position;
  if (by_position.empty()) return;
  write_stats(out, stats, kSpeculationMetrics);
  out.family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Accepted tokens by their position in the draft.");
  for (std::size_t i = 0; i < by_position.size(); ++i)
    out.sample(by_position[i], {{"position", std::to_string(i)}});
}

NANOVLLM_SERVE_INLINE void write_engine_metrics(PrometheusWriter& out, const EngineStats& stats,
                                                const Latencies& latencies, const Health& health) {
  write_stats(out, stats, kCountMetrics);
  write_stats(out, stats, kSecondMetrics);
  write_stats(out, stats.of<HostKvStats>(), kHostMetrics);
  write_stats(out, stats.of<DiskKvStats>(), kDiskMetrics);
  write_stats(out, stats.of<SessionStats>(), kSessionMetrics);
  write_speculation(out, stats.of<SpeculationStats>());
  const std::int64_t num_used = stats.num_kv_blocks - stats.num_free_kv_blocks;
  out.single("vllm:kv_cache_usage_perc", "gauge", "Share of the KV pool in use; 1 is all of it.",
             stats.num_kv_blocks > 0
                 ? static_cast<double>(num_used) / static_cast<double>(stats.num_kv_blocks)
                 : 0.0);
  if (const auto experts = stats.of<ExpertLoad>(); !experts.empty()) {
    out.family("nanovllm:expert_tokens_total", "counter",
               "Tokens that an expert was chosen for, in all layers together.");
    const std::vector<std::int64_t> tokens = experts.by_expert();
    for (std::size_t e = 0; e < tokens.size(); ++e)
      out.sample(tokens[e], {{"expert", std::to_string(e)}});
    out.single("nanovllm:expert_balancedness", "gauge",
               "Mean tokens of a layer's experts, divided by those of its busiest one.",
               experts.balancedness(experts.num_experts));
  }
  out.histogram("vllm:time_to_first_token_seconds", "From submission until the first token.",
                kFirstTokenBounds, latencies.first_token);
  out.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
                kInterTokenBounds, latencies.inter_token);
  out.histogram("vllm:e2e_request_latency_seconds",
                "From submission to the end, of requests that ended by themselves.", kRequestBounds,
                latencies.end_to_end);
  out.histogram("vllm:request_queue_time_seconds", "From submission until first computed.",
                kRequestBounds, latencies.queue);
  out.single("nanovllm:healthy", "gauge", "1 unless a step hangs or the last one failed.",
             std::int64_t{health.state == Health::State::ok && !health.is_unproven});
}

NANOVLLM_SERVE_INLINE void write_service_metrics(PrometheusWriter& out,
                                                 const ServiceCounters& counters,
                                                 const HttpCounters* http) {
  out.family("vllm:request_success_total", "counter", "Requests that have ended, by reason.");
  std::int64_t num_finished = 0;
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::error}) {
    const std::int64_t count = counters.finished(reason);
    out.sample(count, {{"finished_reason", name(reason)}});
    num_finished += count;
  }
  out.single("nanovllm:requests_finished_total", "counter",
             "Requests that have ended, for whatever reason.", num_finished);
  out.single("nanovllm:num_requests_preparing", "gauge",
             "Requests that have come and are not submitted yet.", counters.num_preparing.load());
  out.single("vllm:prompt_tokens_total", "counter", "Tokens of submitted prompts.",
             counters.num_prompt_tokens.load());
  out.statuses("nanovllm:requests_refused_total",
               "Requests answered with an error before the engine had them, by HTTP status.",
               counters.refused, 400, http != nullptr ? &http->refused : nullptr);
}

NANOVLLM_SERVE_INLINE void write_http_metrics(PrometheusWriter& out, const HttpCounters& counters) {
  out.single("nanovllm:http_open_connections", "gauge", "Open connections.",
             counters.num_open_connections.load());
  out.single("nanovllm:http_connections_total", "counter", "Connections accepted.",
             counters.num_connections.load());
  out.single("nanovllm:http_connections_refused_total", "counter",
             "Connections refused because there were too many.",
             counters.num_refused_connections.load());
  out.single("nanovllm:http_disconnects_total", "counter",
             "Clients that left before the end of their reply.", counters.num_disconnects.load());
  out.single("nanovllm:http_timeouts_total", "counter", "Connections closed for being too slow.",
             counters.num_timeouts.load());
  out.single("nanovllm:log_lines_dropped_total", "counter",
             "Lines of the log that were dropped because its reader was too slow.",
             counters.num_dropped_log_lines.load());
  out.statuses("nanovllm:http_replies_total", "Replies by HTTP status.", counters.replies, 0);
}

}  // namespace detail

NANOVLLM_SERVE_INLINE std::string prometheus_text(const EngineStats& stats,
                                                  const Latencies& latencies, const Health& health,
                                                  const ServiceCounters& counters,
                                                  std::string_view model_name,
                                                  const HttpCounters* http) {
  detail::PrometheusWriter out(model_name);
  detail::write_engine_metrics(out, stats, latencies, health);
  detail::write_service_metrics(out, counters, http);
  if (http) detail::write_http_metrics(out, *http);
  const std::string version =
      concat(NANOVLLM_VERSION_MAJOR, '.', NANOVLLM_VERSION_MINOR, '.', NANOVLLM_VERSION_PATCH);
  out.family("nanovllm:build_info", "gauge", "1, with what this is as its labels.");
  out.sample(std::int64_t{1}, {{"version", version}});
  return out.take();
}

NANOVLLM_SERVE_INLINE std::string prometheus_text(const AnyEngine& engine,
                                                  const ServiceCounters& counters,
                                                  std::string_view model_name,
                                                  const HttpCounters* http) {
  return prometheus_text(engine.stats(), engine.latencies(), engine.health(), counters, model_name,
                         http);
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_SERVE_BODIES
