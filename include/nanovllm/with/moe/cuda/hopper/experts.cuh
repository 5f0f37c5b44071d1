#pragma once
/// Products of the rows of each expert by its weights where experts have many rows, by wgmma and
/// TMA (sm_90a). The formulas are those of with/moe/cuda/grouped.cuh; x and W are bf16, or both are
/// e4m3 with scales (rounded.cuh).
///
/// A block owns an SM and takes one item after another: a tile of up to 128 pairs and 256 rows of
/// an expert's W, gated 128 gate rows and the up rows of the same columns of y. Panels of 128 bytes
/// of rows of both pass through a ring in shared memory: one warpgroup gathers rows of x by
/// cp.async and has the copy engine bring W, also ahead of the next item's products; two others
/// multiply 64 pairs each (operand A) by all rows of W (operand B). Gates and ups of an output are
/// in one thread. Four threads exchange their results, so that each writes 16 bytes of a row of y.
///
/// Sums are in float32 and in the order of K. They are not those of with/moe/cuda/grouped.cuh bit
/// for bit, but depend on nothing else: a pair's result is the same in any tile.
///
/// Bytes moved from L2: W once for each tile of pairs, of e4m3 half as many and the scales; x once
/// for each 256 rows of W.
/// Measured: experts_bench, a layer's experts of 8,192 tokens in 16 bits 1,543 us, 401 TFLOP/s
/// (cuda_moe_h200.json); in 8 bits 1,852 us before they were rounded, 967 since
/// (cuda_moe_rounded.json).

#include <cuda.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"
#include "nanovllm/with/moe/cuda/hopper/block.cuh"
#include "nanovllm/with/moe/cuda/hopper/narrow.cuh"
#include "nanovllm/with/moe/cuda/hopper/rounded.cuh"
#include "nanovllm/with/moe/cuda/workspace.cuh"

namespace nanovllm::cuda {

namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The warpgroup that copies.
template <class Block>
struct WideExpertsCopier {
  static constexpr int kUnderWay =
      Block::kRounded ? 1 : 2;  ///< panels of x that a thread has under way
  static_assert(kUnderWay < Block::kStages);

  const CUtensorMap& map;
  const typename Block::Operands& p;
  std::byte* ring;
  std::uint64_t *full, *empty;
  RingPosition<Block::kStages> at{}, done{};
  int under_way = 0;
  int ahead = 0;  ///< panels from the next one on whose W was asked for already

  /// Asks for the first panels of W while x may not be there yet.
  __device__ __forceinline__ void load_ahead(int num_panels) {
    if (threadIdx.x != 0 || static_cast<int>(blockIdx.x) >= num_wide_experts_items(p)) return;
    const WideExpertsItem item = wide_experts_item<Block>(p, static_cast<int>(blockIdx.x));
    for (; ahead < min(Block::kStages, num_panels); ++ahead) load_weights(item, ahead, ahead);
  }

  /// The copies of x of the oldest panel under way are there.
  __device__ __forceinline__ void announce() {
    async_proxy_fence_shared();
    mbarrier_arrive(full[done.stage]);
    done.advance();
    --under_way;
  }

  __device__ __forceinline__ void operator()(const WideExpertsItem& item, int num_panels) {
    const WideExpertsRows<Block> rows(p, item.tile, shared_address(ring));
    for (int i = 0; i < num_panels; ++i) {
      mbarrier_wait(empty[at.stage], at.parity ^ 1);
      if (ahead > 0) {
        --ahead;
      } else if (threadIdx.x == 0) {
        load_weights(item, i, at.stage);
      }
      rows.copy(p, i, shared_address(ring), at.stage);
      at.advance();
      if (++under_way <= kUnderWay) continue;
      copy_async_wait<kUnderWay>();
      announce();
    }
  }

  /// Has the copy engine bring panel `i` of W to stage `to`.
  __device__ __forceinline__ void load_weights(const WideExpertsItem& item, int i, int to) {
    std::byte* const stage = ring + to * Block::kStageBytes;
    const int rows[] = {item.first_column, Block::second_row(p, item.first_column)};
    int bytes = Block::kWeightBytes;
    if constexpr (Block::kRounded) {
      for (const int row : rows) bytes += WideExpertsScales<Block>::bytes_from(p, row);
    }
    mbarrier_arrive_expect(full[to], static_cast<std::uint32_t>(bytes));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      tma_load(stage + Block::kXBytes + half * Block::kBoxBytes, map,
               {i * Block::kPanel, rows[half], item.tile.expert}, full[to]);
      if constexpr (Block::kRounded) {
        WideExpertsScales<Block>::load(p, item.tile.expert, i, rows[half], half, stage, full[to]);
      }
    }
  }

  /// All that is under way.
  __device__ __forceinline__ void finish() {
    copy_async_wait<0>();
    while (under_way > 0) announce();
  }
};

/// The products of a warpgroup: `sums` of the first and of the second 128 rows of W.
template <class Block>
__device__ __forceinline__ void wide_experts_multiply(float (&first)[64], float (&second)[64],
                                                      const std::byte* ring, std::uint64_t* full,
                                                      std::uint64_t* empty,
                                                      RingPosition<Block::kStages>& at, int group,
                                                      int num_panels) {
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
  if (threadIdx.x % 32 == 0) mbarrier_arrive(empty[before]);
  wgmma_hold(first);
  wgmma_hold(second);
}

/// The pairs of a thread's rows among the 64 of its group: -1 where there is none.
template <class Block>
struct WideExpertsPairs {
  std::int32_t of_row[2];

  __device__ __forceinline__ WideExpertsPairs(const typename Block::Operands& p,
                                              const ExpertTile& tile, int group) {
    const int warp = static_cast<int>(threadIdx.x) % Block::kGroup / 32;
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Block::kTokens / 2 * group + 16 * warp + g + 8 * half;
      of_row[half] = row < tile.count ? planned_pair(p, tile.first + row) : -1;
    }
  }
};

/// Writes a warpgroup's sums to the thread's rows of y, rounded.
template <class Block>
__device__ __forceinline__ void wide_experts_store(const typename Block::Operands& p,
                                                   int first_column, const float (&first)[64],
                                                   const float (&second)[64],
                                                   const std::int32_t (&pairs)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bf16* const y = p.y + pairs[half] * p.y_stride;
    const auto write = [&](int column, std::uint32_t(&words)[4]) {
      const uint4 vector = transpose_in_quad(words);  // of all lanes
      if (pairs[half] >= 0 && column < p.n) store_vector(y + column, vector);
    };
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {  // 32 columns
      std::uint32_t low[4], high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = 4 * (4 * quarter + i) + 2 * half;
        if constexpr (Block::kGated) {
          low[i] = pack_pair<bf16>(silu<bf16>(first[from]) * second[from],
                                   silu<bf16>(first[from + 1]) * second[from + 1]);
        } else {
          low[i] = pack_pair<bf16>(first[from], first[from + 1]);
          high[i] = pack_pair<bf16>(second[from], second[from + 1]);
        }
      }
      const int column = first_column + 32 * quarter + 8 * t;
      write(column, low);
      if constexpr (!Block::kGated) write(column + Block::kBoxRows, high);
    }
  }
}

/// The consumers' part: products and results of all items of this block.
template <class Block>
__device__ __forceinline__ void wide_experts_consume(const typename Block::Operands& p,
                                                     std::byte* ring, std::uint64_t* full,
                                                     std::uint64_t* empty, int group,
                                                     int num_panels) {
  RingPosition<Block::kStages> at;
  for_each_item<Block>(p, [&](const WideExpertsItem& item) {
    if constexpr (Block::kNarrow) {
      const NarrowPlace<Block> place;
      float sums[2][Block::kTokens / 2] = {};
      narrow_experts_multiply<Block>(sums, ring, full, empty, at, place, num_panels);
      if constexpr (Block::kGated) {
        narrow_experts_store_rounded<Block>(p, item, sums, place, ring + Block::kResultsAt);
      } else {
        narrow_experts_store<Block>(p, item, sums, place);
      }
    } else {
      const WideExpertsPairs<Block> pairs(p, item.tile, group);  // asked for ahead of the products
      float first[64] = {}, second[64] = {};
      if constexpr (Block::kRounded) {
        rounded_experts_multiply<Block>(first, second, ring, full, empty, at, group, num_panels,
                                        p.has_blocks);
      } else {
        wide_experts_multiply<Block>(first, second, ring, full, empty, at, group, num_panels);
      }
      if constexpr (Block::kRounded && Block::kGated) {
        rounded_experts_store<Block>(p, item.first_column, first, second, pairs.of_row);
      } else {
        wide_experts_store<Block>(p, item.first_column, first, second, pairs.of_row);
      }
    }
  });
}

/// The body of `wide_experts_kernel`.
template <class Block>
__device__ __forceinline__ void wide_experts_block(const CUtensorMap& map,
                                                   const typename Block::Operands& p) {
  extern __shared__ std::byte wide_experts_shared[];
  __shared__ std::uint64_t barriers[2 * Block::kStages];
  std::uint64_t *const full = barriers, *const empty = full + Block::kStages;
  const std::uint32_t begin = shared_address(wide_experts_shared);
  std::byte* const ring = wide_experts_shared + (align_up(begin, Block::kAlignment) - begin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Block::kStages; ++i) {
      mbarrier_init(full[i], Block::kGroup + 1);  // each thread's rows of x, and W
      mbarrier_init(empty[i], Block::kConsumerGroups * Block::kGroup / 32);
    }
    mbarrier_init_fence();
    tma_prefetch_map(map);
  }
  if (!p.plan_is_ready) grid_dependency_wait();
  grid_dependency_launch();  // the plan is ready for the next kernel
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / Block::kGroup - 1;
  const int num_panels = ceil_div(p.k, Block::kPanel);
  WideExpertsCopier<Block> copy{map, p, ring, full, empty};
  if (p.plan_is_ready) {
    if (group < 0) copy.load_ahead(num_panels);
    grid_dependency_wait();
  }
  if (group < 0) {
    release_registers<Block::kProducerRegisters>();
    for_each_item<Block>(p, [&](const WideExpertsItem& item) { copy(item, num_panels); });
    copy.finish();
    return;
  }
  take_registers<Block::kConsumerRegisters>();
  wide_experts_consume<Block>(p, ring, full, empty, group, num_panels);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: any number of blocks, as many as SMs to be fast. Dynamic shared memory: kSharedBytes.
template <class Block>
__global__ void __launch_bounds__(Block::kThreads, 1)
    wide_experts_kernel(const __grid_constant__ CUtensorMap map,
                        const __grid_constant__ typename Block::Operands p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_experts_block<Block>(map, p);
#endif
}

}  // namespace detail

/// Pairs of a token and a slot in a tile of the kernel: many, and of rounded rows also few.
inline constexpr int kWideExpertTokens = 128, kNarrowExpertTokens = 32;

/// Enqueues a grouped product of tiles of `kTokens` pairs. Allocates nothing on the device and does
/// not synchronise; legal during capture.
template <bool kGated, int kTokens = kWideExpertTokens, class Operands>
void wide_expert_product(Operands p, std::int64_t experts, std::int64_t max_tiles, TensorMaps& maps,
                         const Context& context) {
  using W = std::remove_const_t<std::remove_pointer_t<decltype(p.weight)>>;
  using Block = detail::WideExpertsBlock<kGated, W, kTokens>;
  check<ShapeError>(ExpertWorkspace::kMaxPairs * p.x_stride / 8 < (std::int64_t{1} << 32),
                    "expert_mlp: rows of ", p.x_stride, " elements are too long");
  const std::int64_t rows = kGated ? 2 * std::int64_t{p.n} : std::int64_t{p.n};
  const std::int64_t stride = experts > 1 ? p.expert_stride : rows * p.weight_stride;
  const CUtensorMap map = maps.get<W, 3>(p.weight, {p.k, rows, experts}, {p.weight_stride, stride},
                                         {Block::kPanel, Block::kBoxRows, 1});
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
  launch(detail::wide_experts_kernel<Block>,
         {.grid = static_cast<unsigned>(
              std::min<std::int64_t>(max_tiles * p.row_blocks, context.num_sms)),
          .block = Block::kThreads,
          .shared_bytes = static_cast<std::size_t>(Block::kSharedBytes)},
         context, map, p);
}

/// The kernel of architecture A for products by experts, of bfloat16 or, rounded, of 8-bit floats:
/// none, but where this is specialised.
template <class A>
struct ExpertProductOf {
  /// Pairs in a tile for weights W, 0 where it has none for so many pairs of `tokens` tokens.
  template <class W>
  [[nodiscard]] static constexpr int tile_rows(std::int64_t /*tokens*/, std::int64_t /*pairs*/,
                                               std::int64_t /*experts*/) {
    return 0;
  }
  /// (operands, pairs in a tile, experts, most tiles, tensor maps, context): false, with nothing
  /// enqueued, where `tile_rows` is 0.
  template <bool kGated, class Operands>
  [[nodiscard]] static bool run(const Operands&, int, std::int64_t, std::int64_t, TensorMaps&,
                                const Context&) {
    return false;
  }
};

template <>
struct ExpertProductOf<Hopper> {
  /// bfloat16: where experts have half a tile on average. 8-bit floats: from so many tokens on as
  /// dense layers round theirs. Pairs have the same results in tiles of both sizes.
  template <class W>
  [[nodiscard]] static constexpr int tile_rows(std::int64_t tokens, std::int64_t pairs,
                                               std::int64_t experts) {
    if constexpr (std::same_as<W, fp8_e4m3>) {
      if (tokens <= kMaxFp8FewRows) return 0;
      return 4 * pairs >= 3 * experts * kNarrowExpertTokens ? kWideExpertTokens
                                                            : kNarrowExpertTokens;
    }
    return pairs >= experts * (kWideExpertTokens / 2) ? kWideExpertTokens : 0;
  }
  template <bool kGated, class Operands>
  [[nodiscard]] static bool run(const Operands& p, int tile_rows, std::int64_t experts,
                                std::int64_t max_tiles, TensorMaps& maps, const Context& context) {
    if constexpr (std::same_as<Operands, RoundedExpertOperands>) {
      if (tile_rows == kNarrowExpertTokens) {
        wide_expert_product<kGated, kNarrowExpertTokens>(p, experts, max_tiles, maps, context);
        return true;
      }
    }
    wide_expert_product<kGated>(p, experts, max_tiles, maps, context);
    return true;
  }
};

}  // namespace nanovllm::cuda
