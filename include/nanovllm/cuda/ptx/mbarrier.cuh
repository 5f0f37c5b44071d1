#pragma once
/// Barriers in shared memory that count arrivals and bytes (mbarrier), and the ring of stages that
/// a producer and its consumers keep with them, compute capability 9.0; and the 16 hardware
/// barriers of a block.
///
/// A barrier completes a phase once its count of arrivals is in and no byte is outstanding; phases
/// alternate between parity 0 and 1. Waiting for parity p returns once the phase of parity p is
/// complete; a new barrier counts as having completed parity 1, so that a producer's first wait for
/// an empty stage returns at once.
/// Source: PTX ISA 9.0, "mbarrier" and "barrier".

#include <cstdint>
#include <cuda/ptx>

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Prepares a barrier for `count` arrivals a phase. By one thread; then `mbarrier_init_fence` and a
/// barrier of the block.
__device__ __forceinline__ void mbarrier_init(std::uint64_t& barrier, std::uint32_t count) {
  ::cuda::ptx::mbarrier_init(&barrier, count);
}

/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void mbarrier_init_fence() {
  ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
}

/// One arrival. What this thread did before is visible to those that wait.
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t& barrier) {
  ::cuda::ptx::mbarrier_arrive(&barrier);
}

/// One arrival that announces `bytes` of copies onto this barrier.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t& barrier,
                                                       std::uint32_t bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                         ::cuda::ptx::space_shared, &barrier, bytes);
}

/// Waits for the phase of parity `parity`.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t& barrier, std::uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
  }
}

/// The same where other blocks of the cluster wrote what the barrier counts.
__device__ __forceinline__ void mbarrier_wait_cluster(std::uint64_t& barrier,
                                                      std::uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(::cuda::ptx::sem_acquire,
                                                ::cuda::ptx::scope_cluster, &barrier, parity)) {
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Position in a ring of `kStages` buffers: consumers wait for `parity`, the producer, before it
/// fills a stage again, for the other one.
template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Waits until `kThreads` threads, whole warps, have come to hardware barrier `id`, waiting or
/// arriving. Barrier 0 is the one of `__syncthreads`.
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
