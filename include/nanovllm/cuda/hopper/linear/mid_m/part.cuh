#pragma once
/// One block of the kernel in mid_m_linear.cuh: its shared memory, and what each warp does with it.
/// Longer than 400 lines: all roles of warps share the rings and barriers of one block.

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/hopper/linear/mid_m/block.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A block's shared memory, and what its warps do with it.
template <class Block, class T, class Out>
struct MidMPart {
  static constexpr int kSums = Block::kRows / 2;           ///< of a thread of the products
  static constexpr int kNormPasses = Block::kTokens / 16;  ///< of the norm's threads over a panel

  const MidMOperands<T, Out>& p;
  std::byte* weights;
  std::byte* x;
  float* stage_scales;  ///< of the stages, where operands have them
  float4* received;     ///< [other block][quad][thread]
  float* squares;       ///< [block][row of x]
  std::byte* norm;      ///< the norm's weights for this block's columns
  std::uint64_t* full_weights;
  std::uint64_t* full_x;
  std::uint64_t* normed;
  std::uint64_t* empty;
  std::uint64_t* complete;  ///< everything from the other blocks is here
  int x_bytes;              ///< of a stage
  int x_panel_bytes;
  int rank;          ///< in the cluster
  int first;         ///< column of y of the tile
  int first_column;  ///< of K of this block
  int panels;        ///< that this block has
  int fills;         ///< of stages, by which they come

  __device__ __forceinline__ MidMPart(const MidMOperands<T, Out>& operands, std::byte* shared)
      : p(operands),
        x_bytes(Block::x_bytes(operands.num_tokens)),
        x_panel_bytes(Block::x_panel_bytes(operands.num_tokens)) {
    const std::uint32_t begin = shared_address(shared);
    weights =
        shared + ((begin + Block::kAlignment - 1) / Block::kAlignment * Block::kAlignment - begin);
    x = weights + p.stages * Block::kWeightBytes;
    stage_scales = reinterpret_cast<float*>(x + p.stages * x_bytes);
    std::byte* const behind = x + p.stages * (x_bytes + Block::kScaleBytes);
    received = reinterpret_cast<float4*>(behind);
    squares = reinterpret_cast<float*>(behind + Block::kReceivedBytes);
    norm = behind + Block::kReceivedBytes + Block::kSquaresBytes;
    const int bytes = max(Block::kReceivedBytes + Block::kSquaresBytes +
                              (Block::kNorm ? p.panels * Block::kRowBytes : 0),
                          Block::kTokens * Block::kRowBytes - x_panel_bytes);
    full_weights = reinterpret_cast<std::uint64_t*>(behind + bytes);
    full_x = full_weights + p.stages;
    normed = full_x + p.stages;
    empty = normed + p.stages;
    complete = empty + p.stages;
    rank = static_cast<int>(blockIdx.x) % Block::kSplit;
    first = static_cast<int>(blockIdx.x) / Block::kSplit * Block::kColumns;
    first_column = rank * p.panels * Block::kPanelColumns;
    const int columns_left = max(0, p.k - first_column);
    panels = min(p.panels, (columns_left + Block::kPanelColumns - 1) / Block::kPanelColumns);
    fills = (panels + Block::kPanels - 1) / Block::kPanels;
  }

  /// By one thread.
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(full_weights[i], 1);
      mbarrier_init(full_x[i], 1);
      mbarrier_init(normed[i], 4);
      mbarrier_init(empty[i], 4);
    }
    mbarrier_init(*complete, Block::kSplit == 1 ? Block::kGroup / 8 : 1);
    mbarrier_init_fence();
    if constexpr (Block::kSplit > 1) {
      const int from_norm = Block::kNorm ? Block::kSplit * x_panel_bytes / Block::kRowBytes * 4 : 0;
      mbarrier_arrive_expect(*complete, Block::kReceivedBytes + from_norm);
    }
  }

  /// A copy of a stage's panels, from fill `i` of this block and row `row` on; where a stage has
  /// several, panels are a dimension of the map.
  __device__ __forceinline__ void load_panels(std::byte* to, const CUtensorMap& map, int i, int row,
                                              std::uint64_t& full) const {
    if constexpr (Block::kPanels == 1) {
      tma_load(to, map, {first_column + i * Block::kPanelColumns, row}, full);
    } else {
      tma_load(to, map, {0, row, first_column / Block::kPanelColumns + i * Block::kPanels}, full);
    }
  }

  /// Of operands that have scales.
  [[nodiscard]] __device__ __forceinline__ auto scale_ring() const {
    return typename MidMScales<T>::template Ring<Block>{p.scales, stage_scales, first, p.n,
                                                        first_column / Block::kPanelColumns};
  }

  __device__ __forceinline__ void fill_weights(const CUtensorMap& map, int i, int stage) const {
    static_assert(!Block::kGated || Block::kPanels == 1);
    int bytes = Block::kWeightBytes;
    if constexpr (MidMScales<T>::kAreThere) bytes += scale_ring().weight_bytes();
    mbarrier_arrive_expect(full_weights[stage], static_cast<std::uint32_t>(bytes));
    if constexpr (MidMScales<T>::kAreThere)
      scale_ring().load_weights(i, stage, full_weights[stage]);
    std::byte* const to = weights + stage * Block::kWeightBytes;
    load_panels(to, map, i, first, full_weights[stage]);
    if constexpr (Block::kGated)
      load_panels(to + Block::kWeightBytes / 2, map, i, p.n + first, full_weights[stage]);
  }

  /// The part of the ring of W that may be under way at once. By one thread.
  __device__ __forceinline__ void start_weights(const CUtensorMap& map) const {
    const int count = min(min(p.stages, fills), Block::kUnderWay);
    for (int i = 0; i < count; ++i) fill_weights(map, i, i);
  }

  /// The rest of W.
  __device__ __forceinline__ void load_weights(const CUtensorMap& map) const {
    int i = min(p.stages, Block::kUnderWay);
    for (; i < min(p.stages, fills); ++i) {
      mbarrier_wait(full_weights[i - Block::kUnderWay], 0);
      fill_weights(map, i, i);
    }
    int stage = 0;
    std::uint32_t parity = 0;
    for (i = p.stages; i < fills; ++i) {
      mbarrier_wait(empty[stage], parity);
      fill_weights(map, i, stage);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  __device__ __forceinline__ void load_x(const CUtensorMap& map) const {
    int stage = 0;
    std::uint32_t parity = 1;
    for (int i = 0; i < fills; ++i) {
      if (i >= p.stages) mbarrier_wait(empty[stage], parity);
      int bytes = x_bytes;
      if constexpr (MidMScales<T>::kAreThere) bytes += 4 * (x_panel_bytes / Block::kRowBytes);
      mbarrier_arrive_expect(full_x[stage], static_cast<std::uint32_t>(bytes));
      if constexpr (MidMScales<T>::kAreThere)
        scale_ring().load_x(i, stage, x_panel_bytes / Block::kRowBytes, full_x[stage]);
      load_panels(x + stage * x_bytes, map, i, 0, full_x[stage]);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
  }

  /// Starts copying the norm's weights; zeros beyond the last column. By 128 threads.
  __device__ __forceinline__ void start_norm(int thread) const {
    for (int i = thread; i < fills * Block::kPanels * 8; i += Block::kGroup) {
      const bool wanted = first_column + 8 * i < p.k;
      copy_async_16_or_zero(shared_address(norm + 16 * i),
                            p.norm + (wanted ? first_column + 8 * i : 0), wanted);
    }
    copy_async_commit();
  }

  /// The same for the thread's pieces of a panel, from shared address `at` on.
  __device__ __forceinline__ void apply_norm_to_panel(std::uint32_t scale_at, std::uint32_t at,
                                                      int row, float (&sum)[kNormPasses]) const {
    const int num_rows = x_panel_bytes / Block::kRowBytes;
    const uint4 scale = load_from_shared(scale_at);
    uint4 v[kNormPasses];
#pragma unroll
    for (int j = 0; j < kNormPasses; ++j) {
      if (row + 16 * j < num_rows) v[j] = load_from_shared(at + j * 16 * Block::kRowBytes);
    }
#pragma unroll
    for (int j = 0; j < kNormPasses; ++j) {
      if (row + 16 * j >= num_rows) break;
      const auto add = [&](std::uint32_t pair) {
        const float2 value = unpack_pair<T>(pair);
        sum[j] = fmaf(value.x, value.x, sum[j]);
        sum[j] = fmaf(value.y, value.y, sum[j]);
      };
      add(v[j].x), add(v[j].y), add(v[j].z), add(v[j].w);
      v[j] = multiply_pairs(v[j], scale);
      store_to_shared(at + j * 16 * Block::kRowBytes, v[j]);
    }
  }

  /// Multiplies x by the norm's weights where it lies, and sends sums of its squares to all blocks.
  __device__ __forceinline__ void apply_norm(int thread) const {
    const int row = thread / 8, num_rows = x_panel_bytes / Block::kRowBytes;
    const int piece = thread % 8 ^ row % 8;  // of the row: the swizzle has it at thread % 8
    const std::uint32_t own = shared_address(x) + static_cast<std::uint32_t>(16 * thread);
    const std::uint32_t scales = shared_address(norm) + static_cast<std::uint32_t>(16 * piece);
    float sum[kNormPasses] = {};
    int stage = 0;
    std::uint32_t parity = 0;
    copy_async_wait<0>();
    named_barrier_sync<Block::kGroup>(1);
    for (int i = 0; i < fills; ++i) {
      mbarrier_wait(full_x[stage], parity);
#pragma unroll
      for (int panel = 0; panel < Block::kPanels; ++panel)
        apply_norm_to_panel(
            scales + (i * Block::kPanels + panel) * Block::kRowBytes,
            own + static_cast<std::uint32_t>(stage * x_bytes + panel * x_panel_bytes), row, sum);
      async_proxy_fence_shared();
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(normed[stage]);
      if (++stage == p.stages) stage = 0, parity ^= 1;
    }
#pragma unroll
    for (int j = 0; j < kNormPasses; ++j) {
#pragma unroll
      for (int lanes = 1; lanes < 8; lanes *= 2)
        sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], lanes);
      const int to = thread % 8;
      if (to >= Block::kSplit || row + 16 * j >= num_rows) continue;
      float* const square = squares + rank * Block::kTokens + row + 16 * j;
      if constexpr (Block::kSplit == 1) {
        *square = sum[j];
      } else {
        push_cluster(cluster_address(shared_address(square), to), sum[j],
                     cluster_address(shared_address(complete), to));
      }
    }
    if constexpr (Block::kSplit == 1) {
      if (thread % 8 == 0) mbarrier_arrive(*complete);
    }
  }

  /// The products of this block's panels.
  __device__ __forceinline__ void multiply(float (&sum)[kSums]) const {
    int stage = 0, last = 0;
    std::uint32_t parity = 0;
    const bool refills = fills > p.stages;
    for (int i = 0; i < fills; ++i) {
      mbarrier_wait(full_weights[stage], parity);
      mbarrier_wait(Block::kNorm ? normed[stage] : full_x[stage], parity);
      wgmma_fence();
      const WgmmaOperand a = wgmma_operand(x + stage * x_bytes, 0);
      const WgmmaOperand b = wgmma_operand(weights + stage * Block::kWeightBytes, 0);
#pragma unroll
      for (int panel = 0; panel < Block::kPanels; ++panel) {
#pragma unroll
        for (int step = 0; step < 4; ++step)  // of 16 columns
          wgmma<T, true>(sum, a.plus(panel * x_panel_bytes + 32 * step),
                         b.plus(panel * Block::kPanelBytes + 32 * step));
      }
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

  /// The quad of thread `threadIdx.x` among its sums: columns 8 · set + 2t, 2t + 1 of rows g, g +
  /// 8.
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
    if constexpr (Block::kSplit == 1) {
#pragma unroll
      for (int i = 0; i < Block::kPushed; ++i) total[i] = quad(sum, set_of(0, i));
      if constexpr (Block::kNorm) mbarrier_wait(*complete, 0);
      return;
    }
    const int thread = static_cast<int>(threadIdx.x);
    const auto slot = [&](int owner, int from, int i) {
      const int place = from < owner ? from : from - 1;
      return received + (place * Block::kPushed + i) * Block::kGroup + thread;
    };
    float4 own[Block::kPushed];
#pragma unroll
    for (int owner = 0; owner < Block::kSplit; ++owner) {
      const std::uint32_t barrier = cluster_address(shared_address(complete), owner);
#pragma unroll
      for (int i = 0; i < Block::kPushed; ++i) {
        // Read here, not where `owner == rank` is known: there the compiler takes rank for the
        // index, and the sums, which then have to lie in memory, hold up the products.
        const float4 part = quad(sum, set_of(owner, i));
        if (owner == rank) {
          own[i] = part;
        } else {
          push_cluster_quad(cluster_address(shared_address(slot(owner, rank, i)), owner), part,
                            barrier);
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
        if constexpr (MidMScales<
                          T>::kAreThere)  // rounds as the ops do that other numbers of rows run by
          v = {MidMScales<T>::template swiglu<Out>(v.x, up.x),
               MidMScales<T>::template swiglu<Out>(v.y, up.y)};
        else
          v = {silu<Out>(v.x) * s * up.x, silu<Out>(v.y) * s * up.y};
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

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
