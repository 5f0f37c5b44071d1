#pragma once
/// Products of the rows of each expert by its weights where experts have many rows, by wgmma and
/// TMA (sm_90a). The formulas are those of cuda/experts/grouped.cuh; operands are bf16.
///
/// A block owns a tile of up to 128 pairs and 256 rows of an expert's W, gated 128 gate rows and
/// the up rows of the same columns of y. Panels of 64 columns of both pass through a ring in shared
/// memory: one warpgroup gathers rows of x by cp.async and has the copy engine bring W; two others
/// multiply 64 pairs each (operand A) by all rows of W (operand B). Gates and ups of an output are
/// in one thread. Results go through shared memory, so that rows of y are written whole.
///
/// Sums are in float32 and in the order of K. They are not those of cuda/experts/grouped.cuh bit
/// for bit, but depend on nothing else: a pair's result is the same in any tile.
///
/// Bytes moved from L2: W once for each tile of pairs, x once for each 256 rows of W.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/experts/grouped.cuh"
#include "nanovllm/cuda/experts/plan.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

template <bool kIsGated>
struct WideExpertsBlock {
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = 128;
  static constexpr int kRows = 256;                            ///< of W
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kBoxRows = 128;                         ///< of W in a copy
  static constexpr int kGroup = 128;                           ///< threads of a warpgroup
  static constexpr int kThreads = 3 * kGroup;
  static constexpr int kStages = 4;
  static constexpr int kUnderWay = 2;  ///< panels of x that a thread has under way
  static constexpr int kXBytes = kTokens * kTmaRowBytes;
  static constexpr int kBoxBytes = kBoxRows * kTmaRowBytes;
  static constexpr int kWeightBytes = 2 * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;
  static constexpr int kRowsAtOnce = kGroup / 8;  ///< of x; a thread copies a vector of each
  static constexpr int kCopies = kTokens / kRowsAtOnce;
  static constexpr int kPitch = kColumns + 8;  ///< of results in shared memory, in elements
  static constexpr int kResultBytes = kTokens / 2 * kPitch * 2;  ///< of a warpgroup
  static_assert(2 * kResultBytes <= kStages * kStageBytes);
  static_assert(kUnderWay < kStages);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The warpgroup that copies.
template <class Block>
__device__ __forceinline__ void wide_experts_copy(std::byte* ring, std::uint64_t* full,
                                                  std::uint64_t* empty, const CUtensorMap& map,
                                                  const GroupedOperands<bf16>& p,
                                                  const ExpertTile& tile, int first_column,
                                                  int num_panels) {
  const int row = static_cast<int>(threadIdx.x) / 8, vector = static_cast<int>(threadIdx.x) % 8;
  std::uint32_t first[Block::kCopies];  // vectors from the beginning of x
  std::uint32_t wanted = 0;
#pragma unroll
  for (int i = 0; i < Block::kCopies; ++i) {
    const int r = row + Block::kRowsAtOnce * i;
    first[i] = 0;
    if (r >= tile.count) continue;
    wanted |= 1u << i;
    const std::int32_t pair =
        *static_cast<const volatile std::int32_t*>(p.plan.pairs + tile.first + r);
    first[i] = static_cast<std::uint32_t>(pair / p.divisor * p.x_stride / 8 + vector);
  }
  if (p.plan_is_ready) grid_dependency_wait();
  // The swizzle of the copy engine.
  const std::uint32_t to =
      shared_address(ring) +
      static_cast<std::uint32_t>(row * kTmaRowBytes + ((vector ^ row % 8) << 4));
  RingPosition<Block::kStages> at, done;
  for (int i = 0; i < num_panels + Block::kUnderWay; ++i) {
    if (i < num_panels) {
      mbarrier_wait(empty[at.stage], at.parity ^ 1);
      if (threadIdx.x == 0) {
        std::byte* const weights = ring + at.stage * Block::kStageBytes + Block::kXBytes;
        mbarrier_arrive_expect(full[at.stage], Block::kWeightBytes);
        const int column = i * kTmaColumns;
        const int second = Block::kGated ? p.n + first_column : first_column + Block::kBoxRows;
        tma_load(weights, map, {column, first_column, tile.expert}, full[at.stage]);
        tma_load(weights + Block::kBoxBytes, map, {column, second, tile.expert}, full[at.stage]);
      }
      const bool has_columns = i * kTmaColumns + vector * 8 < p.k;
#pragma unroll
      for (int j = 0; j < Block::kCopies; ++j) {
        const bool is_wanted = has_columns && (wanted >> j & 1u) != 0;
        const std::int64_t from = is_wanted ? std::int64_t{first[j]} * 8 + i * kTmaColumns : 0;
        copy_async_16_or_zero(to + static_cast<std::uint32_t>(at.stage * Block::kStageBytes) +
                                  static_cast<std::uint32_t>(j * Block::kRowsAtOnce * kTmaRowBytes),
                              p.x + from, is_wanted);
      }
      at.advance();
    }
    copy_async_commit();
    if (i < Block::kUnderWay) continue;
    copy_async_wait<Block::kUnderWay>();
    async_proxy_fence_shared();
    mbarrier_arrive(full[done.stage]);
    done.advance();
  }
}

/// The products of a warpgroup: `sums` of the first and of the second 128 rows of W.
template <class Block>
__device__ __forceinline__ void wide_experts_multiply(float (&first)[64], float (&second)[64],
                                                      const std::byte* ring, std::uint64_t* full,
                                                      std::uint64_t* empty, int group,
                                                      int num_panels) {
  RingPosition<Block::kStages> at;
  int before = 0;
  wgmma_hold(first);
  wgmma_hold(second);
  for (int i = 0; i < num_panels; ++i) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Block::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage + group * (Block::kXBytes / 2), 0);
    const WgmmaOperand w = wgmma_operand(stage + Block::kXBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // of 16 columns
      wgmma<bf16, true>(first, x.plus(32 * step), w.plus(32 * step));
      wgmma<bf16, true>(second, x.plus(32 * step), w.plus(Block::kBoxBytes + 32 * step));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(empty[before]);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
  wgmma_hold(first);
  wgmma_hold(second);
}

/// Writes a warpgroup's sums to its results in shared memory, rounded.
template <class Block>
__device__ __forceinline__ void wide_experts_store(const float (&first)[64],
                                                   const float (&second)[64], bf16* results) {
  const int warp = static_cast<int>(threadIdx.x) % Block::kGroup / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bf16* const row = results + (16 * warp + g + 8 * half) * Block::kPitch + 2 * t;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = 4 * i + 2 * half;
      if constexpr (Block::kGated) {
        *reinterpret_cast<std::uint32_t*>(row + 8 * i) = pack_pair<bf16>(
            silu<bf16>(first[at]) * second[at], silu<bf16>(first[at + 1]) * second[at + 1]);
      } else {
        *reinterpret_cast<std::uint32_t*>(row + 8 * i) = pack_pair<bf16>(first[at], first[at + 1]);
        *reinterpret_cast<std::uint32_t*>(row + 128 + 8 * i) =
            pack_pair<bf16>(second[at], second[at + 1]);
      }
    }
  }
}

/// The body of `wide_experts_kernel`.
template <class Block>
__device__ __forceinline__ void wide_experts_block(const CUtensorMap& map,
                                                   const GroupedOperands<bf16>& p) {
  extern __shared__ std::byte wide_experts_shared[];
  __shared__ std::uint64_t full[Block::kStages], empty[Block::kStages];
  if (!p.plan_is_ready) grid_dependency_wait();
  grid_dependency_launch();
  const int index = static_cast<int>(blockIdx.x) / p.row_blocks;
  if (index >= *static_cast<const volatile std::int32_t*>(p.plan.num_tiles)) {
    if (p.plan_is_ready) grid_dependency_wait();
    return;
  }
  const volatile ExpertTile* const entry = p.plan.tiles + index;
  const ExpertTile tile{entry->expert, entry->first, entry->count};
  const int first_column = static_cast<int>(blockIdx.x) % p.row_blocks * Block::kColumns;
  const int num_panels = (p.k + kTmaColumns - 1) / kTmaColumns;
  const std::uint32_t begin = shared_address(wide_experts_shared);
  std::byte* const ring = wide_experts_shared + (align_up(begin, Block::kAlignment) - begin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Block::kStages; ++i) {
      mbarrier_init(full[i], Block::kGroup + 1);  // each thread's rows of x, and W
      mbarrier_init(empty[i], 2 * Block::kGroup / 32);
    }
    mbarrier_init_fence();
    tma_prefetch_map(map);
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / Block::kGroup - 1;
  if (group < 0) {
    release_registers<56>();
    wide_experts_copy<Block>(ring, full, empty, map, p, tile, first_column, num_panels);
    return;
  }
  take_registers<224>();
  if (p.plan_is_ready) grid_dependency_wait();
  float first[64] = {}, second[64] = {};
  wide_experts_multiply<Block>(first, second, ring, full, empty, group, num_panels);
  named_barrier_sync<2 * Block::kGroup>(1);  // nobody reads the ring any more
  auto* const results = reinterpret_cast<bf16*>(ring + group * Block::kResultBytes);
  wide_experts_store<Block>(first, second, results);
  named_barrier_sync<Block::kGroup>(2 + group);
  constexpr int kVectors = Block::kColumns / 8;  // of a row
  const int first_row = group * Block::kTokens / 2;
  const int num_rows = min(max(tile.count - first_row, 0), Block::kTokens / 2);
  for (int i = static_cast<int>(threadIdx.x) % Block::kGroup; i < num_rows * kVectors;
       i += Block::kGroup) {
    const int row = i / kVectors, column = i % kVectors * 8;
    if (first_column + column >= p.n) continue;
    const std::int32_t pair =
        *static_cast<const volatile std::int32_t*>(p.plan.pairs + tile.first + first_row + row);
    store_vector(p.y + pair * p.y_stride + first_column + column,
                 *reinterpret_cast<const uint4*>(results + row * Block::kPitch + column));
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: for each tile of pairs, blocks of rows of W. Dynamic shared memory: kSharedBytes.
template <bool kGated>
__global__ void __launch_bounds__(WideExpertsBlock<kGated>::kThreads, 1)
    wide_experts_kernel(const __grid_constant__ CUtensorMap map,
                        const __grid_constant__ GroupedOperands<bf16> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_experts_block<WideExpertsBlock<kGated>>(map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
