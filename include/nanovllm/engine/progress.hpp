#pragma once
/// What the engine reports while it loads and generates, and a line on a terminal that shows it.

#include <cstdint>
#include <cstdio>
#include <functional>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// How far the start-up is: the loading of weights, and on devices the stages behind it.
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

/// Shows loading as one line on `stream`, for checkpoints of at least `min_bytes`. Silent when the
/// stream is no terminal.
[[nodiscard]] LoadCallback load_progress_line(std::FILE* stream = stderr,
                                              std::uint64_t min_bytes = 1'000'000'000);

/// Shows generation as one line on `stream`, ten times a second at the most. Silent when the stream
/// is no terminal.
[[nodiscard]] GenerateCallback generate_progress_line(std::FILE* stream = stderr);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/engine/progress.inc"
#endif
