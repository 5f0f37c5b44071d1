#pragma once
/// A dense layer on some tens of rows of x with what stands around it, by wgmma and TMA (sm_90a).
///
///   y[m, n] = s[m] · Σ_k round(x[m, k] · norm[k]) · W[n, k]   (+ y[m, n], with `accumulate`)
///   s[m] = rsqrt(mean_k x[m, k]² + eps)                       (with a norm; else s = norm = 1)
/// and, gated, with W [2 · width, K] of gate rows and then up rows, out = silu(g) · u of such sums.
///
/// x [M ≤ 64, K], 16-byte aligned rows;  W [N, K] dense, 16-byte aligned, K a multiple of 8;
/// y [M, N] (or [M, width]), any alignment; bf16, or without a norm half.
///
/// The rows of x are the 64 rows of a wgmma (operand A), rows of W its columns (operand B). A block
/// owns a tile of rows of W, gated as many gate rows as up rows, so that both sums of an output
/// are in one thread. A cluster shares the tile and splits K; at the end each block finishes a
/// share of the columns: the others send it their sums (st.async), and it adds all up in the order
/// of K.
///
/// Panels of 64 columns of both operands pass through rings in shared memory. One warp fills the
/// ring of W, before the kernel ahead has ended, one that of x, a warpgroup multiplies, and with a
/// norm another one, between x's arrival and the products, sums up the squares of a panel and
/// multiplies it by the norm's weights in place. No ring is larger than what lets two blocks stand on
/// a multiprocessor: the next kernel's weights arrive while this one works.
///
/// Sums are in float32, and their order depends on K and on the size of the cluster alone.
///
/// Bytes moved: W once; x once for each tile of rows of W (from L2); y once.

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

/// Shapes of a block: `kTileRows` rows of W, one of `kClusterSize` shares of K.
template <int kTileRows, int kClusterSize, bool kHasNorm, bool kIsGated>
struct MidMBlock {
  static constexpr int kRows = kTileRows;
  static constexpr int kSplit = kClusterSize;
  static constexpr bool kNorm = kHasNorm;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = 64;
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  /// Sets of 8 columns that a block finishes, and sums that it gets for them from each other one:
  /// a quad for each of these in each thread.
  static constexpr int kOwned = kColumns / 8 / kSplit;
  static constexpr int kPushed = kGated ? 2 * kOwned : kOwned;
  static_assert(kOwned * kSplit * 8 == kColumns);

  static constexpr int kGroup = 128;  ///< threads of a warpgroup
  static constexpr int kWeightWarp = 4, kXWarp = 5, kNormWarp = 6;
  static constexpr int kThreads = kGroup + 64 + (kNorm ? kGroup : 0);
  static constexpr int kRowBytes = 2 * kTmaColumns;
  static constexpr int kWeightBytes = kRows * kRowBytes;  ///< of a panel
  /// Panels of W under way at a time while the ring is filled: more only delay x.
  static constexpr int kUnderWay = std::max(2, 32 * 1024 / kWeightBytes);

  static constexpr int kReceivedBytes = (kSplit - 1) * kPushed * kGroup * 16;
  static constexpr int kSquaresBytes = kNorm ? kSplit * kTokens * 4 : 0;
  static constexpr int kAlignment = 1024;

  /// Bytes of x's panel: whole sets of 8 rows, as the swizzle has them.
  static constexpr int x_bytes(int num_tokens) { return (num_tokens + 7) / 8 * 8 * kRowBytes; }

  /// Bytes beside `stages` stages of the rings, for `panels` panels of K. Products read 64 rows of
  /// x, also where a panel has fewer: what lies behind it only reaches rows of y that there are not.
  static constexpr int other_bytes(int panels, int num_tokens, int stages) {
    const int behind = kReceivedBytes + kSquaresBytes + (kNorm ? panels * kRowBytes : 0);
    const int read = kTokens * kRowBytes - x_bytes(num_tokens);
    return std::max(behind, read) + (4 * stages + 1) * 8 + kAlignment;
  }
  static constexpr int shared_bytes(int panels, int num_tokens, int stages) {
    return stages * (kWeightBytes + x_bytes(num_tokens)) + other_bytes(panels, num_tokens, stages);
  }
};

/// What a launch says beside the tensor maps, by value.
template <class T, class Out>
struct MidMOperands {
  const T* norm;
  Out* y;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;  ///< columns of y
  std::int32_t k;
  std::int32_t panels;  ///< of a block
  std::int32_t stages;  ///< of the rings
  float eps;
  bool accumulate;
  bool y_pairs;     ///< y's pairs of columns are aligned as such
  NextStart start;  ///< of the next kernel
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A block's shared memory, and what its warps do with it.
template <class Block, class T, class Out>
struct MidMPart {
  static constexpr int kSums = Block::kRows / 2;  ///< of a thread of the products

  const MidMOperands<T, Out>& p;
  std::byte* weights;
  std::byte* x;
  float4* received;  ///< [other block][quad][thread]
  float* squares;    ///< [block][row of x]
  std::byte* norm;   ///< the norm's weights for this block's columns
  std::uint64_t* full_weights;
  std::uint64_t* full_x;
  std::uint64_t* normed;
  std::uint64_t* empty;
  std::uint64_t* complete;  ///< everything from the other blocks is here
  int x_bytes;
  int rank;          ///< in the cluster
  int first;         ///< column of y of the tile
  int first_column;  ///< of K of this block
  int panels;        ///< that this block has

  __device__ __forceinline__ MidMPart(const MidMOperands<T, Out>& operands, std::byte* shared)
      : p(operands), x_bytes(Block::x_bytes(operands.num_tokens)) {
    const std::uint32_t begin = shared_address(shared);
    weights =
        shared + ((begin + Block::kAlignment - 1) / Block::kAlignment * Block::kAlignment - begin);
    x = weights + p.stages * Block::kWeightBytes;
    std::byte* const behind = x + p.stages * x_bytes;
    received = reinterpret_cast<float4*>(behind);
    squares = reinterpret_cast<float*>(behind + Block::kReceivedBytes);
    norm = behind + Block::kReceivedBytes + Block::kSquaresBytes;
    const int bytes = max(Block::kReceivedBytes + Block::kSquaresBytes +
                              (Block::kNorm ? p.panels * Block::kRowBytes : 0),
                          Block::kTokens * Block::kRowBytes - x_bytes);
    full_weights = reinterpret_cast<std::uint64_t*>(behind + bytes);
    full_x = full_weights + p.stages;
    normed = full_x + p.stages;
    empty = normed + p.stages;
    complete = empty + p.stages;
    rank = static_cast<int>(blockIdx.x) % Block::kSplit;
    first = static_cast<int>(blockIdx.x) / Block::kSplit * Block::kColumns;
    first_column = rank * p.panels * kTmaColumns;
    const int columns_left = max(0, p.k - first_column);
    panels = min(p.panels, (columns_left + kTmaColumns - 1) / kTmaColumns);
  }

  /// By one thread.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(full_weights[i], 1);
      mbarrier_init(full_x[i], 1);
      mbarrier_init(normed[i], 4);
      mbarrier_init(empty[i], 4);
    }
    mbarrier_init(*complete, 1);
    mbarrier_init_fence();
    const int from_norm = Block::kNorm ? Block::kSplit * x_bytes / Block::kRowBytes * 4 : 0;
    mbarrier_arrive_expect(*complete, Block::kReceivedBytes + from_norm);
  }

  __device__ __forceinline__ void load_weights_panel(const CUtensorMap& map, int panel,
                                                     int stage) const {
    mbarrier_arrive_expect(full_weights[stage], Block::kWeightBytes);
    std::byte* const to = weights + stage * Block::kWeightBytes;
    const int column = first_column + panel * kTmaColumns;
    tma_load(to, map, {column, first}, full_weights[stage]);
    if constexpr (Block::kGated)
      tma_load(to + Block::kWeightBytes / 2, map, {column, p.n + first}, full_weights[stage]);
  }

  /// The part of the ring of W that may be under way at once. By one thread.
  __device__ __forceinline__ void start_weights(const CUtensorMap& map) const {
    const int count = min(min(p.stages, panels), Block::kUnderWay);
    for (int i = 0; i < count; ++i) load_weights_panel(map, i, i);
  }

  /// The rest of W.
  __device__ __forceinline__ void load_weights(const CUtensorMap& map) const {
    int i = min(p.stages, Block::kUnderWay);
    for (; i < min(p.stages, panels); ++i) {
      mbarrier_wait(full_weights[i - Block::kUnderWay], 0);
      load_weights_panel(map, i, i);
    }
    int stage = 0;
    std::uint32_t parity = 0;
    for (i = p.stages; i < panels; ++i) {
      mbarrier_wait(empty[stage], parity);
      load_weights_panel(map, i, stage);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  __device__ __forceinline__ void load_x(const CUtensorMap& map) const {
    int stage = 0;
    std::uint32_t parity = 1;
    for (int i = 0; i < panels; ++i) {
      if (i >= p.stages) mbarrier_wait(empty[stage], parity);
      mbarrier_arrive_expect(full_x[stage], static_cast<std::uint32_t>(x_bytes));
      tma_load(x + stage * x_bytes, map, {first_column + i * kTmaColumns, 0}, full_x[stage]);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  /// Starts copying the norm's weights; zeros beyond the last column. By 128 threads.
  __device__ __forceinline__ void start_norm(int thread) const {
    for (int i = thread; i < panels * 8; i += Block::kGroup) {
      const bool wanted = first_column + 8 * i < p.k;
      copy_async_16_or_zero(shared_address(norm + 16 * i),
                            p.norm + (wanted ? first_column + 8 * i : 0), wanted);
    }
    copy_async_commit();
  }

  /// Multiplies x by the norm's weights where it lies, and sends sums of its squares to all blocks.
  __device__ __forceinline__ void apply_norm(int thread) const {
    constexpr int kPasses = Block::kTokens / 16;
    const int row = thread / 8, num_rows = x_bytes / Block::kRowBytes;
    const int piece = thread % 8 ^ row % 8;  // of the row: the swizzle has it at thread % 8
    const std::uint32_t own = shared_address(x) + static_cast<std::uint32_t>(16 * thread);
    const std::uint32_t scales = shared_address(norm) + static_cast<std::uint32_t>(16 * piece);
    float sum[kPasses] = {};
    int stage = 0;
    std::uint32_t parity = 0;
    copy_async_wait<0>();
    named_barrier_sync<Block::kGroup>(1);
    for (int i = 0; i < panels; ++i) {
      const uint4 scale = load_from_shared(scales + i * Block::kRowBytes);
      mbarrier_wait(full_x[stage], parity);
      const std::uint32_t at = own + static_cast<std::uint32_t>(stage * x_bytes);
      uint4 v[kPasses];
#pragma unroll
      for (int j = 0; j < kPasses; ++j) {
        if (row + 16 * j < num_rows) v[j] = load_from_shared(at + j * 16 * Block::kRowBytes);
      }
#pragma unroll
      for (int j = 0; j < kPasses; ++j) {
        if (row + 16 * j >= num_rows) break;
        const auto add = [&](std::uint32_t pair) {
          const float2 value = unpack_pair<T>(pair);
          sum[j] = fmaf(value.x, value.x, sum[j]);
          sum[j] = fmaf(value.y, value.y, sum[j]);
        };
        add(v[j].x), add(v[j].y), add(v[j].z), add(v[j].w);
        v[j] = multiply_pairs(v[j], scale);
        asm volatile(
            "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + j * 16 * Block::kRowBytes),
            "r"(v[j].x), "r"(v[j].y), "r"(v[j].z), "r"(v[j].w)
            : "memory");
      }
      async_proxy_fence_shared();
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(normed[stage]);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int j = 0; j < kPasses; ++j) {
#pragma unroll
      for (int lanes = 1; lanes < 8; lanes *= 2)
        sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], lanes);
      const int to = thread % 8;
      if (to < Block::kSplit && row + 16 * j < num_rows) {
        push_cluster(
            cluster_address(shared_address(squares + rank * Block::kTokens + row + 16 * j), to),
            sum[j], cluster_address(shared_address(complete), to));
      }
    }
  }

  /// The products of this block's panels.
  __device__ __forceinline__ void multiply(float (&sum)[kSums]) const {
    int stage = 0, last = 0;
    std::uint32_t parity = 0;
    const bool refills = panels > p.stages;
    for (int i = 0; i < panels; ++i) {
      mbarrier_wait(full_weights[stage], parity);
      mbarrier_wait(Block::kNorm ? normed[stage] : full_x[stage], parity);
      wgmma_fence();
      const WgmmaOperand a = wgmma_operand(x + stage * x_bytes, 0);
      const WgmmaOperand b = wgmma_operand(weights + stage * Block::kWeightBytes, 0);
#pragma unroll
      for (int step = 0; step < 4; ++step)  // of 16 columns
        wgmma<T, true>(sum, a.plus(32 * step), b.plus(32 * step));
      wgmma_commit();
      if (refills) {
        wgmma_wait<1>();
        if (i > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(empty[last]);
      }
      last = stage;
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
  }

  /// The quad of thread `threadIdx.x` among its sums: columns 8 · set + 2t, 2t + 1 of rows g, g + 8.
  __device__ __forceinline__ static float4 quad(const float (&sum)[kSums], int set) {
    return {sum[4 * set], sum[4 * set + 1], sum[4 * set + 2], sum[4 * set + 3]};
  }
  /// Of the quads that block `owner` finishes, number i: its columns, then the ups for them.
  static constexpr int set_of(int owner, int i) {
    return i < Block::kOwned ? owner * Block::kOwned + i
                             : Block::kColumns / 8 + owner * Block::kOwned + i - Block::kOwned;
  }

  /// Sends other blocks the sums they finish; `total` gets all of this block's own, added up.
  __device__ __forceinline__ void exchange(const float (&sum)[kSums],
                                           float4 (&total)[Block::kPushed]) const {
    const int thread = static_cast<int>(threadIdx.x);
    const auto slot = [&](int owner, int from, int i) {
      const int place = from < owner ? from : from - 1;
      return received + (place * Block::kPushed + i) * Block::kGroup + thread;
    };
    float4 own[Block::kPushed];
#pragma unroll
    for (int owner = 0; owner < Block::kSplit; ++owner) {
      if (owner == rank) {
#pragma unroll
        for (int i = 0; i < Block::kPushed; ++i) own[i] = quad(sum, set_of(owner, i));
      } else {
        const std::uint32_t barrier = cluster_address(shared_address(complete), owner);
#pragma unroll
        for (int i = 0; i < Block::kPushed; ++i) {
          push_cluster_quad(cluster_address(shared_address(slot(owner, rank, i)), owner),
                            quad(sum, set_of(owner, i)), barrier);
        }
      }
    }
    mbarrier_wait_cluster(*complete, 0);
#pragma unroll
    for (int i = 0; i < Block::kPushed; ++i) {
      total[i] = {};
#pragma unroll
      for (int from = 0; from < Block::kSplit; ++from) {
        const float4 part = from == rank ? own[i] : *slot(rank, from, i);
        total[i] = from == 0 ? part
                             : float4{total[i].x + part.x, total[i].y + part.y, total[i].z + part.z,
                                      total[i].w + part.w};
      }
    }
  }

  /// Calls use(y's element, quad's element) for the outputs of this thread.
  template <class Use>
  __device__ __forceinline__ void each_output(const Use& use) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < Block::kOwned; ++i) {
      const int column = first + (rank * Block::kOwned + i) * 8 + 2 * t;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = static_cast<int>(threadIdx.x) / 32 * 16 + g + 8 * half;
        if (token < p.num_tokens && column < p.n)
          use(p.y + token * p.y_stride + column, i, half, column + 1 < p.n);
      }
    }
  }

  /// What is added to this thread's outputs: the old y.
  __device__ __forceinline__ void read_old(float4 (&old)[Block::kOwned]) const {
    each_output([&](const Out* y, int i, int half, bool both) {
      float2 v{};
      if constexpr (sizeof(Out) == 2) {
        if (p.y_pairs && both) {
          v = unpack_pair<Out>(*reinterpret_cast<const volatile std::uint32_t*>(y));
        } else {
          v.x = to_float(y[0]);
          if (both) v.y = to_float(y[1]);
        }
      } else {
        v.x = to_float(y[0]);
        if (both) v.y = to_float(y[1]);
      }
      (half == 0 ? old[i].x : old[i].z) = v.x;
      (half == 0 ? old[i].y : old[i].w) = v.y;
    });
  }

  /// 1 / rms of the thread's rows g and g + 8.
  __device__ __forceinline__ float2 scales() const {
    const int row =
        static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    float2 sum{};
#pragma unroll
    for (int from = 0; from < Block::kSplit; ++from) {
      sum.x += squares[from * Block::kTokens + row];
      sum.y += squares[from * Block::kTokens + row + 8];
    }
    const float inverse_k = 1.f / static_cast<float>(p.k);
    return {rsqrtf(sum.x * inverse_k + p.eps), rsqrtf(sum.y * inverse_k + p.eps)};
  }

  __device__ __forceinline__ void write(const float4 (&total)[Block::kPushed],
                                        const float4 (&old)[Block::kOwned]) const {
    float2 scale{1.f, 1.f};
    if constexpr (Block::kNorm) scale = scales();
    each_output([&](Out* y, int i, int half, bool both) {
      const float s = half == 0 ? scale.x : scale.y;
      const auto pick = [&](const float4& v) {
        return half == 0 ? float2{v.x, v.y} : float2{v.z, v.w};
      };
      float2 v = pick(total[i]);
      v = {v.x * s, v.y * s};
      if constexpr (Block::kGated) {
        const float2 up = pick(total[i + Block::kOwned]);
        v = {silu_of_sum(v.x) * s * up.x, silu_of_sum(v.y) * s * up.y};
      } else {
        const float2 before = pick(old[i]);
        v = {v.x + before.x, v.y + before.y};
      }
      if constexpr (sizeof(Out) == 2) {
        if (p.y_pairs && both) {
          *reinterpret_cast<std::uint32_t*>(y) = pack_pair<Out>(v.x, v.y);
          return;
        }
      }
      y[0] = from_float<Out>(v.x);
      if (both) y[1] = from_float<Out>(v.y);
    });
  }
};

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
    part.apply_norm(norm_thread);
  } else {
    grid_dependency_wait();
    float4 old[Block::kOwned] = {};
    if (!Block::kGated && p.accumulate) part.read_old(old);
    float sum[Part::kSums] = {};
    wgmma_hold(sum);
    part.multiply(sum);
    float4 total[Block::kPushed];
    part.exchange(sum, total);
    part.write(total, old);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: a cluster of kSplit blocks, along x, for each kColumns columns of y. Dynamic shared memory:
/// shared_bytes.
template <class T, class Out, int kRows, int kSplit, bool kNorm, bool kGated>
__global__ void __launch_bounds__(MidMBlock<kRows, kSplit, kNorm, kGated>::kThreads, 2)
    mid_m_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ MidMOperands<T, Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  mid_m_block<MidMBlock<kRows, kSplit, kNorm, kGated>, T, Out>(w_map, x_map, p);
#endif
}

}  // namespace nanovllm::cuda::detail
