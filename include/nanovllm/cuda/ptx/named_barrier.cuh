#pragma once
/// The 16 hardware barriers of a block, for some of its warps at a time. Barrier 0 is the one of
/// `__syncthreads`.
/// Source: PTX ISA 9.0, "barrier".

namespace nanovllm::cuda {

/// Waits until `kThreads` threads, whole warps, have come to barrier `id`, waiting or arriving.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// Counts towards the `kThreads` without waiting.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace nanovllm::cuda
