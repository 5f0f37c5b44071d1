#pragma once
/// The experts of one token by 8-bit weights, in two kernels that read W straight to registers.
///
///   h[s]      = silu(g) · u with [g | u] = W[ids[s]] · x, for each slot s
///   out   (+)= Σ_s weights[s] · (W[ids[s]] · h[s]) over the experts that are here
///
/// A warp takes three columns of h, with their gate and up rows of W, or a column of out, with its
/// rows of eight experts. Of experts with up to 2,048 and 768 columns it has all of these on their
/// way at once, and so waits for memory once. Products are in float32. Rounding is that of few.cuh,
/// the order of sums another.
///
/// Bytes moved: the rows of each chosen expert once; x and h once for each warp, from L1 and L2;
/// out once.
/// Measured: experts_bench, cuda_moe_few_tokens.json, a layer's experts in 21.3 us; without a JSON
/// 25.2 to 20.5 us (docs/lab/kernels.md).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"

namespace nanovllm::cuda {
namespace detail {

using OneTokenOperands = GroupedOperands<bf16, fp8_e4m3>;

/// How blocks of both kernels are made.
struct OneTokenBlock {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = 4;
  static constexpr int kSpan = 32 * 8;  ///< columns of K that a warp takes at a time, a lane 8
  static constexpr int kColumns = 3;    ///< of h
};

/// kRows rows of W, of which kSpans spans are in registers at a time, and their products.
template <int kRows, int kSpans>
struct OneTokenRows {
  int expert[kRows];  ///< -1 for no row
  int row[kRows];     ///< of the expert's W
  float sum[kRows] = {};

  /// Loads the columns from `first` on, zeros beyond the last.
  __device__ __forceinline__ void load(const OneTokenOperands& p, int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const fp8_e4m3* const begin =
          p.weight + expert[r] * p.expert_stride + row[r] * p.weight_stride;
#pragma unroll
      for (int s = 0; s < kSpans; ++s) {
        const int column = first + s * OneTokenBlock::kSpan + lane * 8;
        w[r][s] = load_8_weights_or_zero(begin + column, expert[r] >= 0 && column < p.k);
      }
      const int group = first / static_cast<int>(kFp8Group) + lane;
      const bool wanted =
          expert[r] >= 0 && lane < kGroups && group * static_cast<int>(kFp8Group) < p.k;
      const volatile float* const scale =
          p.scales + expert[r] * p.expert_scales + group * p.scale_stride + row[r];
      scales[r] = wanted ? *scale : 0.f;
    }
  }

  /// Adds the products of span `s` of row `r` by 8 elements of x.
  __device__ __forceinline__ void multiply(int r, int s, const float (&x)[8]) {
    float a[8];
    unpack_e4m3(w[r][s].x, a[0], a[1], a[2], a[3]);
    unpack_e4m3(w[r][s].y, a[4], a[5], a[6], a[7]);
    float products = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) products = __fmaf_rn(a[i], x[i], products);
    const float scale =
        __shfl_sync(0xffffffffu, scales[r], 2 * s + static_cast<int>(threadIdx.x) % 32 / 16);
    sum[r] = __fmaf_rn(products, scale, sum[r]);
  }

 private:
  static constexpr int kGroups = kSpans * OneTokenBlock::kSpan / static_cast<int>(kFp8Group);
  static_assert(kGroups <= 32);

  uint2 w[kRows][kSpans];
  float scales[kRows];  // lane i has those of group i of w
};

/// Eight elements of x from column `column` on; zeros if that is not below `k`.
__device__ __forceinline__ void load_one_token(const bf16* x, int column, int k, float (&to)[8]) {
  unpack<bf16>(column < k ? load_vector(x + column) : uint4{}, to);
}

/// Grid: for each slot, blocks of columns of h.
template <int kColumns>
__global__ void __launch_bounds__(OneTokenBlock::kThreads, OneTokenBlock::kBlocksPerSm)
    one_token_gated_kernel(const OneTokenOperands p) {
  constexpr int kSpans = 8;
  grid_dependency_wait();
  grid_dependency_launch();  // ids are known to the next kernel
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int slot = static_cast<int>(blockIdx.x) / p.row_blocks;
  const int column =
      (static_cast<int>(blockIdx.x) % p.row_blocks * OneTokenBlock::kWarps + warp) * kColumns;
  const int expert = p.expert_of(0, slot);
  if (expert < 0) return;
  OneTokenRows<2 * kColumns, kSpans> rows;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    rows.expert[2 * c] = rows.expert[2 * c + 1] = column + c < p.n ? expert : -1;
    rows.row[2 * c] = column + c, rows.row[2 * c + 1] = p.n + column + c;
  }
  for (int first = 0; first < p.k; first += kSpans * OneTokenBlock::kSpan) {
    rows.load(p, first);
#pragma unroll
    for (int s = 0; s < kSpans; ++s) {
      float x[8];
      load_one_token(p.x, first + s * OneTokenBlock::kSpan + lane * 8, p.k, x);
#pragma unroll
      for (int r = 0; r < 2 * kColumns; ++r) rows.multiply(r, s, x);
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float gate = warp_sum(rows.sum[2 * c]), up = warp_sum(rows.sum[2 * c + 1]);
    if (lane == 0 && column + c < p.n)
      p.y[slot * p.y_stride + column + c] = from_float<bf16>(silu<bf16>(gate) * up);
  }
}

/// Lane 4 · i of the result has the sum of sums[i] over all lanes, and so have the three after it.
__device__ __forceinline__ float sum_of_eight(float (&sums)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 4, step = 16; half > 0; half /= 2, step /= 2) {
    const bool is_upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float mine = is_upper ? sums[i + half] : sums[i];
      const float other = is_upper ? sums[i] : sums[i + half];
      sums[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
  }
  return warp_sum<4>(sums[0]);
}

/// Grid: blocks of columns of out, which is p.y. kSlots slots at a time.
template <int kSlots>
__global__ void __launch_bounds__(OneTokenBlock::kThreads, OneTokenBlock::kBlocksPerSm)
    one_token_down_kernel(const OneTokenOperands p, MatrixView<const float> weights,
                          bool accumulate) {
  constexpr int kSpans = 3;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.x) * OneTokenBlock::kWarps + warp;
  const int slots = static_cast<int>(p.ids.extent(1));
  float total = 0.f;
  for (int first_slot = 0; first_slot < slots; first_slot += kSlots) {
    OneTokenRows<kSlots, kSpans> rows;
    float weight = 0.f;  // of slot lane / 4, if its expert is here
    const int slot = first_slot + lane / 4;
    if (slot < slots && p.expert_of(0, slot) >= 0)
      weight = *static_cast<const volatile float*>(weights.at(0, slot));
    for (int first = 0; first < p.k; first += kSpans * OneTokenBlock::kSpan) {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const bool exists = first_slot + s < slots && column < p.n;
        rows.expert[s] = exists ? p.expert_of(0, first_slot + s) : -1;
        rows.row[s] = column;
      }
      rows.load(p, first);
      if (first + first_slot == 0) {
        grid_dependency_launch();
        grid_dependency_wait();
      }
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const bf16* const h = p.x + (first_slot + s) * p.x_stride;
#pragma unroll
        for (int span = 0; span < kSpans; ++span) {
          float x[8];
          load_one_token(h, first + span * OneTokenBlock::kSpan + lane * 8,
                         rows.expert[s] >= 0 ? p.k : 0, x);
          rows.multiply(s, span, x);
        }
      }
    }
    const float y = to_float(from_float<bf16>(sum_of_eight(rows.sum)));
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const float of_slot = __shfl_sync(0xffffffffu, y, 4 * s);
      total = __fmaf_rn(__shfl_sync(0xffffffffu, weight, 4 * s), of_slot, total);
    }
  }
  if (lane != 0 || column >= p.n) return;
  bf16& out = p.y[column];
  const bf16 rounded = from_float<bf16>(total);
  out = accumulate ? from_float<bf16>(to_float(out) + to_float(rounded)) : rounded;
}

}  // namespace detail

/// Enqueues the gated products of one token: as `few_experts_gated`.
inline void one_token_gated(GroupedOperands<bf16, fp8_e4m3> p, const Context& context) {
  using Block = detail::OneTokenBlock;
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kWarps * Block::kColumns});
  launch(detail::one_token_gated_kernel<Block::kColumns>,
         {.grid = static_cast<unsigned>(p.ids.size() * p.row_blocks), .block = Block::kThreads},
         context, p);
}

/// Enqueues the products by the down projections and their sum: as `few_experts_down`.
inline void one_token_down(const GroupedOperands<bf16, fp8_e4m3>& p,
                           const MatrixView<const float>& weights, bool accumulate,
                           const Context& context) {
  using Block = detail::OneTokenBlock;
  launch(detail::one_token_down_kernel<8>,
         {.grid = static_cast<unsigned>(ceil_div(p.n, std::int32_t{Block::kWarps})),
          .block = Block::kThreads},
         context, p, weights, accumulate);
}

}  // namespace nanovllm::cuda
