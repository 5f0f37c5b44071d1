#pragma once
/// Logits and the plain draw from them in one kernel, by wgmma and TMA (sm_90a): logits[r, t] =
/// Σ_k x[r, k] · W[t, k] stay in registers, and a token for every row comes out (ops/sampler.hpp,
/// plain rows). The same products as a kernel that stores float32 logits: the same bits.
///
/// x [M, K] and W [vocab, K] bf16 with 16-byte aligned rows, K a multiple of 8, M up to kColumns.
///
/// A block goes through tiles of kTokens rows of W. A thread of its first warpgroup copies panels of
/// 64 columns of W and x into a ring; blocks of a cluster bring each other parts of x. Two
/// warpgroups multiply: rows of W are wgmma's 64 rows (operand A), rows of x its columns. So a
/// thread has two tokens, 8 apart, for each of a quarter of the rows. Meanwhile the other three
/// warps of the first warpgroup draw the noise of the tile, a byte for two tokens (race.cuh). What
/// can win is put into a queue of the warp, and entered in its row by all lanes.
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
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Copies a box to the same place in all blocks of the cluster, whose barriers count it there.
template <int kCluster>
__device__ __forceinline__ void linear_sample_load_shared(void* to, const CUtensorMap& map,
                                                          int column, int row,
                                                          std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)),
      "h"(static_cast<std::uint16_t>((1 << kCluster) - 1))
      : "memory");
}

/// The thread that copies.
template <class Traits>
__device__ __forceinline__ void linear_sample_copy(std::byte* ring,
                                                   LinearSampleBarriers<Traits>& barriers,
                                                   const CUtensorMap& w_map,
                                                   const CUtensorMap& x_map,
                                                   const LinearSampleParams& p) {
  constexpr int kShare = Traits::kColumns / Traits::kCluster;  // rows of x that this block brings
  const LinearSampleTiles<Traits> tiles(p.tiles);
  const int rank = static_cast<int>(blockIdx.x) % Traits::kCluster;
  const auto load_weights = [&](int tile, int panel, int stage) {
    tma_load(ring + stage * Traits::kStageBytes + Traits::kXBytes, w_map,
             {panel * kTmaColumns, tile * Traits::kTokens}, barriers.full[stage]);
  };
  const auto load_x = [&](int panel, int stage) {
    std::byte* const to = ring + stage * Traits::kStageBytes;
    if constexpr (Traits::kCluster == 1) {
      tma_load(to, x_map, {panel * kTmaColumns, 0}, barriers.full[stage]);
    } else {
      linear_sample_load_shared<Traits::kCluster>(to + rank * kShare * Traits::kRowBytes, x_map,
                                                  panel * kTmaColumns, rank * kShare,
                                                  barriers.full[stage]);
    }
  };
  const int panels = tiles.rounds * p.panels, ahead = min(panels, Traits::kStages);
  int tile = tiles.first, panel = 0;
  const auto advance = [&] {
    if (++panel == p.panels) panel = 0, tile += tiles.step;
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

/// Frees a stage of the ring, in all blocks that write to it.
template <class Traits>
__device__ __forceinline__ void linear_sample_release(LinearSampleBarriers<Traits>& barriers,
                                                      int stage) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (Traits::kCluster == 1) {
    if (lane == 0) mbarrier_arrive(barriers.empty[stage]);
  } else {
    if (lane < Traits::kCluster)
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                       cluster_address(shared_address(&barriers.empty[stage]), lane))
                   : "memory");
  }
}

/// The products of a warpgroup with one tile.
template <class Traits>
__device__ __forceinline__ void linear_sample_multiply(
    float (&sum)[Traits::kSubtiles][Traits::kSums], const std::byte* ring,
    LinearSampleBarriers<Traits>& barriers, RingPosition<Traits::kStages>& at, int warpgroup,
    int panels) {
  const auto multiply = [&]<bool kFirst>() {
    mbarrier_wait(barriers.full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage, 0);
    const WgmmaOperand w = wgmma_operand(
        stage + Traits::kXBytes + warpgroup * Traits::kSubtiles * 64 * Traits::kRowBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // of 16 columns
#pragma unroll
      for (int s = 0; s < Traits::kSubtiles; ++s) {
        const WgmmaOperand rows = w.plus(s * 64 * Traits::kRowBytes + 32 * step);
        if (kFirst && step == 0) {
          wgmma<bf16, false>(sum[s], rows, x.plus(32 * step));
        } else {
          wgmma<bf16, true>(sum[s], rows, x.plus(32 * step));
        }
      }
    }
    wgmma_commit();
  };
  multiply.template operator()<true>();
  int before = at.stage;
  at.advance();
#pragma unroll 1
  for (int i = 1; i < panels; ++i) {
    multiply.template operator()<false>();
    wgmma_wait<1>();
    linear_sample_release(barriers, before);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int s = 0; s < Traits::kSubtiles; ++s) wgmma_hold(sum[s]);
  linear_sample_release(barriers, before);
}

/// Stores a tile's logits.
template <class Traits>
__device__ __forceinline__ void linear_sample_store(
    const float (&sum)[Traits::kSubtiles][Traits::kSums], int first_token,
    const LinearSampleParams& p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int s = 0; s < Traits::kSubtiles; ++s) {
    const int token = first_token + s * 64 + lane / 4;
    float* const to = p.logits + lane % 4 * 2 * p.logits_stride + token;
#pragma unroll
    for (int i = 0; i < Traits::kSums; ++i) {
      const int row = i / 4 * 8 + i % 2, half = i / 2 % 2;
      if (row + lane % 4 * 2 < p.rows && token + 8 * half < p.vocab)
        to[row * p.logits_stride + 8 * half] = sum[s][i];
    }
  }
}

/// The warps that multiply.
template <class Traits>
__device__ __forceinline__ void linear_sample_consume(const std::byte* ring,
                                                      LinearSampleShared<Traits>* shared,
                                                      LinearSampleBarriers<Traits>& barriers,
                                                      const LinearSampleParams& p) {
  const LinearSampleTiles<Traits> tiles(p.tiles);
  const int thread = static_cast<int>(threadIdx.x) - 128, warpgroup = thread / 128;
  grid_dependency_wait();
  if constexpr (!Traits::kStores) {
    linear_sample_prepare(*shared, p, thread);
    named_barrier_sync<Traits::kConsumers + Traits::kNoiseThreads>(1);
  }
  RingPosition<Traits::kStages> at;
  std::uint32_t parity = 0;
  int tile = tiles.first;
#pragma unroll 1
  for (int round = 0; round < tiles.rounds; ++round, tile += tiles.step) {
    float sum[Traits::kSubtiles][Traits::kSums];
    linear_sample_multiply<Traits>(sum, ring, barriers, at, warpgroup, p.panels);
    if (tile >= p.tiles) break;  // the last, of another block of the cluster
    const int first_token = tile * Traits::kTokens;
    if constexpr (Traits::kStores) {
      linear_sample_store<Traits>(
          sum, first_token + warpgroup * Traits::kSubtiles * 64 + thread / 32 % 4 * 16, p);
    } else {
      LinearSampleRace<Traits> race(*shared, p);
      mbarrier_wait(barriers.noise_full, parity);
      parity ^= 1;
      if (round == 0) race.begin(sum, first_token);
      race.offer(sum, first_token);
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(barriers.noise_empty);
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
      mbarrier_init(barriers.empty[i], Traits::kCluster * Traits::kConsumers / 32);
    }
    mbarrier_init(barriers.noise_full, Traits::kNoiseThreads / 32);
    mbarrier_init(barriers.noise_empty, Traits::kConsumers / 32);
    mbarrier_init_fence();
  }
  if constexpr (Traits::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < 128) {
    if constexpr (Traits::kMovesRegisters) release_registers<56>();
    if (threadIdx.x == 0) linear_sample_copy(ring, barriers, w_map, x_map, p);
    if constexpr (!Traits::kStores) {
      if (threadIdx.x >= 32) {
        grid_dependency_wait();
        named_barrier_sync<Traits::kConsumers + Traits::kNoiseThreads>(1);
        linear_sample_noise(*shared, barriers, p);
      }
    }
    __syncwarp();
  } else {
    if constexpr (Traits::kMovesRegisters) take_registers<224>();
    linear_sample_consume(ring, shared, barriers, p);
    __syncwarp();
  }
  // None ends while another may write to its memory.
  if constexpr (Traits::kCluster > 1) cluster_sync();
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
