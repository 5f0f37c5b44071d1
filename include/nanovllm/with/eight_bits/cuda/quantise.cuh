#pragma once
/// Rounding to 8-bit floats on the device: of weights while they are loaded, and of activations
/// ahead of a product.
///
/// Activations. x [m, k] becomes q · s with q in e4m3 and one s for a row and 128 columns:
///   s = largest |x| of them / 448, or 1 where all are 0;   q = x / s, rounded to nearest even
/// This is the rule for any number of rows. x is the input, or its RMSNorm, rounded as `rms_norm`
/// rounds it; the order of the sum of squares is this kernel's own.
///
/// Bytes moved: 3 · m · k, and 4 for each 128 elements. With the norm columns from 8,192 on are
/// read once more, from L2.
/// Measured: not by itself; 12.8 us for norm, rounding and product of 64 rows of 8B's qkv
/// (fp8_linear_bench, cuda_fp8_h200.json).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"

namespace nanovllm::cuda {

/// Where quantised rows of a weight go: scales of element (i, j) at [j / 128 · scale_stride + i],
/// those of blocks of 128 rows also at [i / 128 · block_stride + j / 128].
struct Fp8Target {
  fp8_e4m3* data;
  float* scales;
  float* blocks;
  std::int64_t stride, scale_stride, block_stride;
};

/// Quantised activations: element (i, j) is data[i · stride + j] · scales[j / 128 · scale_stride +
/// i]; zeros from the last column up to `stride`.
struct Fp8Activations {
  fp8_e4m3* data;
  float* scales;
  std::int64_t stride, scale_stride;
};

namespace detail {

struct Fp8WeightBlock {
  static constexpr int kThreads = 256;
};

/// A block of 128 × 128 elements. Grid: groups of columns, groups of rows.
template <bool kWhole>
__global__ void __launch_bounds__(Fp8WeightBlock::kThreads)
    quantise_weight_kernel(const MatrixView<const bf16> x, const Fp8Target to) {
  constexpr int kVectorsOfRow = static_cast<int>(kFp8Group) / kVecSize<bf16>;  // 16
  constexpr int kRowsAtOnce = Fp8WeightBlock::kThreads / kVectorsOfRow;        // 16
  constexpr int kRounds = static_cast<int>(kFp8Group) / kRowsAtOnce;           // 8
  __shared__ std::uint32_t scratch[32];
  grid_dependency_wait();
  const std::int64_t column = blockIdx.x * kFp8Group + threadIdx.x % kVectorsOfRow * kVecSize<bf16>;
  const std::int64_t first_row = blockIdx.y * kFp8Group + threadIdx.x / kVectorsOfRow;
  const auto count = static_cast<int>(
      min(max(x.extent(1) - column, std::int64_t{0}), static_cast<std::int64_t>(kVecSize<bf16>)));
  uint4 held[kRounds];
  std::uint32_t largest = 0;  // bits of |x|, of which NaN's are the largest
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const std::int64_t row = first_row + r * kRowsAtOnce;
    held[r] = {};
    if (row < x.extent(0) && count > 0) held[r] = load_first<kWhole>(x.at(row, column), count);
    float a[kVecSize<bf16>];
    unpack<bf16>(held[r], a);
#pragma unroll
    for (const float v : a) largest = max(largest, __float_as_uint(v) & 0x7fffffffu);
  }
  largest = block_reduce(largest, Max{}, 0u, scratch, Fp8WeightBlock::kThreads);
  const float scale = largest >= 0x7f800000u ? __uint_as_float(0x7fc00000u)
                      : largest > 0u         ? __fdiv_rn(__uint_as_float(largest), fp8_e4m3::kMax)
                                             : 1.f;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const std::int64_t row = first_row + r * kRowsAtOnce;
    if (row >= x.extent(0)) continue;
    float a[kVecSize<bf16>];
    unpack<bf16>(held[r], a);
    std::uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < kVecSize<bf16>; i += 2) {
      const float low = i < count ? __fdiv_rn(a[i], scale) : 0.f;
      const float high = i + 1 < count ? __fdiv_rn(a[i + 1], scale) : 0.f;
      words[i / 4] |= pack_e4m3(low, high) << (8 * (i % 4));
    }
    *reinterpret_cast<uint2*>(to.data + row * to.stride + column) = {words[0], words[1]};
    if (threadIdx.x % kVectorsOfRow == 0) to.scales[blockIdx.x * to.scale_stride + row] = scale;
  }
  if (threadIdx.x == 0) to.blocks[blockIdx.y * to.block_stride + blockIdx.x] = scale;
}

struct Fp8RowsBlock {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 16;  ///< that hold a group of columns, a vector each
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kHeld = 4;  ///< vectors of a row that a thread keeps between its two passes
};

/// A row a block: with a norm all of it, else kGroups groups of columns. Grid: rows, parts of rows.
template <bool kNorm, bool kWhole>
__global__ void __launch_bounds__(Fp8RowsBlock::kThreads)
    quantise_rows_kernel(const MatrixView<const bf16> x, const InputNorm<bf16> norm,
                         const Fp8Activations to) {
  using Block = Fp8RowsBlock;
  constexpr int kSize = kVecSize<bf16>;
  __shared__ float scratch[32];
  const std::int64_t row = blockIdx.x;
  const auto k = static_cast<int>(x.extent(1));
  const int lane_column = static_cast<int>(threadIdx.x) % Block::kLanes * kSize;
  const int groups = static_cast<int>(to.stride / kFp8Group);
  const int first =
      static_cast<int>(blockIdx.y) * Block::kGroups + static_cast<int>(threadIdx.x) / Block::kLanes;
  const int step = kNorm ? Block::kGroups : groups;  // without a norm: once
  // All lanes of a warp go round as often, because they reduce together.
  const int rounds = kNorm ? ceil_div(groups, Block::kGroups) : 1;
  const auto load = [&](int column) {
    return column < k ? load_first<kWhole>(x.at(row, column), min(k - column, kSize)) : uint4{};
  };
  const auto column_of = [&](int r) {
    return (first + r * step) * static_cast<int>(kFp8Group) + lane_column;
  };
  const auto norm_at = [&](int column) {
    if (!kNorm || column >= k) return uint4{};
    // Not the non-coherent load: see load.cuh.
    return load_first<kWhole>(norm.weight.data + column, min(k - column, kSize));
  };
  uint4 held[Block::kHeld], weights[Block::kHeld];
  if constexpr (kNorm) {
#pragma unroll
    for (int r = 0; r < Block::kHeld; ++r) weights[r] = norm_at(column_of(r));
  }
  grid_dependency_wait();
  grid_dependency_launch();  // after the wait: see PlanStart
  float inverse = 1.f;
  if constexpr (kNorm) {
    float squares = 0.f;
#pragma unroll
    for (int r = 0; r < Block::kHeld; ++r) held[r] = load(column_of(r));
#pragma unroll
    for (int r = 0; r < Block::kHeld; ++r) {
      float a[kSize];
      unpack<bf16>(held[r], a);
      squares += sum_of_squares(a);
    }
    for (int r = Block::kHeld; r < rounds; ++r) {
      float a[kSize];
      unpack<bf16>(load(column_of(r)), a);
      squares += sum_of_squares(a);
    }
    squares = block_reduce(squares, Sum{}, 0.f, scratch, Block::kThreads);
    inverse = inverse_rms(squares, __frcp_rn(static_cast<float>(k)), norm.eps);
  }
  const auto quantise = [&](int r, const uint4& raw, const uint4& weight) {
    const int group = first + r * step, column = column_of(r);
    float a[kSize];
    unpack<bf16>(raw, a);
    if constexpr (kNorm) {
      float w[kSize];
      unpack<bf16>(weight, w);
      normalise<bf16>(a, inverse, w);
      round_floats<bf16>(a);
    }
    float largest = 0.f;
#pragma unroll
    for (const float v : a) largest = fmaxf(largest, fabsf(v));
    largest = warp_reduce<Block::kLanes>(largest, Max{});
    const float scale = largest > 0.f ? __fdiv_rn(largest, fp8_e4m3::kMax) : 1.f;
    if (group >= groups) return;
    std::uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < kSize; i += 2)
      words[i / 4] |= pack_e4m3(__fdiv_rn(a[i], scale), __fdiv_rn(a[i + 1], scale))
                      << (8 * (i % 4));
    *reinterpret_cast<uint2*>(to.data + row * to.stride + column) = {words[0], words[1]};
    if (lane_column == 0) to.scales[group * to.scale_stride + row] = scale;
  };
  if constexpr (kNorm) {
#pragma unroll
    for (int r = 0; r < Block::kHeld; ++r) {
      if (r < rounds) quantise(r, held[r], weights[r]);
    }
    for (int r = Block::kHeld; r < rounds; ++r)
      quantise(r, load(column_of(r)), norm_at(column_of(r)));
  } else {
    quantise(0, load(column_of(0)), uint4{});
  }
}

}  // namespace detail

/// Enqueues the rounding of rows of a weight, in blocks of 128 × 128 from the first on.
inline void quantise_weight(MatrixView<const bf16> rows, const Fp8Target& to,
                            const Context& context) {
  const auto kernel = has_whole_rows(rows) ? detail::quantise_weight_kernel<true>
                                           : detail::quantise_weight_kernel<false>;
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(ceil_div(rows.extent(1), kFp8Group)),
                       static_cast<unsigned>(ceil_div(rows.extent(0), kFp8Group))),
          .block = dim3(detail::Fp8WeightBlock::kThreads)},
         context, rows, to);
}

/// Enqueues the rounding of `x`, or of its norm. `x` is not empty.
inline void quantise_rows(MatrixView<const bf16> x, const InputNorm<bf16>& norm,
                          const Fp8Activations& to, const Context& context) {
  using Block = detail::Fp8RowsBlock;
  const bool whole = has_whole_rows(x) && (!norm || is_vector_aligned(norm.weight.data));
  const auto kernel = norm ? (whole ? detail::quantise_rows_kernel<true, true>
                                    : detail::quantise_rows_kernel<true, false>)
                           : (whole ? detail::quantise_rows_kernel<false, true>
                                    : detail::quantise_rows_kernel<false, false>);
  const std::int64_t parts = norm ? 1 : ceil_div(to.stride, kFp8Group * Block::kGroups);
  launch(kernel,
         {.grid = dim3(static_cast<unsigned>(x.extent(0)), static_cast<unsigned>(parts)),
          .block = dim3(Block::kThreads)},
         context, x, norm, to);
}

}  // namespace nanovllm::cuda
