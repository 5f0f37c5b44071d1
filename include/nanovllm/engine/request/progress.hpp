#pragma once
/// What the engine reports while it loads and generates, and lines for people that show it.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string_view>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// How far the start-up is: the loading of weights, and on devices the stages after it.
struct LoadProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;
  const char* stage = "loading weights";  ///< what has begun; bytes are those of the weights
};

/// How far a call of `generate` is. Rates are averages over the call.
struct GenerateProgress {
  std::int64_t num_finished = 0;  ///< requests
  std::int64_t num_requests = 0;
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;
};

using LoadCallback = std::function<void(const LoadProgress&)>;
using GenerateCallback = std::function<void(const GenerateProgress&)>;
using WarningCallback = std::function<void(std::string_view)>;

/// Shows loading as one line on `stream`, for checkpoints of at least `min_bytes`. Silent when the
/// stream is no terminal.
[[nodiscard]] LoadCallback load_progress_line(std::FILE* stream = stderr,
                                              std::uint64_t min_bytes = 1'000'000'000);

/// Shows generation as one line on `stream`, at most ten times a second. Silent when the stream
/// is no terminal.
[[nodiscard]] GenerateCallback generate_progress_line(std::FILE* stream = stderr);

/// Writes each warning to `stream`, as a line that begins with "warning: ".
[[nodiscard]] WarningCallback warning_lines(std::FILE* stream = stderr);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <chrono>

#include <unistd.h>

namespace nanovllm {

NANOVLLM_INLINE LoadCallback load_progress_line(std::FILE* stream, std::uint64_t min_bytes) {
  if (!isatty(fileno(stream))) return {};
  return [stream, min_bytes, shown = -1](const LoadProgress& p) mutable {
    if (p.bytes_total < min_bytes) return;
    if (std::string_view(p.stage) != LoadProgress{}.stage) {
      std::fprintf(stream, "%s\n", p.stage);
      return;
    }
    const int percent = static_cast<int>(100.0 * static_cast<double>(p.bytes_done) /
                                         static_cast<double>(p.bytes_total));
    if (percent == shown) return;
    shown = percent;
    std::fprintf(stream, "\rloading weights: %3d%% of %.1f GB%s", percent,
                 static_cast<double>(p.bytes_total) * 1e-9,
                 p.bytes_done == p.bytes_total ? "\n" : "");
    std::fflush(stream);
  };
}

NANOVLLM_INLINE GenerateCallback generate_progress_line(std::FILE* stream) {
  if (!isatty(fileno(stream))) return {};
  using Clock = std::chrono::steady_clock;
  return [stream, last = Clock::time_point{}](const GenerateProgress& p) mutable {
    const bool done = p.num_finished == p.num_requests;
    const Clock::time_point now = Clock::now();
    if (!done && now - last < std::chrono::milliseconds(100)) return;
    last = now;
    constexpr int kWidth = 30;
    const int filled =
        p.num_requests == 0 ? kWidth : static_cast<int>(kWidth * p.num_finished / p.num_requests);
    std::fprintf(stream, "\r[%.*s%*s] %lld/%lld  prefill %.0f tok/s  decode %.0f tok/s%s", filled,
                 "##############################", kWidth - filled, "",
                 static_cast<long long>(p.num_finished), static_cast<long long>(p.num_requests),
                 p.prefill_tokens_per_second, p.decode_tokens_per_second, done ? "\n" : "   ");
    std::fflush(stream);
  };
}

NANOVLLM_INLINE WarningCallback warning_lines(std::FILE* stream) {
  return [stream](std::string_view text) {
    std::fprintf(stream, "warning: %.*s\n", static_cast<int>(text.size()), text.data());
  };
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
