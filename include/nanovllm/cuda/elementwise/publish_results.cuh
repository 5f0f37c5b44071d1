#pragma once
/// `publish_results` on CUDA: drawn tokens and log-probabilities to page-locked memory of the host.
/// Contract: ops/publish_results.hpp.
///
/// Some hundred bytes a step over PCIe; the time is that of a kernel's start.
/// Measured: boundary_bench, cuda_boundary.json, 11.5 us from step to step with a copy, 4.2 with it
/// (1 row).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/publish_results.hpp"

namespace nanovllm::cuda {

inline constexpr int kPublishThreads = 128;

/// A thread for each row; the threads of the grid share the elements of longer lists.
__global__ static void __launch_bounds__(kPublishThreads)
    publish_results_kernel(const PublishResultsArgs args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const ResultsPlace place = *args.place;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kPublishThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kPublishThreads;
  const auto copy = [&](const auto* from, auto* to, std::int64_t size) {
    if (to == nullptr) return;
    for (std::int64_t i = begin; i < size; i += step) to[i] = from[i];
  };
  const std::int64_t top = args.top_tokens.extent(1);
  copy(args.tokens.data, place.tokens, place.num_rows);
  copy(args.logprobs.data, place.logprobs, place.num_rows);
  copy(args.top_tokens.data, place.top_tokens, place.num_rows * top);
  copy(args.top_logprobs.data, place.top_logprobs, place.num_rows * top);
}

/// See the head of this file. Asynchronous. Throws ShapeError when the operands do not fit
/// together.
inline void publish_results(const PublishResultsArgs& args, const Context& context) {
  validate(args);
  if (args.tokens.empty()) return;
  launch(publish_results_kernel,
         {.grid = static_cast<unsigned>(
              std::min<std::int64_t>(ceil_div(args.tokens.extent(0), kPublishThreads), 64)),
          .block = kPublishThreads},
         context, args);
}

template <class State>
void run_op(const PublishResultsArgs& args, State& state) {
  publish_results(args, state.context);
}

}  // namespace nanovllm::cuda
