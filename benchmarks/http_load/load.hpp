#pragma once
/// The load that `http_load` puts on a server and `engine_load` on an engine: the same requests, as
/// many at a time; only `http_load` asks for embeddings. No transport and no engine in here.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/json.hpp"

namespace http_load {

namespace nv = nanovllm;
using Clock = std::chrono::steady_clock;

/// Requests of equal lengths. A client sends its next one when it has the last one's answer.
struct Load {
  int concurrency = 64;  ///< clients
  int num_requests = 256;
  int num_input_tokens = 128, num_output_tokens = 128;
  int num_texts = 0;       ///< of a request for embeddings, without output; 0: completions
  int vocab_size = 4096;   ///< prompts have ids below
  std::uint64_t seed = 0;  ///< of the prompts
};

/// The prompt of request `index`, or text `index` of all requests: random, and the same in every
/// run.
[[nodiscard]] inline std::vector<nv::TokenId> make_prompt(const Load& load, int index) {
  std::mt19937_64 random(load.seed + static_cast<std::uint64_t>(index));
  std::vector<nv::TokenId> prompt(static_cast<std::size_t>(load.num_input_tokens));
  for (nv::TokenId& token : prompt) {
    token = static_cast<nv::TokenId>(random() % static_cast<std::uint64_t>(load.vocab_size));
  }
  return prompt;
}

[[nodiscard]] inline nv::Json to_json(const Load& load) {
  return nv::Json::object({{"concurrency", load.concurrency},
                           {"requests", load.num_requests},
                           {"input_tokens", load.num_input_tokens},
                           {"output_tokens", load.num_output_tokens},
                           {"texts", load.num_texts},
                           {"vocab_size", load.vocab_size},
                           {"seed", load.seed}});
}

/// The load that a result is of.
[[nodiscard]] inline Load load_of(const nv::Json& result) {
  return {.concurrency = result["concurrency"].get<int>(),
          .num_requests = result["requests"].get<int>(),
          .num_input_tokens = result["input_tokens"].get<int>(),
          .num_output_tokens = result["output_tokens"].get<int>(),
          .num_texts = result.contains("texts") ? result["texts"].get<int>() : 0,
          .vocab_size = result["vocab_size"].get<int>(),
          .seed = result["seed"].get<std::uint64_t>()};
}

[[nodiscard]] inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// What was seen of the answers, in seconds, and how many tokens and events they had.
struct Times {
  std::int64_t num_tokens = 0, num_events = 0;
  std::vector<double> first_event, between_events, whole;

  void add(const Times& other) {
    num_tokens += other.num_tokens;
    num_events += other.num_events;
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(first_event, other.first_event);
    append(between_events, other.between_events);
    append(whole, other.whole);
  }
};

/// The times of one answer.
class AnswerClock {
 public:
  explicit AnswerClock(Times& times) : times_(&times) {}

  /// An event has come.
  void event() {
    const Clock::time_point now = Clock::now();
    (is_first_ ? times_->first_event : times_->between_events)
        .push_back(seconds_between(last_, now));
    is_first_ = false;
    last_ = now;
    ++times_->num_events;
  }

  /// It is whole.
  void end(std::int64_t num_tokens) {
    times_->num_tokens += num_tokens;
    times_->whole.push_back(seconds_between(begin_, Clock::now()));
  }

 private:
  Times* times_;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  bool is_first_ = true;
};

[[nodiscard]] inline nv::Json percentiles(std::vector<double> seconds) {
  if (seconds.empty()) return nullptr;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1))];
  };
  return nv::Json::object({{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", at(1)}});
}

/// The result of a load that took `seconds` in all, as a file has it.
[[nodiscard]] inline nv::Json result_json(const Load& load, const Times& times, double seconds) {
  nv::Json result = to_json(load);
  result["seconds"] = seconds;
  result["tokens_per_second"] = static_cast<double>(times.num_tokens) / seconds;
  result["events_per_second"] = static_cast<double>(times.num_events) / seconds;
  result["first_event_seconds"] = percentiles(times.first_event);
  result["between_events_seconds"] = percentiles(times.between_events);
  result["whole_seconds"] = percentiles(times.whole);
  return result;
}

inline void print_result(const nv::Json& result) {
  const int num_texts = result.contains("texts") ? result["texts"].get<int>() : 0;
  std::printf("%d clients, %d requests of ", result["concurrency"].get<int>(),
              result["requests"].get<int>());
  if (num_texts > 0) {
    std::printf("%d texts of %d tokens, %.2f s: %.0f tokens/s\n", num_texts,
                result["input_tokens"].get<int>(), result["seconds"].get<double>(),
                result["tokens_per_second"].get<double>());
  } else {
    std::printf("%d + %d tokens, %.2f s: %.0f tokens/s in %.0f events/s\n",
                result["input_tokens"].get<int>(), result["output_tokens"].get<int>(),
                result["seconds"].get<double>(), result["tokens_per_second"].get<double>(),
                result["events_per_second"].get<double>());
  }
  const auto print = [&](const char* name, const char* key) {
    const nv::Json& times = result[key];
    if (times.is_null()) return;
    std::printf("%-16s p50 %8.2f  p90 %8.2f  p99 %8.2f  max %8.2f ms\n", name,
                1e3 * times["p50"].get<double>(), 1e3 * times["p90"].get<double>(),
                1e3 * times["p99"].get<double>(), 1e3 * times["max"].get<double>());
  };
  print("first event", "first_event_seconds");
  print("between events", "between_events_seconds");
  print("whole", "whole_seconds");
}

}  // namespace http_load
