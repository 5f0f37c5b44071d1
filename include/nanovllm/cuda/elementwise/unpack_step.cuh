#pragma once
/// `unpack_step` and `resolve_tokens` on CUDA: what makes a step's packed inputs fit a graph.
///
/// One block a row; it copies the row's scalars and its part of the block table. Bytes: those of
/// the packed inputs, some kilobytes; the time is that of a launch.

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/unpack_step.hpp"

namespace nanovllm::cuda {

/// The token itself, or what the sample it stands for drew.
__device__ inline TokenId resolve_token(TokenId token, const TokenId* previous) {
  return token >= 0 ? token : previous[~token];
}

/// Row `i` of the bucket from row `i` of the packed inputs.
__device__ inline void unpack_row(const UnpackStepArgs& args, std::int64_t i) {
  const DecodeStepArrays& out = args.out;
  if (threadIdx.x == 0) {
    out.tokens.data[i] = resolve_token(args.tokens.data[i], args.previous.data);
    out.positions.data[i] = args.positions.data[i];
    out.slots.data[i] = args.slots.data[i];
    out.kv_lens.data[i] = args.kv_lens.data[i];
    out.rows.data[i] = args.rows.data[i];
    out.banned_starts.data[i + 1] = args.banned_starts.data[i + 1];
  }
  for (std::int64_t j = threadIdx.x; j < args.block_tables.extents[1]; j += blockDim.x)
    *out.block_tables.at(i, j) = *args.block_tables.at(i, j);
  const std::int32_t end = args.banned_starts.data[i + 1];
  for (std::int32_t j = args.banned_starts.data[i] + threadIdx.x; j < end; j += blockDim.x)
    out.banned_tokens.data[j] = args.banned_tokens.data[j];
}

/// Row `i` of the bucket where there is no packed row.
__device__ inline void pad_row(const UnpackStepArgs& args, std::int64_t i) {
  if (threadIdx.x != 0) return;
  const DecodeStepArrays& out = args.out;
  out.tokens.data[i] = 0;
  out.positions.data[i] = 0;
  out.slots.data[i] = kNoSlot;
  out.kv_lens.data[i] = 0;
  SamplingRow greedy;
  greedy.temperature = 0.f;
  out.rows.data[i] = greedy;
  out.banned_starts.data[i + 1] = args.banned_starts.data[args.tokens.extents[0]];
}

/// Grid: one block a row of the bucket.
__global__ static void unpack_step_kernel(const UnpackStepArgs args) {
  grid_dependency_wait();
  const std::int64_t i = blockIdx.x;
  if (i == 0 && threadIdx.x == 0) args.out.banned_starts.data[0] = 0;
  if (i < args.tokens.extents[0]) {
    unpack_row(args, i);
  } else {
    pad_row(args, i);
  }
}

/// Grid-stride over tokens.
__global__ static void resolve_tokens_kernel(const ResolveTokensArgs args) {
  grid_dependency_wait();
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < args.tokens.extents[0])
    args.tokens.data[i] = resolve_token(args.tokens.data[i], args.previous.data);
}

/// See `UnpackStepArgs`. Asynchronous.
inline void unpack_step(const UnpackStepArgs& args, const Context& context) {
  validate(args);
  if (args.out.size() == 0) return;
  launch(unpack_step_kernel, {.grid = static_cast<unsigned>(args.out.size()), .block = 64}, context,
         args);
}

template <class State>
void run_op(const UnpackStepArgs& args, State& state) {
  unpack_step(args, state.context);
}

/// See `ResolveTokensArgs`. Asynchronous.
inline void resolve_tokens(const ResolveTokensArgs& args, const Context& context) {
  const std::int64_t n = args.tokens.extent(0);
  if (n == 0) return;
  launch(resolve_tokens_kernel,
         {.grid = static_cast<unsigned>(ceil_div(n, std::int64_t{256})), .block = 256}, context,
         args);
}

template <class State>
void run_op(const ResolveTokensArgs& args, State& state) {
  resolve_tokens(args, state.context);
}

}  // namespace nanovllm::cuda
