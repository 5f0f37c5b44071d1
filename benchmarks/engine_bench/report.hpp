#pragma once
/// Results as tables for people and as JSON for programs.

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <stdlib.h>  // getloadavg

#include "measure.hpp"
#include "nanovllm/core/error.hpp"

namespace engine_bench {

using Json = nlohmann::ordered_json;

/// Everything that one run found.
struct Results {
  double start_up_seconds = 0;  ///< making the engine: weights, tuning, graphs
  std::vector<WorkloadResult> workloads;
  std::vector<DecodeResult> decodes;
  std::vector<PrefillResult> prefills;
  std::vector<EmbedResult> embeds;
  std::vector<FirstTokenResult> first_tokens;
};

namespace detail {

inline Json to_json(const Samples& samples) {
  return {{"median", samples.median()},
          {"min", samples.quantile(0)},
          {"p99", samples.quantile(0.99)},
          {"max", samples.quantile(1)},
          {"count", samples.size()}};
}

inline Json to_json(const Ceilings& ceilings) {
  return {{"read_gb_per_second", ceilings.bytes_per_second * 1e-9},
          {"gflop_per_second", ceilings.operations_per_second * 1e-9}};
}

inline Json to_json(const WorkloadResult& r) {
  const auto output = static_cast<double>(r.num_output_tokens);
  const auto prompt = static_cast<double>(r.num_prompt_tokens);
  return {{"num_requests", r.num_requests},
          {"num_prompt_tokens", r.num_prompt_tokens},
          {"num_output_tokens", r.num_output_tokens},
          {"seconds", r.seconds},
          {"output_tokens_per_second", output / r.seconds},
          {"total_tokens_per_second", (prompt + output) / r.seconds},
          {"num_steps", r.stats.num_steps},
          {"num_preemptions", r.stats.num_preemptions},
          {"num_computed_prompt_tokens", r.stats.num_prefill_tokens},
          {"num_cached_prompt_tokens", r.stats.num_hit_tokens},
          {"prefill_seconds", r.stats.prefill_seconds},
          {"decode_seconds", r.stats.decode_seconds},
          {"host_seconds", r.stats.host_seconds},
          {"first_token_seconds", to_json(r.first_token)},
          {"seconds_per_token_of_a_request", to_json(r.token)},
          {"floor_seconds", r.floor},
          {"share_of_floor", r.floor / r.seconds},
          {"ceilings", to_json(r.ceilings)}};
}

inline Json to_json(const DecodeResult& r) {
  Json out{{"batch", r.batch}, {"context", r.context}};
  if (!r.skipped.empty()) {
    out["skipped"] = r.skipped;
    return out;
  }
  out["step_seconds"] = to_json(r.step);
  out["tokens_per_second"] = static_cast<double>(r.batch) / r.step.median();
  out["host_seconds_per_step"] = r.host_seconds;
  out["floor_seconds"] = r.floor;
  out["share_of_floor"] = r.floor / r.step.median();
  out["ceilings"] = to_json(r.ceilings);
  return out;
}

inline Json to_json(const PrefillResult& r) {
  return {{"length", r.length},
          {"num_prompts", r.num_prompts},
          {"seconds", to_json(r.run)},
          {"tokens_per_second", static_cast<double>(r.num_prompts * r.length) / r.run.median()},
          {"floor_seconds", r.floor},
          {"share_of_floor", r.floor / r.run.median()},
          {"ceilings", to_json(r.ceilings)}};
}

inline Json to_json(const EmbedResult& r) {
  const auto tokens = static_cast<double>(r.num_texts * r.length);
  return {{"length", r.length},
          {"num_texts", r.num_texts},
          {"seconds", to_json(r.run)},
          {"prefill_seconds", to_json(r.prefill)},
          {"tokens_per_second", tokens / r.run.median()},
          {"prefill_tokens_per_second", tokens / r.prefill.median()},
          {"share_of_prefill", r.prefill.median() / r.run.median()},
          {"floor_seconds", r.floor},
          {"share_of_floor", r.floor / r.run.median()},
          {"ceilings", to_json(r.ceilings)}};
}

inline Json to_json(const FirstTokenResult& r) {
  return {{"length", r.length},
          {"seconds", to_json(r.first_token)},
          {"floor_seconds", r.floor},
          {"share_of_floor", r.floor / r.first_token.median()},
          {"ceilings", to_json(r.ceilings)}};
}

template <class Result>
Json to_json(const std::vector<Result>& results) {
  Json out = Json::array();
  for (const Result& result : results) out.push_back(to_json(result));
  return out;
}

/// The first "model name" of /proc/cpuinfo, or "unknown".
inline std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

inline void print_ceilings(const Ceilings& c) {
  std::printf("  probed: %.1f GB/s read, %.1f GFLOP/s\n", c.bytes_per_second * 1e-9,
              c.operations_per_second * 1e-9);
}

inline void print(const WorkloadResult& r) {
  const auto count = [](std::int64_t n) { return static_cast<long long>(n); };
  const auto rate = [](std::int64_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0; };
  std::printf("\nWorkload: %lld requests, %lld prompt tokens, %lld output tokens\n",
              count(r.num_requests), count(r.num_prompt_tokens), count(r.num_output_tokens));
  std::printf("  time                 %12.2f s, floor %.2f s (%.0f%%)\n", r.seconds, r.floor,
              100 * r.floor / r.seconds);
  std::printf("  output tokens        %12.1f a second\n", rate(r.num_output_tokens, r.seconds));
  std::printf("  prompt and output    %12.1f a second\n",
              rate(r.num_prompt_tokens + r.num_output_tokens, r.seconds));
  std::printf("  in prefill           %12.1f a second\n",
              rate(r.stats.num_prefill_tokens, r.stats.prefill_seconds));
  std::printf("  in decode            %12.1f a second\n",
              rate(r.stats.num_sampled_by_decodes, r.stats.decode_seconds));
  std::printf("  host                 %12.2f s\n", r.stats.host_seconds);
  std::printf("  steps                %12lld, %lld preemptions\n", count(r.stats.num_steps),
              count(r.stats.num_preemptions));
  std::printf("  first token          %12.3f s median, %.3f s p99\n", r.first_token.median(),
              r.first_token.quantile(0.99));
  std::printf("  token of a request   %12.1f ms median, %.1f ms p99\n", 1e3 * r.token.median(),
              1e3 * r.token.quantile(0.99));
  print_ceilings(r.ceilings);
}

inline void print(const std::vector<DecodeResult>& results) {
  if (results.empty()) return;
  std::printf("\nDecode alone, median step\n%7s %8s %10s %10s %10s %9s %10s %6s %12s\n", "batch",
              "context", "ms/step", "min ms", "tokens/s", "host ms", "floor ms", "share",
              "probed GB/s");
  for (const DecodeResult& r : results) {
    std::printf("%7lld %8lld ", static_cast<long long>(r.batch), static_cast<long long>(r.context));
    if (!r.skipped.empty()) {
      std::printf("skipped: %s\n", r.skipped.c_str());
      continue;
    }
    const double median = r.step.median();
    std::printf("%10.3f %10.3f %10.1f %9.3f %10.3f %5.0f%% %12.1f\n", 1e3 * median,
                1e3 * r.step.quantile(0), static_cast<double>(r.batch) / median,
                1e3 * r.host_seconds, 1e3 * r.floor, 100 * r.floor / median,
                r.ceilings.bytes_per_second * 1e-9);
  }
}

inline void print(const std::vector<PrefillResult>& results) {
  for (const PrefillResult& r : results) {
    const double median = r.run.median();
    std::printf(
        "\nPrefill: %lld prompts of %lld tokens, median of %zu runs\n"
        "  %.1f tokens/s, %.3f s, floor %.3f s (%.0f%%)\n",
        static_cast<long long>(r.num_prompts), static_cast<long long>(r.length), r.run.size(),
        static_cast<double>(r.num_prompts * r.length) / median, median, r.floor,
        100 * r.floor / median);
    print_ceilings(r.ceilings);
  }
}

inline void print(const std::vector<EmbedResult>& results) {
  for (const EmbedResult& r : results) {
    const double median = r.run.median(), tokens = static_cast<double>(r.num_texts * r.length);
    std::printf(
        "\nEmbeddings: %lld texts of %lld tokens, median of %zu runs\n"
        "  %.1f tokens/s, %.3f s, floor %.3f s (%.0f%%)\n"
        "  as prompts, a token out of each: %.1f tokens/s; embeddings reach %.1f%% of it\n",
        static_cast<long long>(r.num_texts), static_cast<long long>(r.length), r.run.size(),
        tokens / median, median, r.floor, 100 * r.floor / median, tokens / r.prefill.median(),
        100 * r.prefill.median() / median);
    print_ceilings(r.ceilings);
  }
}

inline void print(const std::vector<FirstTokenResult>& results) {
  for (const FirstTokenResult& r : results) {
    const double median = r.first_token.median();
    std::printf(
        "\nTime to first token: one prompt of %lld tokens, median of %zu\n"
        "  %.1f ms, floor %.1f ms (%.0f%%)\n",
        static_cast<long long>(r.length), r.first_token.size(), 1e3 * median, 1e3 * r.floor,
        100 * r.floor / median);
    print_ceilings(r.ceilings);
  }
}

}  // namespace detail

/// Where and when the run happens. `commit` may be empty.
[[nodiscard]] inline Json machine_json(std::string_view engine, std::string_view commit) {
  double load[1] = {0};
  getloadavg(load, 1);
  return {{"cpu", detail::cpu_model()},
          {"num_cpus", std::thread::hardware_concurrency()},
          {"load_average", load[0]},
          {"engine", engine},
          {"compiler", __VERSION__},
          {"date", detail::utc_now()},
          {"commit", commit}};
}

[[nodiscard]] inline Json to_json(const Results& results) {
  return {{"start_up_seconds", results.start_up_seconds},
          {"workload", detail::to_json(results.workloads)},
          {"decode", detail::to_json(results.decodes)},
          {"prefill", detail::to_json(results.prefills)},
          {"embed", detail::to_json(results.embeds)},
          {"first_token", detail::to_json(results.first_tokens)}};
}

inline void print(const Results& results) {
  std::printf("\nStart-up: %.2f s\n", results.start_up_seconds);
  for (const WorkloadResult& result : results.workloads) detail::print(result);
  detail::print(results.decodes);
  detail::print(results.prefills);
  detail::print(results.embeds);
  detail::print(results.first_tokens);
}

}  // namespace engine_bench
