#pragma once
/// Blocks of a cluster: their barrier, and reads of and writes to each other's shared memory.
/// Compute capability 9.0 and later, but for `BlockCluster`.
/// Source: PTX ISA 9.0, "barrier.cluster", "mapa", "st.async".

#include <cuda_runtime.h>

#include <cstdint>

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// Waits for all threads of the cluster; what they wrote to shared memory is visible.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// The two halves of `cluster_sync`, for work between them.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The shared address that block `rank` of the cluster has for what this block has at `address`.
[[nodiscard]] __device__ __forceinline__ std::uint32_t cluster_address(std::uint32_t address,
                                                                       int rank) {
  std::uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}

/// Sends four floats, or one, to `address` in a block of the cluster, where the mbarrier at
/// `barrier`, in the same block, counts their bytes. Both are `cluster_address`es.
__device__ __forceinline__ void push_cluster_quad(std::uint32_t address, float4 v,
                                                  std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void push_cluster(std::uint32_t address, float v,
                                             std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
      "f"(v), "r"(barrier)
      : "memory");
}

/// Where block `rank` of the cluster has what this block has at `mine` in shared memory.
template <class T>
[[nodiscard]] __device__ __forceinline__ const T* cluster_pointer(const T* mine, int rank) {
  const T* out;
  asm("mapa.u64 %0, %1, %2;" : "=l"(out) : "l"(mine), "r"(rank));
  return out;
}

#endif

/// This block's cluster, along x; the block alone where there are no clusters, on any device.
struct BlockCluster {
  int rank, size;

  __device__ BlockCluster() : rank(0), size(1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  }
  /// A barrier of all threads of all blocks.
  __device__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      cluster_sync();
      return;
    }
#endif
    __syncthreads();
  }
  /// What block `from` has where this block has `mine`, in shared memory.
  template <class T>
  [[nodiscard]] __device__ const T* at(const T* mine, [[maybe_unused]] int from) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) return cluster_pointer(mine, from);
#endif
    return mine;
  }
};

}  // namespace nanovllm::cuda
