#pragma once
/// `silu_mul` on CUDA: out[i, j] = round(silu(gate_up[i, j])) · gate_up[i, width + j] with
/// silu(x) = x / (1 + e^-x). Contract: ops/gated_linear.hpp.
///
/// gate_up [n, 2 · width] and out [n, width] of any stride; 16 bytes at a time where addresses,
/// strides and the width are multiples of that. Arithmetic in float32; what the fast silu of 16-bit
/// elements (tile/silu.cuh) is off by is far below the rounding that follows.
/// Bytes moved: 3 · n · width · sizeof(T).
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
/// Measured: elementwise_bench, cuda_elementwise.json, needed: 98% (0.6B) and 103% (8B) of the rate
/// of a copy, 8,192 rows.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/gated_linear.hpp"

namespace nanovllm::cuda {

/// round(silu(gate)) · up, element by element.
template <class T>
__device__ __forceinline__ uint4 silu_mul_vector(uint4 gate, uint4 up) {
  float g[kVecSize<T>], u[kVecSize<T>];
  unpack<T>(gate, g);
  unpack<T>(up, u);
#pragma unroll
  for (float& x : g) x = silu<T>(x);
  round_floats<T>(g);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i) g[i] *= u[i];
  return pack<T>(g);
}

/// A thread for each vector of the output.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    silu_mul_kernel(SiluMulArgs<T> args, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  const T* const from = args.gate_up.at(row, column);
  const uint4 gate = load_first<kWhole>(from, count);
  const uint4 up = load_first<kWhole>(from + vectors.width, count);
  store_first<kWhole>(args.out.at(row, column), count, silu_mul_vector<T>(gate, up));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void silu_mul(const SiluMulArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const auto vectors = RowVectors::of<T>("silu_mul", args.out.extent(0), args.out.extent(1));
  // A whole row of `out` makes the two of `gate_up` whole.
  const bool whole = has_whole_rows(args.gate_up) && has_whole_rows(args.out);
  launch(whole ? silu_mul_kernel<T, true> : silu_mul_kernel<T, false>, elementwise_grid(vectors),
         context, args, vectors);
}

template <Element T, class State>
void run_op(const SiluMulArgs<T>& args, State& state) {
  silu_mul(args, state.context);
}

}  // namespace nanovllm::cuda
