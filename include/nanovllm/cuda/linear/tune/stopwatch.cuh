#pragma once
/// Times kernels of a dense layer, to choose between them.
/// Measured: not by itself; 3.7 s for the start-up of 0.6B, whose tuning fills operands by it
/// (engine_bench, cuda_engine_0_6b.json).

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/runtime/stream.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// When to stop timing.
using Deadline = std::chrono::steady_clock::time_point;

[[nodiscard]] inline bool is_over(Deadline deadline) {
  return std::chrono::steady_clock::now() > deadline;
}

namespace detail {

/// Fills `p` with numbers in [-1, 1): the power a product takes, and so the clock, depend on them.
template <Element T>
__global__ void __launch_bounds__(256) fill_noise_kernel(T* p, std::int64_t size) {
  grid_dependency_wait();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < size;
       i += stride) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9e3779b1u;
    h = (h ^ h >> 15) * 0x85ebca77u;
    p[i] = from_float<T>(static_cast<float>(h >> 16) * 0x1p-15f - 1.f);
  }
}

template <Element T>
void fill_noise(T* p, std::int64_t size, const Context& context) {
  if (size == 0) return;
  launch(fill_noise_kernel<T>, {.grid = dim3(1024), .block = dim3(256)}, context, p, size);
}

/// Milliseconds of one call: the fastest of three replays of a graph of `calls` calls run(i), less
/// when the first takes longer than `hopeless_ms` a call.
template <class Run>
[[nodiscard]] double time_calls(const Context& context, int calls, double hopeless_ms,
                                const Run& run) {
  const Graph graph = Graph::capture(context.stream, [&] {
    for (int i = 0; i < calls; ++i) run(i);
  });
  Event begin(true), end(true);
  double best = std::numeric_limits<double>::infinity();
  for (int replay = 0; replay < 4; ++replay) {
    begin.record(context.stream);
    graph.launch(context.stream);
    end.record(context.stream);
    end.synchronize();
    const double ms = static_cast<double>(end.milliseconds_since(begin)) / calls;
    if (replay > 0) best = std::min(best, ms);  // the first warms up
    if (ms > hopeless_ms) break;
  }
  return best;
}

/// Calls that pass through twice the L2 cache with weights of so many bytes; compute-bound ones
/// need no such care.
[[nodiscard]] inline int calls_to_time(std::int64_t rows, std::int64_t weight_bytes,
                                       const Context& context) {
  if (rows > 256) return 2;
  return static_cast<int>(std::clamp<std::size_t>(
      2 * context.l2_bytes / static_cast<std::size_t>(weight_bytes), 2, 32));
}

/// Times run(i, way), `calls` times in a row, for those of `ways` that try_out(way) says there is,
/// and keeps the fastest for `key`. `try_out` runs a way, which loads its kernels, ahead of the
/// capture.
template <class Key, class Plan, class TryOut, class Run>
void time_plans(TunedPlans<Key, Plan>& plans, const Key& key, const std::vector<Plan>& ways,
                int calls, Deadline deadline, const Context& context, const TryOut& try_out,
                const Run& run) {
  double best = std::numeric_limits<double>::infinity();
  plans.restart(key);
  for (const Plan& way : ways) {
    if (!try_out(way)) continue;
    const double ms = time_calls(context, calls, 2 * best, [&](int i) { run(i, way); });
    plans.add(key, way, ms);
    best = std::min(best, ms);
    if (is_over(deadline)) return;
  }
}

}  // namespace detail
}  // namespace nanovllm::cuda
