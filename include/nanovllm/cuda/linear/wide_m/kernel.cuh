#pragma once
/// A dense layer on some hundred rows of x, by wgmma and TMA (sm_90a), alone or with SwiGLU behind.
///
///   plain:  y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///   gated:  y[m, n] = silu(g[m, n]) · u[m, n] with [g | u] = x · Wᵀ, W [2 N, K], rounded once
///
/// x [M, K] and W with 16-byte aligned rows, y [M, N] with 8-byte aligned ones, N a multiple of 4;
/// bf16 or half.
///
/// A block owns 64 or 128 rows of x and some rows of W. A warp of its own copies panels of 64 columns
/// of both into a ring, W ahead of the wait for earlier kernels; each warpgroup multiplies 64 rows
/// of x (operand A) by all rows of W (operand B). Blocks are small, so that there is one for each
/// multiprocessor; what bounds them then is the traffic from L2, so that the blocks of a cluster
/// may bring each other what they have in common (multicast): rows of x, of W, or both.
///
/// The blocks of a cluster may also share K. Each then pushes its sums of all but its own share of
/// the columns to the blocks that own them, and adds up its own in the order of K.
///
/// Sums are in float32, in an order that depends on K and on `split` alone.
///
/// Bytes moved from L2: x once for each `rows · share_x` rows of W, W once for each
/// `64 · groups · share_w` rows of x.

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/wide_m/output.cuh"
#include "nanovllm/cuda/linear/wide_m/tuning.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/cluster_copy.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/ptx/wgmma_columns.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

/// Sizes that follow from a block, see `WideMBlock`.
template <int kBlockGroups, int kBlockRows, int kBlockShareX, int kBlockShareW, int kBlockSplit,
          int kBlockStages, WideMKind kKind>
struct WideMTraits {
  static constexpr WideMBlock kBlock{kBlockGroups, kBlockRows, kBlockShareX, kBlockShareW,
                                     kBlockSplit, kBlockStages};
  static constexpr bool kGated = kKind == WideMKind::gated, kNorm = kKind != WideMKind::plain;
  static constexpr int kTokens = 64 * kBlock.groups;
  static constexpr int kRows = kBlock.rows;
  static constexpr int kThreads = 128 * kBlock.groups + 32;
  static constexpr int kCluster = kBlock.cluster();
  static constexpr int kXBytes = kTokens * kTmaColumns * 2;
  static constexpr int kWeightBytes = kRows * kTmaColumns * 2;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kSums = kRows / 2;                   ///< of a thread
  static constexpr int kTiles = kRows / 8 / kBlock.split;   ///< of 8 columns that a block adds up
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kStages = kBlock.stages;
  static constexpr int kPartBytes =
      (kBlock.split - 1) * kBlock.groups * kTiles * 128 * 4 * 4;  ///< what others push
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kStages * kStageBytes + kPartBytes + kAlignment;
  /// With the norm's weights for so many panels.
  static constexpr std::int64_t shared_bytes(std::int64_t panels) {
    return kSharedBytes + (kNorm ? panels * kTmaColumns * 2 : 0);
  }
  /// Where shared memory has room for two, registers have as well: of this kernel's or the next's.
  static constexpr int kPerSm = kSharedBytes <= 111 * 1024 && kSums <= 64 ? 2 : 1;
  /// Boxes of W that a block copies, and their rows.
  static constexpr int kBoxes = kGated && kBlock.share_w == 1 ? 2 : 1;
  static constexpr int kBoxRows = kRows / kBlock.share_w / kBoxes;
  /// Arrivals that empty a stage: a block copies into all that share with it.
  static constexpr int kReleases = kBlock.share_x + kBlock.share_w - 1;

  static_assert(kRows % (16 * kBlock.split * (kGated ? 2 : 1)) == 0 && kStages >= 2);
  static_assert(kBoxRows % 8 == 0 && kTokens / kBlock.share_x % 8 == 0);
  static_assert(!kGated || (kBlock.split == 1 && kBlock.share_w <= 2));
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Where a block stands.
template <class Traits>
struct WideMPlace {
  int part, x_share, w_share;    ///< in its cluster
  int first_token, first_column;  ///< of y
  int first_panel, num_panels;

  __device__ __forceinline__ WideMPlace(int block, int panels, int token_groups) {
    const int rank = block % Traits::kCluster, cluster = block / Traits::kCluster;
    part = rank % Traits::kBlock.split;
    x_share = rank / Traits::kBlock.split % Traits::kBlock.share_x;
    w_share = rank / (Traits::kBlock.split * Traits::kBlock.share_x);
    first_token = (cluster % token_groups * Traits::kBlock.share_w + w_share) * Traits::kTokens;
    first_column = (cluster / token_groups * Traits::kBlock.share_x + x_share) * Traits::kColumns;
    first_panel = panels * part / Traits::kBlock.split;
    num_panels = panels * (part + 1) / Traits::kBlock.split - first_panel;
  }

  /// The block that shares rows of x, or of W, with this one and is number `i` of those.
  __device__ __forceinline__ int x_peer(int i) const {
    return part + Traits::kBlock.split * (i + Traits::kBlock.share_x * w_share);
  }
  __device__ __forceinline__ int w_peer(int i) const {
    return part + Traits::kBlock.split * (x_share + Traits::kBlock.share_x * i);
  }
};

/// The thread that copies: fills the ring and lets the next kernel start.
template <class Traits, class T>
__device__ __forceinline__ void wide_m_copy(std::byte* ring, std::uint64_t* full,
                                            std::uint64_t* empty, const CUtensorMap& w_map,
                                            const CUtensorMap& x_map,
                                            const WideMPlace<Traits>& place,
                                            const WideMParams<T>& p) {
  std::uint32_t x_blocks = 0, w_blocks = 0;
#pragma unroll
  for (int i = 0; i < Traits::kBlock.share_x; ++i) x_blocks |= 1u << place.x_peer(i);
#pragma unroll
  for (int i = 0; i < Traits::kBlock.share_w; ++i) w_blocks |= 1u << place.w_peer(i);
  const auto load_weights = [&](int i, int stage) {
    std::byte* const to = ring + stage * Traits::kStageBytes + Traits::kXBytes;
    const int column = (place.first_panel + i) * kTmaColumns;
#pragma unroll
    for (int box = 0; box < Traits::kBoxes; ++box) {
      const int part = box + place.w_share;  // one of them is 0
      const int row = Traits::kGated ? part * p.n + place.first_column
                             : place.first_column + part * Traits::kBoxRows;
      std::byte* const at = to + part * Traits::kBoxRows * kTmaColumns * 2;
      if constexpr (Traits::kBlock.share_w > 1) {
        tma_load_multicast(at, w_map, {column, row}, full[stage],
                           static_cast<std::uint16_t>(w_blocks));
      } else {
        tma_load(at, w_map, {column, row}, full[stage]);
      }
    }
  };
  const auto load_x = [&](int i, int stage) {
    constexpr int kShare = Traits::kTokens / Traits::kBlock.share_x;
    std::byte* const to =
        ring + stage * Traits::kStageBytes + place.x_share * kShare * kTmaColumns * 2;
    const int column = (place.first_panel + i) * kTmaColumns;
    const int row = place.first_token + place.x_share * kShare;
    if constexpr (Traits::kBlock.share_x > 1) {
      tma_load_multicast(to, x_map, {column, row}, full[stage],
                         static_cast<std::uint16_t>(x_blocks));
    } else {
      tma_load(to, x_map, {column, row}, full[stage]);
    }
  };
  const int ahead = min(place.num_panels, Traits::kStages);
  for (int i = 0; i < ahead; ++i) {
    mbarrier_arrive_expect(full[i], Traits::kStageBytes);
    load_weights(i, i);
  }
  grid_dependency_wait();
  if (p.next == 1) grid_dependency_launch();
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
  if (p.next == 2) grid_dependency_launch();
}

/// Tells the blocks that fill a stage of this one that a warpgroup has read panel `i` of it, unless
/// nobody fills it again.
template <class Traits>
__device__ __forceinline__ void wide_m_release(int i, int stage, std::uint64_t* empty,
                                               const WideMPlace<Traits>& place) {
  constexpr WideMBlock kBlock = Traits::kBlock;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (i + Traits::kStages >= place.num_panels) return;
  if constexpr (Traits::kReleases == 1) {
    if (thread == 0) mbarrier_arrive(empty[stage]);
  } else {
    if (thread < kBlock.share_x) {
      mbarrier_arrive_at(empty[stage], static_cast<std::uint32_t>(place.x_peer(thread)));
    } else if (thread < Traits::kReleases) {
      const int other = thread - kBlock.share_x;  // of those that share W, without this one
      mbarrier_arrive_at(empty[stage], static_cast<std::uint32_t>(
                                           place.w_peer(other + (other >= place.w_share))));
    }
  }
}

/// The products of a warpgroup.
template <class Traits, class T, int kSize>
__device__ __forceinline__ void wide_m_multiply(float (&sum)[kSize], const std::byte* ring,
                                                std::uint64_t* full, std::uint64_t* empty,
                                                const WideMPlace<Traits>& place) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  RingPosition<Traits::kStages> at;
  int before = 0;
  for (int i = 0; i < place.num_panels; ++i) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage + group * 64 * kTmaColumns * 2, 0);
    const WgmmaOperand w = wgmma_operand(stage + Traits::kXBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)  // of 16 columns
      wgmma_add<T>(sum, x.plus(32 * step), w.plus(32 * step));
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) wide_m_release(i - 1, before, empty, place);
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
      ldmatrix_x4(x[step], row_address + static_cast<std::uint32_t>(
                                             at.stage * Traits::kStageBytes + chunk * 16));
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
    if (i > 0) wide_m_release(i - 1, before, empty, place);
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
    for (int step = 0; step < 4; ++step) wgmma_add<T>(sum, scaled[step], w.plus(32 * step));
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
                                                float* parts, std::uint64_t& arrived,
                                                const WideMPlace<Traits>& place) {
  const int base = static_cast<int>(blockIdx.x) % Traits::kCluster - place.part;
  const auto slot = [&](int from, int to, int tile) {  // of the parts pushed by block `from`
    const int number = from - (from > to);
    return parts + ((number * Traits::kTiles + tile) * Traits::kBlock.groups * 128 +
                    static_cast<int>(threadIdx.x)) * 4;
  };
#pragma unroll
  for (int to = 0; to < Traits::kBlock.split; ++to) {
    if (to == place.part) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) own[i] = sum[to * kOwn + i];
    } else {
#pragma unroll
      for (int tile = 0; tile < Traits::kTiles; ++tile) {
        const int i = to * kOwn + 4 * tile;
        push_quad(slot(place.part, to, tile), {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]}, arrived,
                  static_cast<std::uint32_t>(base + to));
      }
    }
  }
  mbarrier_wait(arrived, 0);
#pragma unroll
  for (int tile = 0; tile < Traits::kTiles; ++tile) {
    float4 total{};
#pragma unroll
    for (int from = 0; from < Traits::kBlock.split; ++from) {
      float4 part{own[4 * tile], own[4 * tile + 1], own[4 * tile + 2], own[4 * tile + 3]};
      if (from != place.part)
        part = *reinterpret_cast<const float4*>(slot(from, place.part, tile));
      total = from == 0 ? part
                        : float4{total.x + part.x, total.y + part.y, total.z + part.z,
                                 total.w + part.w};
    }
    own[4 * tile] = total.x;
    own[4 * tile + 1] = total.y;
    own[4 * tile + 2] = total.z;
    own[4 * tile + 3] = total.w;
  }
}

/// x / (1 + e^-x).
__device__ __forceinline__ float wide_m_silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

/// The body of `wide_m_kernel`.
template <class Traits, class T>
__device__ __forceinline__ void wide_m_block(const CUtensorMap& w_map, const CUtensorMap& x_map,
                                             const WideMParams<T>& p) {
  extern __shared__ std::byte wide_m_shared[];
  __shared__ std::uint64_t full[Traits::kStages], empty[Traits::kStages], arrived;
  const std::uint32_t begin = shared_address(wide_m_shared);
  std::byte* const ring =
      wide_m_shared + ((Traits::kAlignment - begin % Traits::kAlignment) % Traits::kAlignment);
  if (p.next == 0) grid_dependency_launch();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], Traits::kBlock.groups * Traits::kReleases);
    }
    mbarrier_init(arrived, 1);
    mbarrier_init_fence();
    if constexpr (Traits::kBlock.split > 1) mbarrier_arrive_expect(arrived, Traits::kPartBytes);
  }
  if constexpr (Traits::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const WideMPlace<Traits> place(static_cast<int>(blockIdx.x), p.panels, p.token_groups);
  if (threadIdx.x >= Traits::kThreads - 32) {
    if (threadIdx.x == Traits::kThreads - 32)
      wide_m_copy<Traits>(ring, full, empty, w_map, x_map, place, p);
    return;
  }
  std::uint32_t* const norm = reinterpret_cast<std::uint32_t*>(
      ring + Traits::kStages * Traits::kStageBytes + Traits::kPartBytes);
  if constexpr (Traits::kNorm) {
    for (int i = static_cast<int>(threadIdx.x); i < p.panels * 32; i += Traits::kThreads - 32)
      norm[i] = 2 * i < p.k ? reinterpret_cast<const std::uint32_t*>(p.norm)[i] : 0;
    named_barrier_sync<Traits::kThreads - 32>(1);
  }
  grid_dependency_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = place.first_token + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  constexpr int kPairs = (Traits::kGated ? Traits::kRows / 2 : Traits::kTiles * 8) / 16;
  WideMOutput<kPairs, T> output(p, row, place.first_column + place.part * Traits::kTiles * 8);
  float sum[Traits::kSums] = {};
  if constexpr (Traits::kNorm) {
    wide_m_multiply_normed<Traits, T>(sum, ring, norm, full, empty, place, p);
  } else {
    wide_m_multiply<Traits, T>(sum, ring, full, empty, place);
  }
  if constexpr (Traits::kGated) {
    float out[Traits::kSums / 2];
#pragma unroll
    for (int i = 0; i < Traits::kSums / 2; ++i)
      out[i] = wide_m_silu(sum[i]) * sum[Traits::kSums / 2 + i];
    output.store(out, false);
  } else if constexpr (Traits::kBlock.split == 1) {
    output.store(sum, p.accumulate);
  } else {
    float own[Traits::kSums / Traits::kBlock.split];
    float* const parts = reinterpret_cast<float*>(ring + Traits::kStages * Traits::kStageBytes);
    wide_m_exchange<Traits>(sum, own, parts, arrived, place);
    output.store(own, p.accumulate);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: blocks of a cluster, then clusters along x, then along W.
template <class T, class Traits>
__global__ void __launch_bounds__(Traits::kThreads,
                                  Traits::kPerSm)
    wide_m_kernel(const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ CUtensorMap x_map, const WideMParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  wide_m_block<Traits>(w_map, x_map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
