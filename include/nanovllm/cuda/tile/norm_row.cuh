#pragma once
/// RMSNorm of rows that are read as vectors of 16 bytes: the arithmetic of `rms_norm` and the order
/// of its sums, for it and for kernels that give its bits (elementwise/rms_norm.cuh has the order in
/// words).

#include <cuda_runtime.h>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// Vectors of a row that a thread holds when there are many rows.
inline constexpr int kNormVectors = 4;

/// Warps that hold a row of `vectors`, `each` a thread.
NANOVLLM_HD constexpr int rms_norm_warps(int vectors, int each) {
  return ceil_div(vectors, 32 * each);
}

namespace detail {

/// One vector of a row, normalised and weighted.
template <class T>
__device__ __forceinline__ uint4 norm_vector(uint4 x, float inverse, uint4 weight) {
  float a[kVecSize<T>], w[kVecSize<T>];
  unpack<T>(x, a);
  unpack<T>(weight, w);
  normalise<T>(a, inverse, w);
  return pack<T>(a);
}

/// Σ x² of one vector.
template <class T>
__device__ __forceinline__ float vector_squares(uint4 x) {
  float a[kVecSize<T>];
  unpack<T>(x, a);
  return sum_of_squares(a);
}

/// Σ of a row's squares where one warp holds the row: lane l has those of vectors 32 · g + l, 0
/// where there is none. `kVectors` is a multiple of kNormVectors, and the least that holds the row.
template <int kVectors>
__device__ __forceinline__ float warp_row_squares(const float (&squares)[kVectors]) {
  static_assert(kVectors % kNormVectors == 0);
  constexpr int kStride = kVectors / kNormVectors;
  float sum = 0.f;
#pragma unroll
  for (int r = 0; r < kStride; ++r) {
    float part = squares[r];
#pragma unroll
    for (int v = 1; v < kNormVectors; ++v) part += squares[v * kStride + r];
    sum += part;
  }
  return warp_sum(sum);
}

}  // namespace detail
}  // namespace nanovllm::cuda
