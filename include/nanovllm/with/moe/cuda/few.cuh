#pragma once
/// The experts of a few tokens in two kernels, for 16-bit elements: where few experts are chosen
/// twice, a plan costs more time than it saves.
///
///   h[p] = silu(g) · u, a block for each pair p and 16 columns of h: the kernel of grouped.cuh
///   out[i] (+)= Σ_s weights[i, s] · (W[ids[i, s]] · h[i · k + s]) over the experts that are here
///
/// A block of the second owns 16 columns of out of one token. Each of its warps multiplies by these
/// rows of another slot's expert, eight slots at a time; then the results are rounded and added in
/// the order of slots. Products and sums are those of grouped.cuh and combine.cuh, bit for bit.
///
/// Bytes moved: the rows of each chosen expert once, x and h of a token for each block, out once.
/// Measured: experts_bench, cuda_moe_few_tokens.json, a layer's experts of 1 token in 28.8 us;
/// without a JSON 32.8 to 27.4 us, of 4 tokens 83.0 to 79.0 (docs/lab/kernels.md).

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
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

}  // namespace nanovllm::cuda
