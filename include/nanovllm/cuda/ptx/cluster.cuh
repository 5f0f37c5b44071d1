#pragma once
/// Blocks of a cluster: their barrier, and reads of each other's shared memory. Compute capability
/// 9.0 and later.
/// Source: PTX ISA 9.0, "barrier.cluster", "mapa".

#include <cuda_runtime.h>

#include <cstdint>

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/// Waits for all threads of the cluster; what they wrote to shared memory is visible.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// Four floats at shared address `address` of block `rank` of the cluster.
__device__ __forceinline__ float4 load_cluster_quad(std::uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n\t.reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n\t}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

/// Where block `rank` of the cluster has what this block has at `mine` in shared memory.
template <class T>
[[nodiscard]] __device__ __forceinline__ const T* cluster_pointer(const T* mine, int rank) {
  const T* out;
  asm("mapa.u64 %0, %1, %2;" : "=l"(out) : "l"(mine), "r"(rank));
  return out;
}

#endif

}  // namespace nanovllm::cuda
