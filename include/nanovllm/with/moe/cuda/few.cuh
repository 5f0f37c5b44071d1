#pragma once
/// The experts of a few tokens in two kernels, for 16-bit elements: where few experts are chosen
/// twice, a plan costs more time than it saves.
///
///   h[p] = silu(g) · u, a block for each pair p and 16 columns of h: the kernel of grouped.cuh
///   out[i] (+)= Σ_s weights[i, s] · (W[ids[i, s]] · h[i · k + s]) over the experts that are here
///
/// A block of the second owns 16 columns of out of one token. Each of its warps multiplies by these
/// rows of another slot's expert, eight slots at a time; then the results are rounded and added in
/// the order of slots. Products are those of grouped.cuh, and sums those of `combine_experts`, bit
/// for bit.
///
/// Bytes moved: the rows of each chosen expert once, x and h of a token for each block, out once.
///
/// One token by 8-bit weights has two kernels of its own, which read W straight to registers. A
/// warp takes three columns of h, with their gate and up rows of W, or a column of out, with its
/// rows of eight experts. Of experts with up to 2,048 and 768 columns it has all of these on their
/// way at once, and so waits for memory once. Products are in float32. Rounding is as above, the
/// order of sums another. x and h are read once for each warp, from L1 and L2.
/// Measured: experts_bench, cuda_moe_few_tokens.json, a layer's experts of 1 token in 28.8 us, by
/// the kernels of its own in 21.3; without a JSON 32.8 to 27.4 us, of 4 tokens 83.0 to 79.0, and of
/// 1 by kernels of its own 25.2 to 20.5 (docs/lab/kernels.md).

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"

namespace nanovllm::cuda {

/// Up to so many tokens, of so many slots.
inline constexpr std::int64_t kFewExpertTokens = 4, kFewExpertSlots = 32;

namespace detail {

template <class W>
struct FewBlock : GroupedBlock<W, 8, false, 128> {
  static constexpr int kSlots = 8;     ///< at a time, of a warp each
  static constexpr int kColumns = 16;  ///< of out
  using Results = float[kFewExpertSlots][kColumns];
  static_assert(FewBlock::kSharedBytes + sizeof(Results) <= FewBlock::kMaxSharedBytes);
};

/// As GroupedPart, with rows of W that are kColumns of each of kSlots experts, and the pairs of
/// these slots as rows of x.
template <class T, class W>
struct FewPart : GroupedPart<FewBlock<W>, T, W> {
  using Block = FewBlock<W>;
  static_assert(Block::kRows == Block::kSlots * Block::kColumns);
  int token, first_column, slots;

  /// -1 where there is no such slot, or its expert is elsewhere.
  [[nodiscard]] __device__ __forceinline__ int expert_of(const GroupedOperands<T, W>& p,
                                                         int slot) const {
    return slot < slots ? p.expert_of(token, slot) : -1;
  }
  __device__ __forceinline__ void find_weights(const GroupedOperands<T, W>& p, int first_slot) {
    const int vector = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < Block::kWeightCopies; ++i) {
      const int row = static_cast<int>(threadIdx.x) / 8 + Block::kWeightRows * i;
      const int expert = expert_of(p, first_slot + row / Block::kColumns);
      const int column = first_column + row % Block::kColumns;
      this->weight[i] = expert >= 0 && column < p.n
                            ? p.weight + expert * p.expert_stride + column * p.weight_stride +
                                  vector * Block::kVector
                            : nullptr;
    }
    this->scales = nullptr;
    if (Block::kScaled && threadIdx.x < Block::kRows / 4) {
      const int expert = expert_of(p, first_slot + static_cast<int>(threadIdx.x) / 4);
      const int of_scales = first_column + static_cast<int>(threadIdx.x) % 4 * 4;
      if (expert >= 0 && of_scales < p.n)
        this->scales = p.scales + expert * p.expert_scales + of_scales;
    }
  }
  __device__ __forceinline__ void find_rows(const GroupedOperands<T, W>& p, int first_slot) {
#pragma unroll
    for (int i = 0; i < Block::kXCopies; ++i) {
      const int row = static_cast<int>(threadIdx.x) / Block::kXVectors + Block::kXRows * i;
      const int slot = first_slot + row;
      this->x[i] = row < Block::kSlots && expert_of(p, slot) >= 0
                       ? p.x + (token * slots + slot) * p.x_stride +
                             static_cast<int>(threadIdx.x) % Block::kXVectors * 8
                       : nullptr;
    }
  }
  /// The warp's results, rounded, to results[slot][column], and zero sums for the next slots.
  __device__ __forceinline__ void take(int first_slot, typename Block::Results& results) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, t = lane % 4;
    float(&sum)[4] = this->sum[0];
    if (t == warp / 2 && first_slot + warp < slots) {
      const bool odd = warp % 2 != 0;
      float(&row)[Block::kColumns] = results[first_slot + warp];
      row[g] = to_float(from_float<T>(odd ? sum[1] : sum[0]));
      row[g + 8] = to_float(from_float<T>(odd ? sum[3] : sum[2]));
    }
#pragma unroll
    for (float& value : sum) value = 0.f;
  }
};

/// Grid: for each token, blocks of columns of out. `p.y` is out, of tokens. Dynamic shared memory:
/// kSharedBytes.
template <class T, class W>
__global__ void __launch_bounds__(FewBlock<W>::kThreads, FewBlock<W>::kBlocksPerSm)
    few_experts_down_kernel(const GroupedOperands<T, W> p, MatrixView<const float> weights,
                            bool accumulate) {
  using Block = FewBlock<W>;
  extern __shared__ uint4 few_experts_shared[];
  __shared__ typename Block::Results results;
  const int steps = (p.k + Block::kStep - 1) / Block::kStep;  // for kSlots slots
  FewPart<T, W> part;
  part.shared = shared_address(few_experts_shared);
  part.token = static_cast<int>(blockIdx.x) / p.row_blocks;
  part.first_column = static_cast<int>(blockIdx.x) % p.row_blocks * Block::kColumns;
  part.slots = static_cast<int>(p.ids.extent(1));
  const int turns = (part.slots + Block::kSlots - 1) / Block::kSlots * steps;
  const auto copy_weights = [&](int turn) {
    if (turn % steps == 0) part.find_weights(p, turn / steps * Block::kSlots);
    part.copy_weights(p, turn % steps, turn);
  };
  const auto copy_rows = [&](int turn) {
    if (turn % steps == 0) part.find_rows(p, turn / steps * Block::kSlots);
    part.copy_rows(p, turn % steps, turn);
  };
  for (int i = 0; i < min(Block::kStages - 1, turns); ++i) copy_weights(i);
  grid_dependency_launch();
  grid_dependency_wait();
  for (int i = 0; i < Block::kStages - 1; ++i) {
    if (i < turns) copy_rows(i);
    copy_async_commit();
  }
  for (int i = 0; i < turns; ++i) {
    copy_async_wait<Block::kStages - 2>();
    __syncthreads();  // turn i is there, and all have multiplied turn i - 1
    const int next = i + Block::kStages - 1;
    if (next < turns) {
      copy_weights(next);
      copy_rows(next);
    }
    copy_async_commit();
    part.multiply(i);
    if ((i + 1) % steps == 0) part.take(i / steps * Block::kSlots, results);
  }
  __syncthreads();
  const int column = part.first_column + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= Block::kColumns || column >= p.n) return;
  float sum = 0.f;
  for (int s = 0; s < part.slots; ++s) {
    if (part.expert_of(p, s) < 0) continue;
    const float weight = *static_cast<const volatile float*>(weights.at(part.token, s));
    sum = __fmaf_rn(weight, results[s][threadIdx.x], sum);
  }
  T& out = p.y[part.token * p.y_stride + column];
  const T rounded = from_float<T>(sum);
  out = accumulate ? from_float<T>(to_float(out) + to_float(rounded)) : rounded;
}

}  // namespace detail

/// Enqueues the gated products of all pairs, each by its own expert.
template <class T, class W>
void few_experts_gated(GroupedOperands<T, W> p, const Context& context) {
  using Block = detail::GroupedBlock<W, 8, true, 32>;
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
  launch(detail::grouped_kernel<T, W, Block, false>,
         {.grid = static_cast<unsigned>(p.ids.size() * p.row_blocks),
          .block = Block::kThreads,
          .shared_bytes = Block::kSharedBytes},
         context, p);
}

/// Enqueues the products by the down projections and their sums, whose `weights` are [tokens,
/// slots]; `p.y` is [tokens, columns], and `p.ids` must be known as soon as the kernel may start.
template <class T, class W>
void few_experts_down(GroupedOperands<T, W> p, const MatrixView<const float>& weights,
                      bool accumulate, const Context& context) {
  using Block = detail::FewBlock<W>;
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
  launch(detail::few_experts_down_kernel<T, W>,
         {.grid = static_cast<unsigned>(p.ids.extent(0) * p.row_blocks),
          .block = Block::kThreads,
          .shared_bytes = Block::kSharedBytes},
         context, p, weights, accumulate);
}

namespace detail {

using OneTokenOperands = GroupedOperands<bf16, fp8_e4m3>;

/// How blocks of both kernels for one token are made.
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
