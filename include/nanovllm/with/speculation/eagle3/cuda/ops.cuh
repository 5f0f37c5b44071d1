#pragma once
/// The op of EAGLE-3 heads on CUDA. Contract: with/speculation/eagle3/ops.hpp.
///
/// `map_tokens`: a thread a token. Tokens are device memory and are not checked.
/// Bytes moved: 12 · n.
/// Measured: not at all: heads were not timed on a GPU.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/with/speculation/eagle3/ops.hpp"

namespace nanovllm::cuda {

inline constexpr int kMapTokensThreads = 128;

/// Grid: the tokens, a thread each.
template <class Args>
__global__ void __launch_bounds__(kMapTokensThreads) map_tokens_kernel(const Args args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapTokensThreads + threadIdx.x;
  if (i < args.tokens.extent(0)) args.tokens.data[i] = args.map.data[args.tokens.data[i]];
}

template <class State>
void run_op(const MapTokensArgs& args, State& state) {
  validate(args);
  const std::int64_t n = args.tokens.extent(0);
  if (n == 0) return;
  launch(
      map_tokens_kernel<MapTokensArgs>,
      {.grid = static_cast<unsigned>(ceil_div(n, kMapTokensThreads)), .block = kMapTokensThreads},
      state.context, args);
}

}  // namespace nanovllm::cuda
