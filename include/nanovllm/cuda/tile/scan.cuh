#pragma once
/// Prefix sums over lanes of a warp and threads of a block.
///
/// `cub::BlockScan` is not used because its headers take two seconds of every compilation.

#include <cuda_runtime.h>

namespace nanovllm::cuda {

/// Sum over the lanes up to this one. All 32 lanes of the warp must call it.
__device__ __forceinline__ int warp_inclusive_sum(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

/// What the threads before one have together, and what all threads have.
struct BlockSums {
  int before;
  int total;
};

/// Sums over a one-dimensional block of `kThreads` threads, a multiple of 32; all must call it.
///
/// `warp_sums` is shared memory. There is one barrier, between its writes and its reads; a caller
/// that uses it again puts a barrier between the two calls.
template <int kThreads>
__device__ __forceinline__ BlockSums block_exclusive_sum(int value,
                                                         int (&warp_sums)[kThreads / 32]) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int in_warp = warp_inclusive_sum(value);
  if (lane == 31) warp_sums[warp] = in_warp;
  __syncthreads();
  const int of_warps = warp_inclusive_sum(lane < kThreads / 32 ? warp_sums[lane] : 0);
  const int of_warps_before = __shfl_sync(~0u, of_warps, warp > 0 ? warp - 1 : 0);
  return {.before = (warp > 0 ? of_warps_before : 0) + in_warp - value,
          .total = __shfl_sync(~0u, of_warps, 31)};
}

}  // namespace nanovllm::cuda
