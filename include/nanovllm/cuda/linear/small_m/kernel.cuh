#pragma once
/// The kernel of `small_m_linear` for up to 16 rows, alone or with a norm ahead or SwiGLU after;
/// and its products, which `hopper/linear/heads.cuh` has another end for.
///
///   y[m, n] = Σ_k a[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///   gated:  y[m, n] = silu(g[m, n]) · u[m, n] with [g | u] = a · Wᵀ, W [2 N, K], rounded once
///   a = x, or with a norm a[m, k] = x[m, k] · rsqrt(mean(x[m]²) + eps) · w[k]
///
/// x [M ≤ 16, K], 16-byte aligned rows;  W [N or 2 N, K] dense, 16-byte aligned, K a multiple of 8;
/// w [K], 16-byte aligned;  y [M, N], any alignment; T is bf16 or half, y is T or float; with
/// a norm or SwiGLU all are bf16.
///
/// A block owns `kTiles` tiles of 8 rows of W and all of K; of the gated form half of the tiles are
/// gate rows, the others the up rows of the same columns of y; of the form for heads, half are of
/// the first half of a head, the others of the second. Its warps split K: of each 256
/// columns, warp w takes columns 32 w … 32 w + 31. Since any order of k will do as long as both
/// operands agree, lane (g = lane / 4, t = lane % 4) takes the 16 bytes [g][8t … 8t + 7] of a tile
/// of W, or of 8 rows of x, as fragments of m16n8k16: four elements are k = 2t, 2t + 1, 2t + 8,
/// 2t + 9 of one product, the others of the next.
///
/// W comes to a ring in shared memory where every thread reads back what it alone copied, so that
/// nothing waits for another thread; x comes from L2 to registers. The ring is filled before the
/// kernel ahead has ended, because weights never change, and holds all that a block needs where
/// layers are small. What a thread reads of it lies in registers when x arrives.
///
/// The norm. The operand is round(x · w), and 1/rms is applied to the float32 sums. The squares are
/// summed beside them, as the diagonal of x · xᵀ, so that warps wait for each other once, at the
/// end. This rounds once less than `rms_norm` does. For bf16 alone: x · w could leave half's range.
///
/// Sums are in float32: along k in a warp, then over the warps in their order. That order depends
/// on k alone, so a row's result depends neither on M nor on the other rows, bit for bit, and is
/// the same for every tile size.
///
/// Bytes moved: W once; x once for each block (from L2); y once.
/// Measured: small_m_bench, cuda_small_m.json, a layer of 0.6B without attention 15.6 to 12.4 us (1
/// row), 26.0 to 18.3 (16).

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

/// Shapes of a block: `kTiles` tiles of 8 rows of W, `kGroups` groups of 8 rows of x (1 or 2).
template <int kTileCount, int kGroupCount, bool kHasNorm, WeightRows kForm>
struct SmallMBlock {
  static constexpr int kTiles = kTileCount;
  static constexpr int kGroups = kGroupCount;
  static constexpr bool kNorm = kHasNorm;
  static constexpr bool kGated = kForm == WeightRows::gated;
  static constexpr bool kPaired = kForm != WeightRows::plain;
  static_assert(kTiles == 1 || kTiles % 2 == 0);
  static_assert(kGroups == 1 || kGroups == 2);
  static_assert(!kPaired || kTiles % 2 == 0);
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 8 * kTiles;                     ///< rows of W
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kStep = 32;                             ///< columns a warp takes at a time
  static constexpr int kSpan = kWarps * kStep;               ///< columns the block takes at a time
  static constexpr int kStepBytes = kTiles * kThreads * 16;  ///< of W
  /// Steps in the ring; x is read as far ahead.
  static constexpr int kRing = kTiles == 1 ? 12 / kGroups : kTiles == 2 && !kNorm ? 8 / kGroups : 4;
  /// Steps of W that are in registers ahead of their products.
  static constexpr int kHeld = kTiles <= 2   ? (kRing % 4 == 0 ? 4 / kGroups : 3)
                               : kTiles == 4 ? 2 / kGroups
                                             : 1;
  /// Steps of W under way at a time while the ring is filled: more only delay x.
  static constexpr int kUnderWay = std::clamp(8 / kTiles, 1, kRing);
  /// Row length of the partial sums: the 8 tokens of a fragment fall into different banks.
  static constexpr int kPitch = kTiles == 1 ? kRows : kRows + 8;
  static constexpr int kOutputs = (8 * kGroups * kColumns + kThreads - 1) / kThreads;  ///< a thread
  static_assert(kRing % kHeld == 0);

  /// Of `num_steps` steps of K in all.
  static constexpr int shared_bytes(int num_steps, int num_tokens) {
    return std::min(kRing, num_steps) * kStepBytes + kWarps * num_tokens * (kPitch + kNorm) * 4;
  }
};

/// Operands by value. `k` is a multiple of 8.
template <class T, class Out>
struct SmallMOperands {
  const T* x;
  const T* norm;
  const T* weight;
  Out* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;  ///< columns of y
  std::int32_t k;
  std::int32_t pair_rows;  ///< from a gate to its up, or from one half of a head to the other
  float eps;
  bool accumulate;
  bool wait_first;  ///< kernels after this one may start only when the one ahead has ended
};

/// d += a · bᵀ over the 32 columns that two lanes' vectors each of a (rows g and g + 8) and one of
/// b (row g) stand for.
template <class T>
__device__ __forceinline__ void multiply_vectors(float (&d)[4], uint4 low, uint4 high, uint4 b) {
  const std::uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const std::uint32_t second[4] = {low.z, high.z, low.w, high.w};
  mma_m16n8k16<T>(d, first, b.x, b.y);
  mma_m16n8k16<T>(d, second, b.z, b.w);
}

/// One thread's part in a block's products.
template <class Block, class T>
struct SmallMPart {
  static constexpr int kTiles = Block::kTiles, kGroups = Block::kGroups;
  using Weights = uint4[kTiles];
  using Rows = uint4[kGroups];

  const T* weight;            ///< row g of the first tile, from column 8t of the warp's
  const T* x;                 ///< row g of x, from the same column
  const T* norm;              ///< from the same column
  std::int64_t tile_stride;   ///< from a tile of 8 rows of W to the next
  std::int64_t pair_stride;   ///< from a row of the first half of the tiles to its partner
  std::int64_t group_stride;  ///< from a group of 8 rows of x to the next
  std::uint32_t shared;       ///< this thread's first vector in the ring
  int rows_left;    ///< rows of W, of the first half if paired, from the thread's first on
  int tokens_left;  ///< rows of x from g on
  int k_left;       ///< columns from the thread's first on
  /// Of two tiles of W and a group of x; with one tile, of all rows of x and the tile.
  float sum[kTiles == 1 ? 1 : kTiles / 2 * kGroups][4] = {};
  float squares[kGroups][4] = {};

  template <class Out>
  __device__ __forceinline__ SmallMPart(const SmallMOperands<T, Out>& p, int first_row,
                                        const uint4* ring)
      : shared(shared_address(ring + threadIdx.x)) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const int column = threadIdx.x / 32 * Block::kStep + lane % 4 * 8;
    weight = p.weight + static_cast<std::int64_t>(first_row + g) * p.k + column;
    x = p.x + g * p.x_stride + column;
    norm = p.norm + column;
    tile_stride = 8 * static_cast<std::int64_t>(p.k);
    pair_stride = static_cast<std::int64_t>(Block::kGated ? p.n : p.pair_rows) * p.k;
    group_stride = 8 * p.x_stride;
    rows_left = p.n - first_row - g;
    tokens_left = p.num_tokens - g;
    k_left = p.k - column;
  }

  /// Starts copying a step of W to `slot` of the ring; zeros beyond the last column and row.
  __device__ __forceinline__ void copy_w(int slot, int step) const {
    const int column = step * Block::kSpan;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const bool is_second = Block::kPaired && r >= kTiles / 2;
      const int tile = is_second ? r - kTiles / 2 : r;
      const bool wanted = column < k_left && 8 * tile < rows_left;
      const T* const from = weight + tile * tile_stride + (is_second ? pair_stride : 0) + column;
      copy_async_16_or_zero<L2Fetch::bytes_256>(
          shared + slot * Block::kStepBytes + r * Block::kThreads * 16, from, wanted);
    }
  }

  __device__ __forceinline__ void read_w(Weights& w, int slot) const {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
      w[r] = load_from_shared(shared + slot * Block::kStepBytes + r * Block::kThreads * 16);
  }

  __device__ __forceinline__ void load_x(Rows& to, int step) const {
    const int column = step * Block::kSpan;
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      to[i] = load_16_or_zero<Through::l2>(x + i * group_stride + column,
                                           8 * i < tokens_left && column < k_left);
  }

  __device__ __forceinline__ uint4 load_norm(int step) const {
    const int column = step * Block::kSpan;
    return load_16_or_zero<Through::l1_and_l2>(norm + column, Block::kNorm && column < k_left);
  }

  /// Adds a step's products. What stands for missing rows of x, even NaN, only reaches missing rows
  /// of y.
  __device__ __forceinline__ void multiply(const Weights& w, const Rows& rows, uint4 scale) {
    uint4 v[2] = {};
#pragma unroll
    for (int i = 0; i < kGroups; ++i) v[i] = rows[i];
    if constexpr (Block::kNorm) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) multiply_vectors<T>(squares[i], v[0], v[1], v[i]);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) v[i] = multiply_pairs(v[i], scale);
    }
    if constexpr (kTiles == 1) {
      multiply_vectors<T>(sum[0], v[0], v[1], w[0]);
    } else {
#pragma unroll
      for (int r = 0; r < kTiles / 2; ++r) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i)
          multiply_vectors<T>(sum[r * kGroups + i], w[2 * r], w[2 * r + 1], v[i]);
      }
    }
  }

  /// Writes the sums to sums[warp][token][row] and the squares to squares_of[warp][token].
  __device__ __forceinline__ void store(float* sums, float* squares_of, int num_tokens) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first = static_cast<int>(threadIdx.x) / 32 * num_tokens;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if constexpr (kTiles == 1) {
        if (8 * i < tokens_left) {
          *reinterpret_cast<float2*>(&sums[(first + 8 * i + g) * Block::kPitch + 2 * t]) = {
              sum[0][2 * i], sum[0][2 * i + 1]};
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int token = 8 * i + 2 * t + j;
          if (token >= num_tokens) continue;
#pragma unroll
          for (int r = 0; r < kTiles / 2; ++r) {
            float* const to = &sums[(first + token) * Block::kPitch + 16 * r + g];
            to[0] = sum[r * kGroups + i][j];
            to[8] = sum[r * kGroups + i][j + 2];
          }
        }
      }
      if constexpr (Block::kNorm) {  // the diagonal
        const float* const pair = squares[i] + 2 * i;
        if (8 * i < tokens_left && t == g / 2)
          squares_of[first + 8 * i + g] = g % 2 == 0 ? pair[0] : pair[1];
      }
    }
  }
};

/// What the warps of a block have summed up, in shared memory.
template <class Block>
struct SmallMSums {
  const float* sums;     ///< [warp][token][kPitch]
  const float* squares;  ///< [warp][token]
  int num_tokens;

  /// Of one of the block's rows of W, before the scale.
  __device__ __forceinline__ float of(int token, int row) const {
    return add_up(sums + token * Block::kPitch + row, num_tokens * Block::kPitch);
  }
  /// 1 / rms of a row of x.
  __device__ __forceinline__ float scale(int token, int k, float eps) const {
    return rsqrtf(add_up(squares + token, num_tokens) / static_cast<float>(k) + eps);
  }

 private:
  static __device__ __forceinline__ float add_up(const float* from, int stride) {
    float total = 0.f;
#pragma unroll
    for (int warp = 0; warp < Block::kWarps; ++warp) total += from[warp * stride];
    return total;
  }
};

/// The block's products, of the tiles from row `first` of W on; waits for the kernel ahead and lets
/// the next one start. Calls `load_ahead()` when x is on its way: for what is wanted after the
/// products and is not to be waited for there. `shared` has shared_bytes: the ring, then the sums
/// of each warp.
template <class Block, class T, class Out, class LoadAhead>
__device__ __forceinline__ SmallMSums<Block> small_m_products(const SmallMOperands<T, Out>& p,
                                                              int first, uint4* shared,
                                                              const LoadAhead& load_ahead) {
  using Part = SmallMPart<Block, T>;
  constexpr int kRing = Block::kRing, kHeld = Block::kHeld;
  if (!p.wait_first) grid_dependency_launch();
  const int num_steps = (p.k + Block::kSpan - 1) / Block::kSpan;
  Part part(p, first, shared);
#pragma unroll
  for (int j = 0; j < kRing; ++j) {
    if (j >= Block::kUnderWay) copy_async_wait<Block::kUnderWay - 1>();
    if (j < num_steps) part.copy_w(j, j);
    copy_async_commit();
  }
  uint4 scale[kRing];
#pragma unroll
  for (int j = 0; j < kRing; ++j) scale[j] = part.load_norm(j);

  grid_dependency_wait();
  if (p.wait_first) grid_dependency_launch();
  typename Part::Rows x[kRing];
#pragma unroll
  for (int j = 0; j < kRing; ++j) part.load_x(x[j], j);
  load_ahead();

  typename Part::Weights w[kHeld];
  copy_async_wait<kRing - kHeld>();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j < num_steps) part.read_w(w[j], j);
  }
  const bool refills = num_steps > kRing;
  for (int begin = 0; begin < num_steps; begin += kRing) {
#pragma unroll
    for (int j = 0; j < kRing; ++j) {
      if (begin + j >= num_steps) break;
      part.multiply(w[j % kHeld], x[j], scale[j]);
      if (refills) {
        if (begin + j + kRing < num_steps) part.copy_w(j, begin + j + kRing);
        part.load_x(x[j], begin + j + kRing);
        scale[j] = part.load_norm(begin + j + kRing);
      }
      copy_async_commit();
      copy_async_wait<kRing - kHeld>();
      if (begin + j + kHeld < num_steps) part.read_w(w[j % kHeld], (j + kHeld) % kRing);
    }
  }
  float* const sums =
      reinterpret_cast<float*>(shared + min(kRing, num_steps) * (Block::kStepBytes / 16));
  float* const squares = sums + Block::kWarps * p.num_tokens * Block::kPitch;
  part.store(sums, squares, p.num_tokens);
  __syncthreads();
  return {sums, squares, p.num_tokens};
}

/// Grid: a block for each kColumns columns of y. Dynamic shared memory: shared_bytes.
template <class T, class Out, int kTiles, int kGroups, bool kNorm, WeightRows kForm>
__global__ void __launch_bounds__(SmallMBlock<kTiles, kGroups, kNorm, kForm>::kThreads, 2)
    small_m_kernel(const SmallMOperands<T, Out> p) {
  using Block = SmallMBlock<kTiles, kGroups, kNorm, kForm>;
  static_assert(kForm != WeightRows::heads);
  extern __shared__ uint4 small_m_shared_ring[];
  const int first = static_cast<int>(blockIdx.x) * Block::kColumns;
  float out[Block::kOutputs];
  const auto load_old_y = [&] {
#pragma unroll
    for (int i = 0; i < Block::kOutputs; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * Block::kThreads;
      const int token = index / Block::kColumns, column = first + index % Block::kColumns;
      out[i] = 0.f;
      if (!Block::kGated && p.accumulate && token < p.num_tokens && column < p.n)
        out[i] = to_float(p.y[token * p.y_stride + column]);
    }
  };
  const auto sums = small_m_products<Block>(p, first, small_m_shared_ring, load_old_y);

#pragma unroll
  for (int i = 0; i < Block::kOutputs; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * Block::kThreads;
    const int token = index / Block::kColumns, column = index % Block::kColumns;
    if (token >= p.num_tokens || first + column >= p.n) continue;
    float result = sums.of(token, column), scale = 1.f;
    if constexpr (kNorm) {
      scale = sums.scale(token, p.k, p.eps);
      result *= scale;
    }
    if constexpr (Block::kGated) {
      result = silu<T>(result) * scale * sums.of(token, column + Block::kColumns);
    } else {
      result += out[i];
    }
    p.y[token * p.y_stride + first + column] = from_float<Out>(result);
  }
}

}  // namespace nanovllm::cuda::detail
