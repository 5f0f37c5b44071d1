#pragma once
/// Products of the rows of each expert by its weights, for 16-bit elements.
///
///   plain:  y[p, n] = Σ_k x[row(p), k] · W[e, n, k]
///   gated:  y[p, n] = silu(g[p, n]) · u[p, n] with [g | u] the product by W [e, 2 N, K]
/// for pairs p of a token and a slot, e the pair's expert, row(p) = p / divisor. Gates and ups are
/// not rounded. W may also be e4m3, with a scale for each row and 128 columns, which is multiplied
/// to the sum over these columns; x is bf16 then, and not rounded.
///
/// x and W with 16-byte aligned rows, y as well; K a multiple of 8, N of 8.
///
/// A block owns 64 rows of an expert's W, gated 32 gate rows and the up rows of the same columns
/// of y, and a tile of up to `kTokens` pairs; of e4m3, with 16 pairs and more, twice as many rows.
/// Rows of W are the rows of m16n8k16 (operand A), pairs its columns. Steps of 128 bytes of W's
/// rows pass through a ring in shared memory by cp.async, with the same columns of x. A warp takes
/// 16 rows of W and all pairs; in the gated form 8 gate rows and their ups, so that both sums of
/// an output are in one thread.
///
/// Sums are in float32, along K, by one warp and in one order: a pair's result depends neither on
/// the tile nor on what else is in it, bit for bit.
///
/// Bytes moved: W of each expert once for each tile of pairs, those after the first from L2; x once
/// for each 64 rows of W, from L2; y once.
/// Measured: experts_bench, cuda_moe_h200.json, needed: 282 us for a layer's experts of 64 tokens,
/// 4.25 TB/s; in 8 bits 174, 3.55.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Writes the results of a tile's pairs to their rows of y from column `first_column` on, by way of
/// shared memory. Contains barriers.
template <class Block, class T, class W, class PairOf>
__device__ __forceinline__ void store_grouped_results(const GroupedOperands<T, W>& p,
                                                      const GroupedPart<Block, T, W>& part,
                                                      const ExpertTile& tile, int first_column,
                                                      T* results, const PairOf& pair_of) {
  copy_async_wait<0>();
  __syncthreads();  // all have multiplied
  part.store(results);
  __syncthreads();
  constexpr int kVectors = Block::kColumns / 8;  // of a row
  for (int i = static_cast<int>(threadIdx.x); i < tile.count * kVectors; i += Block::kThreads) {
    const int row = i / kVectors, column = i % kVectors * 8;
    if (first_column + column >= p.n) continue;
    const std::int32_t pair = pair_of(tile.first + row);
    store_vector(p.y + pair * p.y_stride + first_column + column,
                 *reinterpret_cast<const uint4*>(results + row * Block::kPitch + column));
  }
}

/// Grid: for each tile of pairs, blocks of rows of W; without a plan each pair is a tile. Dynamic
/// shared memory: kSharedBytes.
template <class T, class W, class Block, bool kPlanned>
__global__ void __launch_bounds__(Block::kThreads, Block::kBlocksPerSm)
    grouped_kernel(const GroupedOperands<T, W> p) {
  extern __shared__ uint4 grouped_shared[];
  if (!p.plan_is_ready) {
    grid_dependency_wait();
    grid_dependency_launch();  // the plan is ready for the next kernel
  }
  const int index = static_cast<int>(blockIdx.x) / p.row_blocks;
  const int slots = static_cast<int>(p.ids.extent(1));
  const int expert = kPlanned ? 0 : p.expert_of(index / slots, index % slots);
  const bool is_wanted =
      kPlanned ? index < *static_cast<const volatile std::int32_t*>(p.plan.num_tiles) : expert >= 0;
  if (!is_wanted) {
    if (p.plan_is_ready) {
      grid_dependency_launch();
      grid_dependency_wait();
    }
    return;
  }
  const auto tile = [&]() -> ExpertTile {
    if constexpr (!kPlanned) return {expert, index, 1};
    const volatile ExpertTile* const entry = p.plan.tiles + index;
    return {entry->expert, entry->first, entry->count};
  }();
  const auto pair_of = [&](int i) -> std::int32_t {
    if constexpr (!kPlanned) return i;
    return *static_cast<const volatile std::int32_t*>(p.plan.pairs + i);
  };
  const int first_column = static_cast<int>(blockIdx.x) % p.row_blocks * Block::kColumns;
  const int num_steps = (p.k + Block::kStep - 1) / Block::kStep;
  GroupedPart<Block, T, W> part;
  part.shared = shared_address(grouped_shared);
  part.find_weights(p, tile, first_column);
  part.find_rows(p, tile, pair_of);
  if (p.plan_is_ready) {
    for (int i = 0; i < min(Block::kStages - 1, num_steps); ++i) part.copy_weights(p, i, i);
    grid_dependency_launch();
    grid_dependency_wait();
  }
  for (int i = 0; i < Block::kStages - 1; ++i) {
    if (i < num_steps) {
      if (!p.plan_is_ready) part.copy_weights(p, i, i);
      part.copy_rows(p, i, i);
    }
    copy_async_commit();
  }
  for (int i = 0; i < num_steps; ++i) {
    copy_async_wait<Block::kStages - 2>();
    __syncthreads();  // step i is there, and all have multiplied step i - 1
    const int next = i + Block::kStages - 1;
    if (next < num_steps) {
      part.copy_weights(p, next, next);
      part.copy_rows(p, next, next);
    }
    copy_async_commit();
    part.multiply(i);
  }
  store_grouped_results(p, part, tile, first_column, reinterpret_cast<T*>(grouped_shared), pair_of);
}

/// Rows of W of a block with so many pairs. 128 rows of 8 bits have the bytes of 64 of 16, and half
/// as many copies of x.
template <class W>
[[nodiscard]] constexpr int grouped_rows(int tokens) {
  return std::same_as<W, fp8_e4m3> && tokens >= 16 ? 128 : 64;
}

}  // namespace detail

/// Pairs of a tile of the grouped products: `kGroupedTokens` are those that there are.
inline constexpr int kGroupedTokens[] = {8, 16, 32, 64};

/// The tiles for `pairs` pairs of `experts` experts: room for twice the pairs of an expert, so that
/// most weights are read once, where routing is even.
[[nodiscard]] constexpr int grouped_tokens(std::int64_t pairs, std::int64_t experts) {
  const std::int64_t wanted = std::min(pairs, 2 * ceil_div(pairs, experts));
  for (const int tokens : kGroupedTokens) {
    if (tokens >= wanted) return tokens;
  }
  return kGroupedTokens[3];
}

/// Enqueues a grouped product; `max_tiles` is the most tiles that its plan may have.
template <bool kGated, class T, class W>
void grouped_product(GroupedOperands<T, W> p, int tokens, std::int64_t max_tiles,
                     const Context& context) {
  const auto run = [&](auto size) {
    using Block = detail::GroupedBlock<W, size, kGated, detail::grouped_rows<W>(size)>;
    p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
    launch(detail::grouped_kernel<T, W, Block, true>,
           {.grid = static_cast<unsigned>(max_tiles * p.row_blocks),
            .block = Block::kThreads,
            .shared_bytes = Block::kSharedBytes},
           context, p);
  };
  switch (tokens) {
    case 8: return run(std::integral_constant<int, 8>{});
    case 16: return run(std::integral_constant<int, 16>{});
    case 32: return run(std::integral_constant<int, 32>{});
    default: return run(std::integral_constant<int, 64>{});
  }
}

}  // namespace nanovllm::cuda
