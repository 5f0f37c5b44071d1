#pragma once
/// A dense layer on some tens of rows of x with what stands around it, by wgmma and TMA (sm_90a).
///
///   y[m, n] = s[m] · Σ_k round(x[m, k] · norm[k]) · W[n, k]   (+ y[m, n], with `accumulate`)
///   s[m] = rsqrt(mean_k x[m, k]² + eps)                       (with a norm; else s = norm = 1)
/// and, gated, with W [2 · width, K] of gate rows and then up rows, out = silu(g) · u of such sums,
/// with a norm or without.
///
/// x [M ≤ 64, K], 16-byte aligned rows;  W [N, K] dense, 16-byte aligned, K a multiple of 8;
/// y [M, N] (or [M, width]), any alignment; bf16, or without a norm half.
///
/// Gated without a norm x and W may also be of a type of one byte that has scales (`MidMScales`).
///
/// The rows of x are the 64 rows of a wgmma (operand A), rows of W its columns (operand B). A block
/// owns a tile of rows of W, gated as many gate rows as up rows, so that both sums of an output
/// are in one thread. A cluster shares the tile and splits K; at the end each block finishes a
/// share of the columns: the others send it their sums (st.async), and it adds all up in the order
/// of K. A cluster may be one block.
///
/// Panels of 128 bytes of both operands' rows pass through rings in shared memory, one or two
/// panels a stage: with tiles of few rows, one copy for two panels reads W faster. One warp fills
/// the ring of W, before the kernel ahead has ended, one that of x, a warpgroup multiplies, and
/// with a norm another one, between x's arrival and the products, sums up the squares of a panel
/// and multiplies it by the norm's weights in place. No ring is larger than what lets two blocks
/// stand on a multiprocessor: the next kernel's weights arrive while this one works.
///
/// Sums are in float32, and their order depends on K and on the size of the cluster alone.
///
/// Bytes moved: W once; x once for each tile of rows of W (from L2); y once.
/// Measured: mid_m_bench, cuda_mid_m.json, a layer without attention of 64 rows 25.4 to 21.2 us
/// (0.6B) and 115.9 to 107.7 (8B).

#include <cuda.h>

#include <cstddef>

#include "nanovllm/cuda/hopper/linear/mid_m/block.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/part.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The body of `mid_m_kernel`.
template <class Block, class T, class Out>
__device__ __forceinline__ void mid_m_block(const CUtensorMap& w_map, const CUtensorMap& x_map,
                                            const MidMOperands<T, Out>& p) {
  extern __shared__ std::byte mid_m_shared[];
  using Part = MidMPart<Block, T, Out>;
  const Part part(p, mid_m_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int norm_thread = static_cast<int>(threadIdx.x) - 32 * Block::kNormWarp;
  const bool leads = threadIdx.x % 32 == 0;
  launch_next_early(p.start);
  if (warp == Block::kWeightWarp && leads) {
    part.init_barriers();
    part.start_weights(w_map);
  }
  if (Block::kNorm && warp >= Block::kNormWarp) part.start_norm(norm_thread);
  __syncwarp();
  if constexpr (Block::kSplit > 1)
    cluster_sync();
  else
    __syncthreads();

  if (warp == Block::kWeightWarp) {
    if (leads) part.load_weights(w_map);
  } else if (warp == Block::kXWarp) {
    grid_dependency_wait();
    launch_next_late(p.start);
    if (leads) {
      async_proxy_fence_global();
      part.load_x(x_map);
    }
  } else if (Block::kNorm && warp >= Block::kNormWarp) {
    if constexpr (Block::kNorm) part.apply_norm(norm_thread);
  } else {
    grid_dependency_wait();
    float4 old[Block::kOwned] = {};
    if (!Block::kGated && p.accumulate) part.read_old(old);
    float sum[Part::kSums] = {};
    wgmma_hold(sum);
    if constexpr (MidMScales<T>::kAreThere)
      MidMScales<T>::template multiply<Block>(part, sum);
    else
      part.multiply(sum);
    float4 total[Block::kPushed];
    part.exchange(sum, total);
    part.write(total, old);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: a cluster of kSplit blocks, along x, for each kColumns columns of y. Dynamic shared
/// memory: shared_bytes.
template <class T, class Out, int kRows, int kSplit, int kPanels, bool kNorm, bool kGated>
__global__ void __launch_bounds__(MidMBlock<T, kRows, kSplit, kPanels, kNorm, kGated>::kThreads, 2)
    mid_m_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ MidMOperands<T, Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  mid_m_block<MidMBlock<T, kRows, kSplit, kPanels, kNorm, kGated>, T, Out>(w_map, x_map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
