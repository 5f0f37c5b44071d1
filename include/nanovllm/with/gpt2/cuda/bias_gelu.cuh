#pragma once
/// `bias_gelu` on CUDA: out[i, :] = gelu(x[i, :] + bias), gelu by its approximation with tanh.
/// Contract and form of the formula: with/gpt2/bias_gelu.hpp.
///
/// x and out [n, width] of any stride, bias [width]; 16 bytes at a time where addresses and strides
/// are multiples of that. Arithmetic in float32, rounded once. For 16-bit elements the exponential
/// and the quotient are the fast ones, each good to a few units in the last place of float32, far
/// below the rounding that follows; for float32 they are the accurate ones.
/// Bytes moved: (2 · n + 1) · width · sizeof(T).
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/gpt2/bias_gelu.hpp"

namespace nanovllm::cuda {

/// v / (1 + e^(v · (kGeluLinear + kGeluCubic · v²))).
template <class T>
__device__ __forceinline__ float gelu(float v) {
  const float exponent = v * __fmaf_rn(v * v, kGeluCubic, kGeluLinear);
  if constexpr (std::same_as<T, float>) {
    return __fdiv_rn(v, 1.f + expf(exponent));
  } else {
    return __fdividef(v, 1.f + __expf(exponent));
  }
}

/// A thread for each vector of the output.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    bias_gelu_kernel(BiasGeluArgs<T> args, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  float x[kVecSize<T>], bias[kVecSize<T>];
  unpack<T>(load_first<kWhole>(args.x.at(row, column), count), x);
  unpack<T>(load_first<kWhole, Load::constant>(args.bias.data + column, count), bias);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i) x[i] = gelu<T>(__fadd_rn(x[i], bias[i]));
  store_first<kWhole>(args.out.at(row, column), count, pack<T>(x));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void bias_gelu(const BiasGeluArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const auto vectors = RowVectors::of<T>("bias_gelu", args.out.extent(0), args.out.extent(1));
  const bool whole =
      has_whole_rows(args.x) && has_whole_rows(args.bias) && has_whole_rows(args.out);
  launch(whole ? bias_gelu_kernel<T, true> : bias_gelu_kernel<T, false>, elementwise_grid(vectors),
         context, args, vectors);
}

template <Element T, class State>
void run_op(const BiasGeluArgs<T>& args, State& state) {
  bias_gelu(args, state.context);
}

}  // namespace nanovllm::cuda
