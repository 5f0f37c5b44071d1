#pragma once
/// Reductions over lanes of a warp and threads of a block. The result reaches every thread, and the
/// order of the operations is fixed: equal inputs give equal bits.
///
/// `cub::WarpReduce` and `cub::BlockReduce` give their result to one thread; where all need it (the
/// norm of a row, the maximum of a softmax) these butterflies save the broadcast and its barrier.

#include <cuda_runtime.h>

namespace nanovllm::cuda {

/// Sum as an operation for the reductions below.
struct Sum {
  template <class U>
  __device__ __forceinline__ U operator()(U a, U b) const {
    return a + b;
  }
};

/// Maximum as an operation for the reductions below; of floats, a NaN loses to a number.
struct Max {
  template <class U>
  __device__ __forceinline__ U operator()(U a, U b) const {
    return max(a, b);
  }
};

/// Reduces over groups of `kLanes` neighbouring lanes (a power of two up to 32). All 32 lanes of
/// the warp must call it; each gets its group's result. `op` must be commutative.
template <int kLanes = 32, class U, class Op>
__device__ __forceinline__ U warp_reduce(U value, Op op) {
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

template <int kLanes = 32, class U>
__device__ __forceinline__ U warp_sum(U value) {
  return warp_reduce<kLanes>(value, Sum{});
}

template <int kLanes = 32, class U>
__device__ __forceinline__ U warp_max(U value) {
  return warp_reduce<kLanes>(value, Max{});
}

/// Reduces over the first `num_threads` threads of a one-dimensional block; `num_threads` is the
/// block's size, a multiple of 32. `identity` is what `op` leaves other values unchanged with.
///
/// `scratch` is shared memory for 32 values. There is one barrier, between its writes and its
/// reads; a caller that uses the same scratch again puts a barrier between the two calls.
template <class U, class Op>
__device__ __forceinline__ U block_reduce(U value, Op op, U identity, U* scratch, int num_threads) {
  value = warp_reduce(value, op);
  if (num_threads == 32) return value;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_reduce(lane < num_threads / 32 ? scratch[lane] : identity, op);
}

template <class U>
__device__ __forceinline__ U block_sum(U value, U* scratch, int num_threads) {
  return block_reduce(value, Sum{}, U{0}, scratch, num_threads);
}

}  // namespace nanovllm::cuda
