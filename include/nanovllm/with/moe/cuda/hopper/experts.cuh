#pragma once
/// Products of the rows of each expert by its weights where experts have many rows, by wgmma and
/// TMA (sm_90a). The formulas are those of with/moe/cuda/grouped.cuh; operands of wgmma are bf16. W
/// may also be e4m3, which the block turns into bf16 (fp8_weights.cuh).
///
/// A block owns an SM and takes one item after another: a tile of up to 128 pairs and 256 rows of
/// an expert's W, gated 128 gate rows and the up rows of the same columns of y. Panels of 64
/// columns of both pass through a ring in shared memory: one warpgroup gathers rows of x by
/// cp.async and has the copy engine bring W, also ahead of the next item's products; two others
/// multiply 64 pairs each (operand A) by all rows of W (operand B). Gates and ups of an output are
/// in one thread. Four threads exchange their results, so that each writes 16 bytes of a row of y.
///
/// Sums are in float32 and in the order of K. They are not those of with/moe/cuda/grouped.cuh bit
/// for bit, but depend on nothing else: a pair's result is the same in any tile.
///
/// Bytes moved from L2: W once for each tile of pairs, of e4m3 half as many and the scales; x once
/// for each 256 rows of W.
/// Measured: experts_bench, cuda_moe_h200.json, a layer's experts of 8,192 tokens in 8 bits 2,691
/// to 1,926 us; in 16 bits 1,543 us, 401 TFLOP/s.

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"
#include "nanovllm/with/moe/cuda/hopper/block.cuh"
#include "nanovllm/with/moe/cuda/hopper/fp8_weights.cuh"
#include "nanovllm/with/moe/cuda/workspace.cuh"

namespace nanovllm::cuda {

namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The warpgroup that copies, where W is bf16.
template <class Block>
struct WideExpertsCopier {
  static constexpr int kUnderWay = 2;  ///< panels of x that a thread has under way
  static_assert(kUnderWay < Block::kStages);

  const CUtensorMap& map;
  const typename Block::Operands& p;
  std::byte* ring;
  std::uint64_t *full, *empty;
  RingPosition<Block::kStages> at{}, done{};
  int under_way = 0;

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
      if (threadIdx.x == 0) {
        std::byte* const weights = ring + at.stage * Block::kStageBytes + Block::kXBytes;
        mbarrier_arrive_expect(full[at.stage], Block::kWeightBytes);
        const int column = i * kTmaColumns, second = Block::second_row(p, item.first_column);
        tma_load(weights, map, {column, item.first_column, item.tile.expert}, full[at.stage]);
        tma_load(weights + Block::kBoxBytes, map, {column, second, item.tile.expert},
                 full[at.stage]);
      }
      rows.copy(p, i, at.stage);
      at.advance();
      if (++under_way <= kUnderWay) continue;
      copy_async_wait<kUnderWay>();
      announce();
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

/// Of a matrix of four words in each of four lanes side by side, its transpose.
__device__ __forceinline__ uint4 transpose_in_quad(std::uint32_t (&v)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto exchange = [](std::uint32_t& low, std::uint32_t& high, bool is_upper, int distance) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, distance);
    (is_upper ? low : high) = other;
  };
  exchange(v[0], v[1], t % 2 != 0, 1);
  exchange(v[2], v[3], t % 2 != 0, 1);
  exchange(v[0], v[2], t >= 2, 2);
  exchange(v[1], v[3], t >= 2, 2);
  return {v[0], v[1], v[2], v[3]};
}

/// Writes a warpgroup's sums to y, rounded: 64 rows from `group` on.
template <class Block>
__device__ __forceinline__ void wide_experts_store(const typename Block::Operands& p,
                                                   const WideExpertsItem& item,
                                                   const float (&first)[64],
                                                   const float (&second)[64], int group) {
  const int warp = static_cast<int>(threadIdx.x) % Block::kGroup / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = Block::kTokens / 2 * group + 16 * warp + g + 8 * half;
    const bool exists = row < item.tile.count;
    bf16* const y = p.y + (exists ? planned_pair(p, item.tile.first + row) : 0) * p.y_stride;
    const auto write = [&](int column, std::uint32_t(&words)[4]) {
      const uint4 vector = transpose_in_quad(words);  // of all lanes
      if (exists && column < p.n) store_vector(y + column, vector);
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
      const int column = item.first_column + 32 * quarter + 8 * t;
      write(column, low);
      if constexpr (!Block::kGated) write(column + Block::kBoxRows, high);
    }
  }
}

/// The body of `wide_experts_kernel`.
template <class Block>
__device__ __forceinline__ void wide_experts_block(const CUtensorMap& map,
                                                   const typename Block::Operands& p) {
  extern __shared__ std::byte wide_experts_shared[];
  __shared__ std::uint64_t barriers[2 * (Block::kStages + Block::kByteStages)];
  std::uint64_t *const full = barriers, *const empty = full + Block::kStages;
  const std::uint32_t begin = shared_address(wide_experts_shared);
  std::byte* const ring = wide_experts_shared + (align_up(begin, Block::kAlignment) - begin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Block::kStages; ++i) {
      if constexpr (Block::kConverts) {
        mbarrier_init(full[i], WideExpertsConverter<Block>::kArrivals);
      } else {
        mbarrier_init(full[i], Block::kGroup + 1);  // each thread's rows of x, and W
      }
      mbarrier_init(empty[i], Block::kConsumerGroups * Block::kGroup / 32);
    }
    if constexpr (Block::kConverts)
      WideExpertsConverter<Block>::init_barriers(empty + Block::kStages);
    mbarrier_init_fence();
    tma_prefetch_map(map);
  }
  if (!p.plan_is_ready) grid_dependency_wait();
  grid_dependency_launch();  // the plan is ready for the next kernel
  __syncthreads();
  if (p.plan_is_ready) grid_dependency_wait();
  const int group = static_cast<int>(threadIdx.x) / Block::kGroup - Block::kProducerGroups;
  if (group < 0) {
    release_registers<Block::kProducerRegisters>();
    if constexpr (Block::kConverts) {
      WideExpertsConverter<Block>(map, p, ring, full, empty, empty + Block::kStages).run();
    } else {
      WideExpertsCopier<Block> copy{map, p, ring, full, empty};
      const int num_panels = ceil_div(p.k, kTmaColumns);
      for_each_item<Block>(p, [&](const WideExpertsItem& item) { copy(item, num_panels); });
      copy.finish();
    }
    return;
  }
  take_registers<Block::kConsumerRegisters>();
  const int num_panels = ceil_div(p.k, kTmaColumns);
  RingPosition<Block::kStages> at;
  for_each_item<Block>(p, [&](const WideExpertsItem& item) {
    float first[64] = {}, second[64] = {};
    wide_experts_multiply<Block>(first, second, ring, full, empty, at, group, num_panels);
    wide_experts_store<Block>(p, item, first, second, group);
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: any number of blocks, as many as SMs to be fast. Dynamic shared memory: kSharedBytes.
template <bool kGated, class W>
__global__ void __launch_bounds__(WideExpertsBlock<kGated, W>::kThreads, 1)
    wide_experts_kernel(const __grid_constant__ CUtensorMap map,
                        const __grid_constant__ GroupedOperands<bf16, W> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_experts_block<WideExpertsBlock<kGated, W>>(map, p);
#endif
}

}  // namespace detail

/// Pairs of a token and a slot in a tile of the kernel.
inline constexpr int kWideExpertTokens = 128;

/// Whether the experts of `pairs` pairs have half a tile on average.
[[nodiscard]] constexpr bool suits_wide_experts(std::int64_t pairs, std::int64_t experts) {
  return pairs >= experts * (kWideExpertTokens / 2);
}

/// Enqueues a grouped product of tiles of `kWideExpertTokens` pairs. Allocates nothing on the
/// device and does not synchronise; legal during capture.
template <bool kGated, class W>
void wide_expert_product(GroupedOperands<bf16, W> p, std::int64_t experts, std::int64_t max_tiles,
                         TensorMaps& maps, const Context& context) {
  using Block = detail::WideExpertsBlock<kGated, W>;
  check<ShapeError>(ExpertWorkspace::kMaxPairs * p.x_stride / 8 < (std::int64_t{1} << 32),
                    "expert_mlp: rows of ", p.x_stride, " elements are too long");
  static_assert(Block::kTokens == kWideExpertTokens);
  const std::int64_t rows = kGated ? 2 * std::int64_t{p.n} : std::int64_t{p.n};
  const std::int64_t stride = experts > 1 ? p.expert_stride : rows * p.weight_stride;
  constexpr int kBoxColumns = kTmaRowBytes / static_cast<int>(sizeof(W));
  const CUtensorMap map = maps.get<W, 3>(p.weight, {p.k, rows, experts}, {p.weight_stride, stride},
                                         {kBoxColumns, Block::kBoxRows, 1});
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
  launch(detail::wide_experts_kernel<kGated, W>,
         {.grid = static_cast<unsigned>(
              std::min<std::int64_t>(max_tiles * p.row_blocks, context.num_sms)),
          .block = Block::kThreads,
          .shared_bytes = static_cast<std::size_t>(Block::kSharedBytes)},
         context, map, p);
}

/// The kernel of architecture A for products of bfloat16 by experts in bfloat16 or 8-bit floats:
/// none, but where this is specialised.
template <class A>
struct ExpertProductOf {
  /// Pairs in a tile, 0 where it has none for so many pairs of a token and a slot.
  [[nodiscard]] static constexpr int tile_rows(std::int64_t /*pairs*/, std::int64_t /*experts*/) {
    return 0;
  }
  /// (operands, experts, most tiles, tensor maps, context): false, with nothing enqueued, where
  /// `tile_rows` is 0.
  template <bool kGated, class W>
  [[nodiscard]] static bool run(const GroupedOperands<bf16, W>&, std::int64_t, std::int64_t,
                                TensorMaps&, const Context&) {
    return false;
  }
};

template <>
struct ExpertProductOf<Hopper> {
  [[nodiscard]] static constexpr int tile_rows(std::int64_t pairs, std::int64_t experts) {
    return suits_wide_experts(pairs, experts) ? kWideExpertTokens : 0;
  }
  template <bool kGated, class W>
  [[nodiscard]] static bool run(const GroupedOperands<bf16, W>& operands, std::int64_t experts,
                                std::int64_t max_tiles, TensorMaps& maps, const Context& context) {
    wide_expert_product<kGated>(operands, experts, max_tiles, maps, context);
    return true;
  }
};

}  // namespace nanovllm::cuda
