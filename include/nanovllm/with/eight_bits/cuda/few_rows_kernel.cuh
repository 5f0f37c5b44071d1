#pragma once
/// The kernel of `fp8_few_rows`; and its products, which ops.cuh has another end for.
///
///   y[m, n] = Σ_g s[g, n] · Σ_k∈g a[m, k] · W[n, k]   (+ y[m, n] ahead of the rounding)
///   gated:  y[m, n] = silu(g[m, n]) · u[m, n] with [g | u] = a · Wᵀ, W [2 N, K], rounded once
///   a = x, or with a norm a[m, k] = x[m, k] · w[k], and the sums times rsqrt(mean(x[m]²) + eps)
///
/// x [M ≤ 16, K], W [N or 2 N, K] an Fp8View, w [K] and y [M, N], of bf16 or float, have any
/// alignment; x and w are read fast where they are 16-byte aligned. g are groups of 128 columns.
///
/// A block owns all of K and tiles of 16 rows of W; in the gated form a tile is 8 gate rows and the
/// up rows of the same columns of y. Of each 512 or 1024 columns a warp takes 128, which have one
/// scale a row. Lane (g = lane / 4, t = lane % 4) reads bytes [64 h + 16 t, + 16) of rows g and g +
/// 8 of a tile straight to registers, two such steps ahead. It reads the same columns of row g of x
/// from shared memory; any order of k will do as long as both agree. Elements become bf16 in units
/// of 2^-120 by a shift (elements.cuh), and x is multiplied by 2^64, so that products stay normal
/// numbers; |x| must be below 2^63. x · w is rounded once.
///
/// A warp copies its columns of x to shared memory row by row, through L1. All blocks read the same
/// of x at nearly the same time: past L1 a layer of 8 rows takes 20 to 30% longer, and one with a
/// norm seven times as long where each lane copies for itself (H100).
///
/// The order of summation depends on W's extents and on the device alone: a row's result depends
/// neither on M nor on the other rows, bit for bit.
///
/// Bytes moved: W once, N K, and its scales, N K / 32; x once for each block, from L2; y once.
/// Measured: fp8_linear_bench, cuda_fp8_h200.json, gate_up of 8B with norm and SwiGLU in 31.7 us,
/// 3.28 TB/s (1 row); a step of 8B 4.11 to 2.89 ms (engine_bench, cuda_fp8_one_call_h200.json).

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"

namespace nanovllm::cuda::detail {

/// Shapes of a block: `kWarps` warps share K, `kTiles` tiles of 16 rows of W, `kGroups` groups of 8
/// rows of x (1 or 2).
template <int kWarpCount, int kTileCount, int kGroupCount, bool kHasNorm, WeightRows kForm>
struct Fp8FewRowsBlock {
  static constexpr int kTiles = kTileCount;
  static constexpr int kGroups = kGroupCount;
  static constexpr bool kNorm = kHasNorm;
  static constexpr bool kGated = kForm == WeightRows::gated;
  static constexpr bool kPaired = kForm != WeightRows::plain;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kTiles;                    ///< of W
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kTokens = 8 * kGroups;
  static constexpr int kSpan = kWarps * static_cast<int>(kFp8Group);  ///< columns of a step
  static constexpr int kHalves = 2;  ///< of a warp's columns: 16 bytes of W a lane and row
  static constexpr int kRowVectors = static_cast<int>(kFp8Group) / 8;  ///< of x of a warp, 16 bytes
  static constexpr int kRowBytes = kRowVectors * 16 + 16;  ///< two rows fall into different banks
  static constexpr int kStageBytes = (kTokens + (kNorm ? 1 : 0)) * kRowBytes;  ///< of a warp
  static constexpr int kWarpBytes = 2 * kStageBytes;
  static constexpr int kPitch = kRows + 4;  ///< of the sums in shared memory, in floats
  static constexpr int kXBytes = kWarps * kWarpBytes;
  static constexpr int kSumBytes = kWarps * kTokens * kPitch * 4;
  static constexpr int kSharedBytes = kXBytes + kSumBytes + kWarps * kTokens * 4;
  static constexpr int kOutputs = ceil_div(kTokens * kColumns, kThreads);  ///< of a thread
  /// As many as registers have room for.
  static constexpr int kWarpsPerSm = kTiles * kGroups == 4 ? 8 : kNorm && kGroups == 2 ? 12 : 16;
  static constexpr int kBlocksPerSm = kWarpsPerSm / kWarps;
};

template <Element Out>
struct Fp8FewRowsOperandsOf {
  const bf16* x;
  const bf16* norm;
  const fp8_e4m3* weight;
  const float* scales;
  Out* y;
  std::int64_t x_stride, y_stride, weight_stride, scale_stride;
  std::int32_t num_tokens;
  std::int32_t n;  ///< columns of y
  std::int32_t k;
  std::int32_t pair_rows;  ///< from a gate to its up, or from one half of a head to the other
  float eps;
  bool accumulate;
  bool whole;  ///< rows of x and the norm's weights are whole aligned vectors
};

/// One thread's part in a block's products.
template <class Block>
struct Fp8FewRowsPart {
  static constexpr int kTiles = Block::kTiles, kGroups = Block::kGroups;
  /// A step of W: rows g and g + 8 of each tile, in both halves of the columns, and their scales.
  struct Weights {
    uint4 w[Block::kHalves][kTiles][2];
    float scale[kTiles][2];
  };

  const fp8_e4m3* weight;  ///< row g of the first tile, from the thread's first column on
  const float* scales;     ///< of row g and the warp's first group of columns
  std::int64_t tile_rows;  ///< rows of W from a tile to the next
  std::int64_t pair_rows;  ///< from a row to its partner in the tile
  std::int64_t weight_stride, scale_step;
  const bf16* x;     ///< what this lane copies of the first row of x, or of the second
  const bf16* norm;  ///< what it copies of the norm's weights
  std::int64_t x_stride;
  std::uint32_t x_shared;  ///< the warp's part of shared memory
  int rows_left;           ///< columns of y from the thread's first on
  int tokens_left;         ///< rows of x from the first that this lane copies
  int k_left;              ///< columns from the warp's first of this step on
  int copy_column;         ///< from there to what this lane copies
  bool whole;
  float sum[kTiles][kGroups][4] = {};
  float squares[kGroups] = {};

  template <Element Out>
  __device__ __forceinline__ Fp8FewRowsPart(const Fp8FewRowsOperandsOf<Out>& p, int first,
                                            const uint4* shared)
      : weight_stride(p.weight_stride),
        scale_step(Block::kWarps * p.scale_stride),
        x_stride(p.x_stride),
        whole(p.whole) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int g = lane / 4, t = lane % 4, column = warp * static_cast<int>(kFp8Group);
    weight = p.weight + (first + g) * p.weight_stride + column + 16 * t;
    scales = p.scales + warp * p.scale_stride + first + g;
    tile_rows = Block::kPaired ? 8 : 16;
    pair_rows = Block::kPaired ? p.pair_rows : 8;
    rows_left = p.n - first - g;
    copy_column = lane % Block::kRowVectors * 8;
    x = p.x + lane / Block::kRowVectors * p.x_stride + column + copy_column;
    norm = p.norm + column + copy_column;
    tokens_left = p.num_tokens - lane / Block::kRowVectors;
    k_left = p.k - column;
    x_shared = shared_address(shared) + static_cast<std::uint32_t>(warp * Block::kWarpBytes);
  }

  /// Loads W of the step `ahead` steps on; zeros beyond the last column and row.
  __device__ __forceinline__ void load_w(Weights& to, int ahead) const {
    const bool has_columns = ahead * Block::kSpan < k_left;  // W has zeros after the last one
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t row = r * tile_rows + i * pair_rows;
        const int of_y = Block::kPaired ? 8 * r : 16 * r + 8 * i;
        const bool wanted = has_columns && of_y < rows_left;
        const fp8_e4m3* const from = weight + row * weight_stride + ahead * Block::kSpan;
#pragma unroll
        for (int h = 0; h < Block::kHalves; ++h)
          to.w[h][r][i] = load_weight_or_zero(from + 64 * h, wanted);
        to.scale[r][i] = load_scale(scales + row + ahead * scale_step, wanted);
      }
    }
  }

  /// Starts copying the warp's columns of x of the step `ahead` steps on to half `half` of its
  /// shared memory; zeros beyond the last column. A row is 16 vectors, a lane each.
  __device__ __forceinline__ void copy_x(int half, int ahead) const {
    constexpr int kRowsAtOnce = 32 / Block::kRowVectors;
    const int count = min(max(k_left - ahead * Block::kSpan - copy_column, 0), 8);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / Block::kRowVectors, vector = lane % Block::kRowVectors;
#pragma unroll
    for (int j = 0; j < Block::kTokens / kRowsAtOnce; ++j) {
      if (kRowsAtOnce * j < tokens_left)
        copy(x_vector(half, kRowsAtOnce * j + row, vector),
             x + kRowsAtOnce * j * x_stride + ahead * Block::kSpan, count);
    }
    if (Block::kNorm && row == 0)
      copy(x_vector(half, Block::kTokens, vector), norm + ahead * Block::kSpan, count);
    copy_async_commit();
  }

  /// Adds the products of this step, whose x is in half `half`. What stands for missing rows of x,
  /// even NaN, only reaches missing rows of y.
  __device__ __forceinline__ void multiply(const Weights& of, int half) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    float part[kTiles][kGroups][4] = {};
    __syncwarp();  // what other lanes have copied is there
#pragma unroll
    for (int h = 0; h < Block::kHalves; ++h) {
      std::uint32_t b[kGroups][8];
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int vector = 8 * h + 2 * t + v;
        uint4 weights = {};
        if constexpr (Block::kNorm)
          weights = load_from_shared(x_vector(half, Block::kTokens, vector));
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          uint4 a = load_from_shared(x_vector(half, 8 * i + g, vector));
          if constexpr (Block::kNorm) {
            float values[8];
            unpack<bf16>(a, values);
#pragma unroll
            for (const float value : values) squares[i] = __fmaf_rn(value, value, squares[i]);
            a = multiply_pairs(a, weights);
          }
          constexpr std::uint32_t kUp = 0x5f805f80u;  // two of 2^64
          b[i][4 * v] = multiply_pairs(a.x, kUp), b[i][4 * v + 1] = multiply_pairs(a.y, kUp);
          b[i][4 * v + 2] = multiply_pairs(a.z, kUp), b[i][4 * v + 3] = multiply_pairs(a.w, kUp);
        }
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        const uint4 low = of.w[h][r][0], high = of.w[h][r][1];
        const std::uint32_t lows[4] = {low.x, low.y, low.z, low.w};
        const std::uint32_t highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          std::uint32_t a[4];
          small_bf16_of(lows[j], a[0], a[2]);
          small_bf16_of(highs[j], a[1], a[3]);
#pragma unroll
          for (int i = 0; i < kGroups; ++i)
            mma_m16n8k16<bf16>(part[r][i], a, b[i][2 * j], b[i][2 * j + 1]);
        }
      }
    }
    __syncwarp();  // all lanes have read
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sum[r][i][e] = __fmaf_rn(part[r][i][e], of.scale[r][e / 2], sum[r][i][e]);
      }
    }
  }

  /// Goes on to the next step.
  __device__ __forceinline__ void advance() {
    weight += Block::kSpan, scales += scale_step;
    x += Block::kSpan, norm += Block::kSpan;
    k_left -= Block::kSpan;
  }

  /// Writes the sums to sums[token][row], and with a norm those of squares to square_sums[token].
  __device__ __forceinline__ void store(float (*sums)[Block::kPitch], float* square_sums) const {
    constexpr float kUnit = kE4m3Unit * 0x1p-64f;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sums[8 * i + 2 * t + e % 2][16 * r + 8 * (e / 2) + g] = sum[r][i][e] * kUnit;
      }
    }
    if constexpr (Block::kNorm) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const float total = warp_sum<4>(squares[i]);
        if (t == 0) square_sums[8 * i + g] = total;
      }
    }
  }

 private:
  [[nodiscard]] __device__ __forceinline__ std::uint32_t x_vector(int half, int row,
                                                                  int vector) const {
    return x_shared + static_cast<std::uint32_t>(half * Block::kStageBytes +
                                                 row * Block::kRowBytes + vector * 16);
  }

  /// `count` elements and zeros after them.
  __device__ __forceinline__ void copy(std::uint32_t to, const bf16* from, int count) const {
    if (whole) {
      copy_async_16_or_zero_by_l1(to, from, count > 0);
    } else {
      store_to_shared(to, count > 0 ? load_first<false>(from, count) : uint4{});
    }
  }

  /// Not the non-coherent load: see load.cuh.
  [[nodiscard]] static __device__ __forceinline__ float load_scale(const float* p, bool wanted) {
    float out;
    asm volatile(
        "{\n\t"
        ".reg .pred wanted;\n\t"
        "setp.ne.b32 wanted, %2, 0;\n\t"
        "mov.b32 %0, 0;\n\t"
        "@wanted ld.global.f32 %0, [%1];\n\t"
        "}"
        : "=&f"(out)
        : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(wanted)));
    return out;
  }
};

/// What the warps of a block have summed up, in shared memory.
template <class Block>
struct Fp8FewRowsSums {
  using OfWarp = float[Block::kTokens][Block::kPitch];
  OfWarp* sums;    ///< of each warp
  float* squares;  ///< [warp][kTokens]

  /// Of one of the block's rows of W, before the scale.
  __device__ __forceinline__ float of(int token, int row) const {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < Block::kWarps; ++w) total += sums[w][token][row];
    return total;
  }
  /// 1 / rms of a row of x.
  __device__ __forceinline__ float scale(int token, int k, float eps) const {
    float total = 0.f;
#pragma unroll
    for (int w = 0; w < Block::kWarps; ++w) total += squares[w * Block::kTokens + token];
    return rsqrtf(total / static_cast<float>(k) + eps);
  }
};

/// The block's products, of the tiles from row `first` of W on; waits for the kernel ahead and lets
/// the next one start. Calls `load_ahead()` when x is on its way: for what is wanted after the
/// products and is not to be waited for there. `shared` has kSharedBytes.
template <class Block, Element Out, class LoadAhead>
__device__ __forceinline__ Fp8FewRowsSums<Block> fp8_few_rows_products(
    const Fp8FewRowsOperandsOf<Out>& p, int first, uint4* shared, const LoadAhead& load_ahead) {
  using Part = Fp8FewRowsPart<Block>;
  using Sums = Fp8FewRowsSums<Block>;
  auto* const sums = reinterpret_cast<typename Sums::OfWarp*>(shared + Block::kXBytes / 16);
  const Sums out{sums, reinterpret_cast<float*>(sums + Block::kWarps)};
  Part part(p, first, shared);
  typename Part::Weights even, odd;
  part.load_w(even, 0);
  part.load_w(odd, 1);
  grid_dependency_wait();
  grid_dependency_launch();  // after the wait: see PlanStart
  part.copy_x(0, 0);
  part.copy_x(1, 1);
  load_ahead();

  for (int left = p.k; left > 0; left -= 2 * Block::kSpan) {
    copy_async_wait<1>();
    part.multiply(even, 0);
    part.load_w(even, 2);
    part.copy_x(0, 2);
    part.advance();
    if (left <= Block::kSpan) break;
    copy_async_wait<1>();
    part.multiply(odd, 1);
    part.load_w(odd, 2);
    part.copy_x(1, 2);
    part.advance();
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  part.store(out.sums[warp], out.squares + warp * Block::kTokens);
  __syncthreads();
  return out;
}

/// Grid: a block for each kColumns columns of y. Dynamic shared memory: kSharedBytes.
template <class Block, Element Out>
__global__ void __launch_bounds__(Block::kThreads, Block::kBlocksPerSm)
    fp8_few_rows_kernel(const __grid_constant__ Fp8FewRowsOperandsOf<Out> p) {
  static_assert(Block::kGated || !Block::kPaired);
  extern __shared__ uint4 fp8_few_rows_shared[];
  const int first = static_cast<int>(blockIdx.x) * Block::kColumns;
  float old[Block::kOutputs];
  const auto load_old_y = [&] {
#pragma unroll
    for (int i = 0; i < Block::kOutputs; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * Block::kThreads;
      const int token = index / Block::kColumns, column = first + index % Block::kColumns;
      old[i] = 0.f;
      if (!Block::kGated && p.accumulate && token < p.num_tokens && column < p.n)
        old[i] = to_float(p.y[token * p.y_stride + column]);
    }
  };
  const auto sums = fp8_few_rows_products<Block>(p, first, fp8_few_rows_shared, load_old_y);

#pragma unroll
  for (int i = 0; i < Block::kOutputs; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * Block::kThreads;
    const int token = index / Block::kColumns, column = index % Block::kColumns;
    if (token >= p.num_tokens || first + column >= p.n) continue;
    const float scale = Block::kNorm ? sums.scale(token, p.k, p.eps) : 1.f;
    const int row = Block::kGated ? column / 8 * 16 + column % 8 : column;
    float result = sums.of(token, row) * scale;
    if constexpr (Block::kGated) {
      result = silu<bf16>(result) * (sums.of(token, row + 8) * scale);
    } else {
      result += old[i];
    }
    p.y[token * p.y_stride + first + column] = from_float<Out>(result);
  }
}

}  // namespace nanovllm::cuda::detail
