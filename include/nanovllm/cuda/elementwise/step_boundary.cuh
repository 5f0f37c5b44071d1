#pragma once
/// Where a step begins and ends on CUDA.
///
/// `unpack_step`: the arrays of a step's packed inputs to where kernels and graphs read them.
/// Contract: ops/unpack_step.hpp. Grid: (pieces, arrays). A column is copied by words of 4 bytes, a
/// table by rows; blocks whose array has less to do than the largest one end at once. Bytes: those
/// of the packed inputs, some kilobytes; the time is that of a launch. Samples of the step before
/// are not checked.
///
/// `publish_results`: drawn tokens and log-probabilities to page-locked memory of the host.
/// Contract: ops/publish_results.hpp. Some hundred bytes a step over PCIe; the time is that of a
/// kernel's start.
/// Measured: boundary_bench, cuda_boundary.json, needed: 3.0 us from step to step with both in the
/// graph, 1.6 between graphs without them; with a copy instead of `publish_results` 11.5 us, with
/// it 4.2 (1 row).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/publish_results.hpp"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm::cuda {

inline constexpr int kUnpackThreads = 128;

__device__ inline void unpack_column(const UnpackedArray& array) {
  const auto* const from = static_cast<const std::uint32_t*>(array.from);
  auto* const to = static_cast<std::uint32_t*>(array.to);
  const std::int64_t words = array.element_words;
  const std::int64_t step = std::int64_t{gridDim.x} * kUnpackThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUnpackThreads + threadIdx.x;
       i < array.to_size * words; i += step) {
    to[i] = i < array.from_size * words ? from[i] : array.padding[i % words];
  }
}

__device__ inline void unpack_tokens(const UnpackedArray& array, const TokenId* previous) {
  const auto* const from = static_cast<const TokenSource*>(array.from);
  auto* const to = static_cast<TokenId*>(array.to);
  const std::int64_t step = std::int64_t{gridDim.x} * kUnpackThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUnpackThreads + threadIdx.x; i < array.to_size;
       i += step) {
    if (i >= array.from_size) {
      to[i] = static_cast<TokenId>(array.padding[0]);
      continue;
    }
    const TokenSource source = from[i];
    to[i] = source.is_known() ? source.token() : previous[source.sample()];
  }
}

__device__ inline void unpack_table(const UnpackedArray& array) {
  const auto* const from = static_cast<const std::uint32_t*>(array.from);
  auto* const to = static_cast<std::uint32_t*>(array.to);
  for (std::int64_t row = blockIdx.x; row < array.from_size; row += gridDim.x) {
    const std::int32_t begin = array.starts[row], end = array.starts[row + 1];
    for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end;
         i += kUnpackThreads) {
      to[row * array.row_stride + (i - begin)] = from[i];
    }
  }
}

__global__ static void __launch_bounds__(kUnpackThreads)
    unpack_step_kernel(const __grid_constant__ UnpackStepArgs args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const UnpackedArray& array = args.arrays[blockIdx.y];
  switch (array.kind) {
    case UnpackedArray::Kind::column: return unpack_column(array);
    case UnpackedArray::Kind::tokens: return unpack_tokens(array, args.previous.data);
    case UnpackedArray::Kind::table: return unpack_table(array);
  }
}

/// The grid that `args` take; none of 0 blocks, so that graphs can hold it.
[[nodiscard]] inline dim3 unpack_grid(const UnpackStepArgs& args) {
  std::int64_t pieces = 1;
  for (int i = 0; i < args.num_arrays; ++i) {
    const UnpackedArray& array = args.arrays[i];
    pieces = std::max(pieces, array.kind == UnpackedArray::Kind::table
                                  ? array.from_size
                                  : ceil_div(array.to_size * array.element_words, kUnpackThreads));
  }
  return {static_cast<unsigned>(std::min<std::int64_t>(pieces, 1024)),
          static_cast<unsigned>(std::max(args.num_arrays, 1))};
}

/// See `UnpackStepArgs`. Asynchronous.
inline void unpack_step(const UnpackStepArgs& args, const Context& context) {
  launch(unpack_step_kernel, {.grid = unpack_grid(args), .block = kUnpackThreads}, context, args);
}

template <class State>
void run_op(const UnpackStepArgs& args, State& state) {
  unpack_step(args, state.context);
}

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
