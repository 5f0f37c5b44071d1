#pragma once
/// Logits and the plain draw from them in one kernel, by wgmma and TMA (sm_90a): logits[r, t] =
/// Σ_k x[r, k] · W[t, k] stay in registers, and a token for every row comes out (ops/sampler.hpp,
/// plain rows). The same products as a kernel that stores float32 logits: the same bits.
///
/// x [M, K] and W [vocab, K] bf16 with 16-byte aligned rows, K a multiple of 8, M up to kColumns.
///
/// A block goes through tiles of kTokens rows of W. A thread of its first warpgroup copies panels of
/// 64 columns of W and x into a ring. Two warpgroups multiply: rows of W are wgmma's 64 rows (operand
/// A), rows of x its columns. So a thread has two tokens, 8 apart, for each of a quarter of the
/// rows. Meanwhile the other three warps of the first warpgroup draw the noise of the tile, a byte
/// for two tokens (race.cuh). What can win is put into a queue of the warp, and entered in its row
/// by all lanes.
///
/// At its end a block leaves the best of each row, unless an earlier block's arrives well before it,
/// and the last block to be done finds the winners.
///
/// Sums are in float32, one chain along K, whatever the number of rows.
///
/// Moved: W once from memory, x once for each tile from L2, 16 bytes for each row and some blocks.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear_sample/draw.cuh"
#include "nanovllm/cuda/linear_sample/traits.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The thread that copies.
template <class Traits>
__device__ __forceinline__ void linear_sample_copy(std::byte* ring,
                                                   LinearSampleBarriers<Traits>& barriers,
                                                   const CUtensorMap& w_map,
                                                   const CUtensorMap& x_map,
                                                   const LinearSampleParams& p) {
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const auto load_weights = [&](int tile, int panel, int stage) {
    tma_load(ring + stage * Traits::kStageBytes + Traits::kXBytes, w_map,
             {panel * kTmaColumns, tile * Traits::kTokens}, barriers.full[stage]);
  };
  const auto load_x = [&](int panel, int stage) {
    tma_load(ring + stage * Traits::kStageBytes, x_map, {panel * kTmaColumns, 0},
             barriers.full[stage]);
  };
  const int tiles = (p.tiles - first + step - 1) / step;  // of this block
  const int panels = tiles * p.panels, ahead = min(panels, Traits::kStages);
  int tile = first, panel = 0;
  const auto advance = [&] {
    if (++panel == p.panels) panel = 0, tile += step;
  };
  for (int i = 0; i < ahead; ++i, advance()) {
    mbarrier_arrive_expect(barriers.full[i], Traits::kStageBytes);
    load_weights(tile, panel, i);
  }
  tma_prefetch_map(x_map);
  grid_dependency_wait();
  grid_dependency_launch();
  async_proxy_fence_global();
  for (int i = 0, at = 0; i < ahead; ++i) {
    load_x(at, i);
    if (++at == p.panels) at = 0;
  }
  RingPosition<Traits::kStages> at;
  for (int i = ahead; i < panels; ++i, advance()) {
    mbarrier_wait(barriers.empty[at.stage], at.parity);
    mbarrier_arrive_expect(barriers.full[at.stage], Traits::kStageBytes);
    load_x(panel, at.stage);
    load_weights(tile, panel, at.stage);
    at.advance();
  }
}

/// The products of a warpgroup with one tile.
template <class Traits>
__device__ __forceinline__ void linear_sample_multiply(float (&sum)[Traits::kSums],
                                                       const std::byte* ring,
                                                       LinearSampleBarriers<Traits>& barriers,
                                                       RingPosition<Traits::kStages>& at,
                                                       int warpgroup, int panels) {
  const auto multiply = [&]<bool kFirst>() {
    mbarrier_wait(barriers.full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage, 0);
    const WgmmaOperand w =
        wgmma_operand(stage + Traits::kXBytes + warpgroup * 64 * Traits::kRowBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // of 16 columns
      if (kFirst && step == 0) {
        wgmma<bf16, false>(sum, w.plus(32 * step), x.plus(32 * step));
      } else {
        wgmma<bf16, true>(sum, w.plus(32 * step), x.plus(32 * step));
      }
    }
    wgmma_commit();
  };
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty[stage]);
  };
  multiply.template operator()<true>();
  int before = at.stage;
  at.advance();
#pragma unroll 1
  for (int i = 1; i < panels; ++i) {
    multiply.template operator()<false>();
    wgmma_wait<1>();
    release(before);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
  wgmma_hold(sum);
  release(before);
}

/// Stores a tile's logits.
template <class Traits>
__device__ __forceinline__ void linear_sample_store(const float (&sum)[Traits::kSums],
                                                    int first_token, const LinearSampleParams& p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int token = first_token + lane / 4;
  float* const to = p.logits + lane % 4 * 2 * p.logits_stride + token;
#pragma unroll
  for (int i = 0; i < Traits::kSums; ++i) {
    const int row = i / 4 * 8 + i % 2, half = i / 2 % 2;
    if (row + lane % 4 * 2 < p.rows && token + 8 * half < p.vocab)
      to[row * p.logits_stride + 8 * half] = sum[i];
  }
}

/// The warps that multiply.
template <class Traits>
__device__ __forceinline__ void linear_sample_consume(const std::byte* ring,
                                                      LinearSampleShared<Traits>* shared,
                                                      LinearSampleBarriers<Traits>& barriers,
                                                      const LinearSampleParams& p) {
  const int thread = static_cast<int>(threadIdx.x) - 128, warpgroup = thread / 128;
  grid_dependency_wait();
  if constexpr (!Traits::kStores) {
    linear_sample_prepare(*shared, p, thread);
    mbarrier_arrive(barriers.prepared);
  }
  RingPosition<Traits::kStages> at;
  std::uint32_t parity = 0;
  const int first = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (int tile = first; tile < p.tiles; tile += static_cast<int>(gridDim.x)) {
    float sum[Traits::kSums];
    linear_sample_multiply<Traits>(sum, ring, barriers, at, warpgroup, p.panels);
    const int first_token = tile * Traits::kTokens;
    if constexpr (Traits::kStores) {
      linear_sample_store<Traits>(sum, first_token + thread / 32 * 16, p);
    } else {
      LinearSampleRace<Traits> race(*shared, p);
      mbarrier_wait(barriers.noise_full, parity);
      parity ^= 1;
      if (tile == first) race.begin(sum, first_token);
      race.offer(sum, first_token);
      mbarrier_arrive(barriers.noise_empty);
    }
  }
  if constexpr (!Traits::kStores) linear_sample_finish(*shared, p);
}

/// The body of `linear_sample_kernel`.
template <class Traits>
__device__ __forceinline__ void linear_sample_block(const CUtensorMap& w_map,
                                                    const CUtensorMap& x_map,
                                                    const LinearSampleParams& p) {
  extern __shared__ std::byte linear_sample_memory[];
  __shared__ LinearSampleBarriers<Traits> barriers;
  const std::uint32_t begin = shared_address(linear_sample_memory);
  std::byte* const ring = linear_sample_memory + (align_up(begin, Traits::kAlignment) - begin);
  auto* const shared =
      reinterpret_cast<LinearSampleShared<Traits>*>(ring + Traits::kStages * Traits::kStageBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(barriers.full[i], 1);
      mbarrier_init(barriers.empty[i], Traits::kConsumers / 32);
    }
    mbarrier_init(barriers.prepared, Traits::kConsumers);
    mbarrier_init(barriers.noise_full, Traits::kNoiseThreads);
    mbarrier_init(barriers.noise_empty, Traits::kConsumers);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    if (threadIdx.x == 0) linear_sample_copy(ring, barriers, w_map, x_map, p);
    if constexpr (!Traits::kStores) {
      if (threadIdx.x >= 32) {
        grid_dependency_wait();
        mbarrier_wait(barriers.prepared, 0);
        linear_sample_noise(*shared, barriers, p);
      }
    }
  } else {
    linear_sample_consume(ring, shared, barriers, p);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// A persistent block for each multiprocessor.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    linear_sample_kernel(const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ CUtensorMap x_map, const LinearSampleParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  linear_sample_block<Traits>(w_map, x_map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
