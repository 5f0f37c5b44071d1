#pragma once
/// What blocks of a cluster bring to each other: boxes copied into several of them at once, arrivals
/// at each other's barriers, and registers pushed into each other's shared memory. sm_90a.
///
/// Shared memory of another block may be touched once that block has started and, where barriers
/// are concerned, has prepared them: after a `cluster_sync` behind `mbarrier_init_fence`.
/// Source: PTX ISA 9.0, "cp.async.bulk.tensor", "mbarrier.arrive", "st.async", "mapa".

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

#include "nanovllm/cuda/ptx/mma.cuh"

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// As `tma_load`, into all blocks of the cluster whose bits are set in `blocks`: to the same place
/// in shared memory, counted by the barrier at the same place.
template <int kRank>
__device__ __forceinline__ void tma_load_multicast(void* to, const CUtensorMap& map,
                                                   const std::int32_t (&coordinates)[kRank],
                                                   std::uint64_t& barrier, std::uint16_t blocks) {
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, to, &map,
                                    coordinates, &barrier, blocks);
}

/// One arrival at what is `barrier` here in block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(std::uint64_t& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n\t.reg .b32 remote;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}" ::"r"(
          shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

/// Sends four floats to what is the 16-byte aligned `to` here in block `rank`, whose `barrier`
/// counts the 16 bytes.
__device__ __forceinline__ void push_quad(float* to, const float (&v)[4], std::uint64_t& barrier,
                                          std::uint32_t rank) {
  asm volatile(
      "{\n\t.reg .b32 remote, counter;\n\t"
      "mapa.shared::cluster.u32 remote, %0, %2;\n\t"
      "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [remote], {%3, %4, %5, %6}, "
      "[counter];\n\t}" ::"r"(shared_address(to)),
      "r"(shared_address(&barrier)), "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
      : "memory");
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda
