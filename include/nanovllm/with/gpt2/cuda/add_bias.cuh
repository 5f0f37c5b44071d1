#pragma once
/// `add_bias` on CUDA: x[i, :] += bias, in place. Contract: with/gpt2/add_bias.hpp.
///
/// x [n, width] of any stride, bias [width]; 16 bytes at a time where addresses and strides are
/// multiples of that. The sum is float32's, rounded once; the bias is read through the non-coherent
/// cache.
/// Bytes moved: (2 · n + 1) · width · sizeof(T).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/gpt2/add_bias.hpp"

namespace nanovllm::cuda {

/// A thread for each vector of x.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_bias_kernel(AddBiasArgs<T> args, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  T* const at = args.x.at(row, column);
  float x[kVecSize<T>], bias[kVecSize<T>];
  unpack<T>(load_first<kWhole>(at, count), x);
  unpack<T>(load_first<kWhole, Load::constant>(args.bias.data + column, count), bias);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i) x[i] = __fadd_rn(x[i], bias[i]);
  store_first<kWhole>(at, count, pack<T>(x));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void add_bias(const AddBiasArgs<T>& args, const Context& context) {
  validate(args);
  if (args.x.empty()) return;
  const auto vectors = RowVectors::of<T>("add_bias", args.x.extent(0), args.x.extent(1));
  const bool whole = has_whole_rows(args.x) && has_whole_rows(args.bias);
  launch(whole ? add_bias_kernel<T, true> : add_bias_kernel<T, false>, elementwise_grid(vectors),
         context, args, vectors);
}

template <Element T, class State>
void run_op(const AddBiasArgs<T>& args, State& state) {
  add_bias(args, state.context);
}

}  // namespace nanovllm::cuda
