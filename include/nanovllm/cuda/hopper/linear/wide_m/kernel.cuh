#pragma once
/// A dense layer on some hundred rows of x, by wgmma and TMA (sm_90a), with what stands around it.
///
///   plain:   y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///   normed:  the same for r[m] · round(x[m, k] · w[k]) in place of x, r the inverse of the root of
///            the mean square of a row of x, multiplied to the sum
///   gated:   y[m, n] = silu(g[m, n]) · u[m, n] with [g | u] the normed product by W [2 N, K];
/// neither
///            is rounded
///
/// x [M, K] and W with 16-byte aligned rows, y [M, N] with 8-byte aligned ones, K a multiple of 8,
/// N of 4; bf16, plain products also half.
///
/// A block owns 64 rows of x and some rows of W, few enough that there is a block or two for each
/// multiprocessor. A separate warp copies panels of 64 columns of both into a ring, the first
/// ones of W ahead of the wait for earlier kernels. A warpgroup multiplies its rows of x (operand
/// A) by those of W (operand B). With a norm, A goes through registers.
///
/// The blocks of a cluster may share K. Each pushes its sums of all but its own share of the
/// columns to the blocks that own them, and adds up its own in the order of K. Rows of x or of W
/// that blocks of a cluster have in common are not brought to all of them by one copy (multicast):
/// that made every shape slower, by waiting for each other.
///
/// Sums are in float32, in an order that depends on K and the variant alone.
///
/// Bytes moved from L2: x once for each `rows` rows of W, W once for each 64 rows of x.
/// Measured: wide_m_bench, cuda_wide_m.json, a layer of 0.6B without attention 30.3 to 23.4 us (128
/// rows), 33.4 to 29.9 (256); 8B gains nothing (docs/lab/decode_step.md).

#include <cuda.h>

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/hopper/linear/wide_m/output.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"

namespace nanovllm::cuda::detail {

/// Sizes that follow from a block, see `WideMBlock`.
template <int kRowsOfBlock, int kSplitOfBlock, int kStagesOfBlock, ProductKind kKind>
struct WideMTraits {
  static constexpr int kRows = kRowsOfBlock, kSplit = kSplitOfBlock, kStages = kStagesOfBlock;
  static constexpr bool kGated = kKind == ProductKind::gated, kNorm = kKind != ProductKind::plain;
  static constexpr int kTokens = 64;
  static constexpr int kConsumers = 128, kThreads = kConsumers + 32;
  static constexpr int kRowBytes = kTmaColumns * 2;
  static constexpr int kXBytes = kTokens * kRowBytes, kWeightBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kSums = kRows / 2;            ///< of a thread
  static constexpr int kTiles = kRows / 8 / kSplit;  ///< of 8 columns that a block adds up
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kPartBytes =
      (kSplit - 1) * kTiles * kConsumers * 16;  ///< what other blocks push
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kStages * kStageBytes + kPartBytes + kAlignment;
  /// With the norm's weights for so many panels.
  static constexpr std::int64_t shared_bytes(std::int64_t panels) {
    return kSharedBytes + (kNorm ? panels * kRowBytes : 0);
  }
  /// Where shared memory has room for two, registers have as well: of this kernel's or the next's.
  static constexpr int kPerSm = kSharedBytes <= 111 * 1024 && kSums <= 64 ? 2 : 1;
  static constexpr int kBoxes = kGated ? 2 : 1;  ///< of W in a stage
  static constexpr int kBoxRows = kRows / kBoxes;

  static_assert(kRows % (16 * kSplit * kBoxes) == 0 && kStages >= 2);
  static_assert(kKind == ProductKind::plain || kSplit == 1);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Where a block stands.
template <class Traits>
struct WideMPlace {
  int part;                       ///< of K, and its number in the cluster
  int first_token, first_column;  ///< of y
  int first_panel, num_panels;

  __device__ __forceinline__ WideMPlace(int block, int panels, int token_tiles) {
    const int tile = block / Traits::kSplit;
    part = block % Traits::kSplit;
    first_token = tile % token_tiles * Traits::kTokens;
    first_column = tile / token_tiles * Traits::kColumns;
    first_panel = panels * part / Traits::kSplit;
    num_panels = panels * (part + 1) / Traits::kSplit - first_panel;
  }
};

/// The thread that copies: fills the ring and lets the next kernel start.
template <class Traits, class T>
__device__ __forceinline__ void wide_m_copy(std::byte* ring, std::uint64_t* full,
                                            std::uint64_t* empty, const CUtensorMap& w_map,
                                            const CUtensorMap& x_map,
                                            const WideMPlace<Traits>& place,
                                            const WideMParams<T>& p) {
  const auto load_weights = [&](int i, int stage) {
    std::byte* const to = ring + stage * Traits::kStageBytes + Traits::kXBytes;
    const int column = (place.first_panel + i) * kTmaColumns;
#pragma unroll
    for (int box = 0; box < Traits::kBoxes; ++box) {  // gates, then ups
      tma_load(to + box * Traits::kBoxRows * Traits::kRowBytes, w_map,
               {column, place.first_column + box * p.n}, full[stage]);
    }
  };
  const auto load_x = [&](int i, int stage) {
    tma_load(ring + stage * Traits::kStageBytes, x_map,
             {(place.first_panel + i) * kTmaColumns, place.first_token}, full[stage]);
  };
  const int ahead = min(place.num_panels, Traits::kStages);
  for (int i = 0; i < ahead; ++i) {
    mbarrier_arrive_expect(full[i], Traits::kStageBytes);
    load_weights(i, i);
  }
  tma_prefetch_map(x_map);
  grid_dependency_wait();
  grid_dependency_launch();
  async_proxy_fence_global();
  for (int i = 0; i < ahead; ++i) load_x(i, i);
  RingPosition<Traits::kStages> at;
  for (int i = Traits::kStages; i < place.num_panels; ++i) {
    mbarrier_wait(empty[at.stage], at.parity);
    mbarrier_arrive_expect(full[at.stage], Traits::kStageBytes);
    load_x(i, at.stage);
    load_weights(i, at.stage);
    at.advance();
  }
}

/// The products of a warpgroup.
template <class Traits, class T, int kSize>
__device__ __forceinline__ void wide_m_multiply(float (&sum)[kSize], const std::byte* ring,
                                                std::uint64_t* full, std::uint64_t* empty,
                                                const WideMPlace<Traits>& place) {
  RingPosition<Traits::kStages> at;
  int before = 0;
  for (int i = 0; i < place.num_panels; ++i) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage, 0);
    const WgmmaOperand w = wgmma_operand(stage + Traits::kXBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)  // of 16 columns
      wgmma<T, true>(sum, x.plus(32 * step), w.plus(32 * step));
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(empty[before]);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
  wgmma_hold(sum);
}

/// The same with the norm ahead: x goes through registers, where it is multiplied by the norm's
/// weights and rounded, and its squares are summed. The inverse of the root of their mean is
/// multiplied to the sums at the end.
template <class Traits, class T, int kSize>
__device__ __forceinline__ void wide_m_multiply_normed(float (&sum)[kSize], const std::byte* ring,
                                                       const std::uint32_t* norm,
                                                       std::uint64_t* full, std::uint64_t* empty,
                                                       const WideMPlace<Traits>& place,
                                                       const WideMParams<T>& p) {
  static_assert(std::same_as<T, bf16>);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp * 16 + lane % 16;
  // Lane l gives the address of row l % 16, columns 0 or 8 on of the 16 (see ldmatrix).
  const std::uint32_t row_address = shared_address(ring) + static_cast<std::uint32_t>(row) * 128;
  RingPosition<Traits::kStages> at;
  int before = 0;
  float squares[2] = {};
  std::uint32_t scaled[4][4] = {};  // read by products under way
  for (int i = 0; i < place.num_panels; ++i) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand w = wgmma_operand(stage + Traits::kXBytes, 0);
    std::uint32_t x[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = (2 * step + lane / 16) ^ (row % 8);
      ldmatrix_x4(x[step], row_address + static_cast<std::uint32_t>(at.stage * Traits::kStageBytes +
                                                                    chunk * 16));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 v = unpack_pair<T>(x[step][j]);
        squares[j % 2] = fmaf(v.x, v.x, squares[j % 2]);
        squares[j % 2] = fmaf(v.y, v.y, squares[j % 2]);
      }
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_hold(scaled[step]);
    if (i > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(empty[before]);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t scale = norm[i * 32 + step * 8 + j / 2 * 4 + lane % 4];
        asm volatile("mul.rn.bf16x2 %0, %1, %2;"
                     : "=r"(scaled[step][j])
                     : "r"(x[step][j]), "r"(scale));
      }
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_rows<T>(sum, scaled[step], w.plus(32 * step));
    wgmma_commit();
    before = at.stage;
    at.advance();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    squares[half] += __shfl_xor_sync(0xffffffffu, squares[half], 1);
    squares[half] += __shfl_xor_sync(0xffffffffu, squares[half], 2);
    squares[half] = rsqrtf(squares[half] / static_cast<float>(p.k) + p.eps);
  }
  wgmma_wait<0>();
  wgmma_hold(sum);
#pragma unroll
  for (int i = 0; i < kSize; ++i) sum[i] *= squares[i / 2 % 2];
}

/// Leaves in `own` a block's share of the columns, summed over the blocks that share K.
template <class Traits, int kSize, int kOwn>
__device__ __forceinline__ void wide_m_exchange(const float (&sum)[kSize], float (&own)[kOwn],
                                                const float4* parts, std::uint64_t& arrived,
                                                int part) {
  // Where what block `from` pushes to block `to` lies there.
  const auto slot = [&](int from, int to, int tile) {
    return parts + ((from - (from > to)) * Traits::kTiles + tile) * Traits::kConsumers +
           threadIdx.x;
  };
#pragma unroll
  for (int to = 0; to < Traits::kSplit; ++to) {
    if (to == part) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) own[i] = sum[to * kOwn + i];
    } else {
      const std::uint32_t barrier = cluster_address(shared_address(&arrived), to);
#pragma unroll
      for (int tile = 0; tile < Traits::kTiles; ++tile) {
        const float* const s = sum + to * kOwn + 4 * tile;
        push_cluster_quad(cluster_address(shared_address(slot(part, to, tile)), to),
                          {s[0], s[1], s[2], s[3]}, barrier);
      }
    }
  }
  mbarrier_wait_cluster(arrived, 0);
#pragma unroll
  for (int tile = 0; tile < Traits::kTiles; ++tile) {
    float* const mine = own + 4 * tile;
    float4 total{};
#pragma unroll
    for (int from = 0; from < Traits::kSplit; ++from) {
      const float4 v =
          from == part ? float4{mine[0], mine[1], mine[2], mine[3]} : *slot(from, part, tile);
      total = from == 0 ? v : float4{total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
    }
    mine[0] = total.x, mine[1] = total.y, mine[2] = total.z, mine[3] = total.w;
  }
}

/// The body of `wide_m_kernel`.
template <class Traits, class T>
__device__ __forceinline__ void wide_m_block(const CUtensorMap& w_map, const CUtensorMap& x_map,
                                             const WideMParams<T>& p) {
  extern __shared__ std::byte wide_m_shared[];
  __shared__ std::uint64_t full[Traits::kStages], empty[Traits::kStages], arrived;
  const std::uint32_t begin = shared_address(wide_m_shared);
  std::byte* const ring = wide_m_shared + (align_up(begin, Traits::kAlignment) - begin);
  std::byte* const parts = ring + Traits::kStages * Traits::kStageBytes;
  auto* const norm = reinterpret_cast<std::uint32_t*>(parts + Traits::kPartBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], Traits::kConsumers / 32);
    }
    mbarrier_init(arrived, 1);
    mbarrier_init_fence();
    if constexpr (Traits::kSplit > 1) mbarrier_arrive_expect(arrived, Traits::kPartBytes);
  }
  if constexpr (Traits::kSplit > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const WideMPlace<Traits> place(static_cast<int>(blockIdx.x), p.panels, p.token_tiles);
  if (threadIdx.x >= Traits::kConsumers) {
    if (threadIdx.x == Traits::kConsumers)
      wide_m_copy<Traits>(ring, full, empty, w_map, x_map, place, p);
    return;
  }
  if constexpr (Traits::kNorm) {
    for (int i = static_cast<int>(threadIdx.x); i < p.panels * 32; i += Traits::kConsumers)
      norm[i] = 2 * i < p.k ? reinterpret_cast<const std::uint32_t*>(p.norm)[i] : 0;
    named_barrier_sync<Traits::kConsumers>(1);
  }
  grid_dependency_wait();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kOwnColumns = Traits::kColumns / Traits::kSplit;
  WideMOutput<kOwnColumns / 16, T> output(p, place.first_token + warp * 16 + lane / 4,
                                          place.first_column + place.part * kOwnColumns);
  float sum[Traits::kSums] = {};
  if constexpr (Traits::kNorm) {
    wide_m_multiply_normed<Traits, T>(sum, ring, norm, full, empty, place, p);
  } else {
    wide_m_multiply<Traits, T>(sum, ring, full, empty, place);
  }
  if constexpr (Traits::kGated) {
    constexpr int kOut = Traits::kSums / 2;
    float out[kOut];
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] = silu<T>(sum[i]) * sum[kOut + i];
    output.store(out, false);
  } else if constexpr (Traits::kSplit == 1) {
    output.store(sum, p.accumulate);
  } else {
    float own[Traits::kSums / Traits::kSplit];
    wide_m_exchange<Traits>(sum, own, reinterpret_cast<const float4*>(parts), arrived, place.part);
    output.store(own, p.accumulate);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: blocks that share K (a cluster), then tiles of rows of x, then of W.
template <class T, class Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kPerSm)
    wide_m_kernel(const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap x_map, const WideMParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_m_block<Traits>(w_map, x_map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
