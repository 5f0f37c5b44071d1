#pragma once
/// A thread's part in the products of grouped.cuh and few.cuh: copies into the ring, products, and
/// where results go.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda {

/// Elements `T` of x and y, `W` of the weights.
template <class T, class W = T>
struct GroupedOperands {
  const T* x;
  const W* weight;
  T* y;
  std::int64_t x_stride, y_stride;
  std::int64_t weight_stride;  ///< from a row of an expert's W to the next
  std::int64_t expert_stride;  ///< from an expert's W to the next one's
  std::int32_t divisor;        ///< pairs that share a row of x
  std::int32_t n;              ///< columns of y
  std::int32_t k;
  std::int32_t row_blocks;             ///< blocks for a tile of pairs; set by the launcher
  MatrixView<const std::int32_t> ids;  ///< experts of the pairs, [tokens, slots]
  LocalExperts local;                  ///< those that `weight` has
  ExpertPlan plan;
  bool plan_is_ready;  ///< and `ids`, as soon as this kernel may start: W is read ahead of the wait
  /// Of e4m3: scale (i, j) of expert e is scales[e · expert_scales + j / 128 · scale_stride + i].
  const float* scales = nullptr;
  std::int64_t scale_stride = 0, expert_scales = 0;
  bool has_blocks = false;  ///< scales of 128 rows, from multiples of 128 on, are equal

  /// The number of a slot's expert among `local`; -1 if it is elsewhere.
  [[nodiscard]] __device__ __forceinline__ int expert_of(int token, int slot) const {
    const std::int32_t id = *static_cast<const volatile std::int32_t*>(ids.at(token, slot));
    return local.contains(id) ? static_cast<int>(local.index_of(id)) : -1;
  }
};

namespace detail {

template <class W, int kTokenCount, bool kIsGated, int kRowCount = 64>
struct GroupedBlock {
  static constexpr bool kScaled = std::same_as<W, fp8_e4m3>;
  static constexpr int kTokens = kTokenCount;
  static constexpr int kGroups = kTokens / 8;
  static constexpr bool kGated = kIsGated;
  static constexpr int kRows = kRowCount;  ///< of W
  static constexpr int kThreads = 2 * kRows;
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;            ///< of y
  static constexpr int kRowBytes = 128;                                  ///< of W in a step
  static constexpr int kStep = kRowBytes / static_cast<int>(sizeof(W));  ///< columns of K
  static constexpr int kXRowBytes = 2 * kStep;
  static constexpr int kXAt = kRows * kRowBytes, kScalesAt = kXAt + kTokens * kXRowBytes;
  static constexpr int kStageBytes = kScalesAt + (kScaled ? kRows * 4 : 0);
  static constexpr int kBlocksPerSm = kRows == 32 ? 6 : kRows == 64 ? 3 : 2;
  /// A block of devices of compute capability 8.6, 8.9 and 12.0 has 99 KiB.
  static constexpr int kMaxSharedBytes = 99 * 1024;
  static constexpr int kStages =
      std::min(6, std::min(227 * 1024 / kBlocksPerSm, kMaxSharedBytes) / kStageBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // A thread copies a vector of each of some rows.
  static constexpr int kVector = 16 / static_cast<int>(sizeof(W));  ///< elements of W
  static constexpr int kWeightRows = kThreads / (kRowBytes / 16);   ///< at once
  static constexpr int kWeightCopies = kRows / kWeightRows;
  static constexpr int kXVectors = kXRowBytes / 16;
  static constexpr int kXRows = kThreads / kXVectors;  ///< at once
  static constexpr int kXCopies = ceil_div(kTokens, kXRows);
  static constexpr int kPitch = kColumns + 8;  ///< of the results in shared memory, in elements
  static_assert(kTokens * kPitch * 2 <= kSharedBytes && kStages >= 3);

  /// Where vector `vector` of row `row` of W lies in a stage, and of x after `kXAt`: rows that a
  /// warp reads at the same time are in different banks.
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t weight_offset(int row, int vector) {
    return static_cast<std::uint32_t>(row * kRowBytes + ((vector ^ (row & 7)) << 4));
  }
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t x_offset(int row, int vector) {
    const int moved = kScaled ? vector ^ ((row & 3) << 1) : vector ^ (row & 7);
    return static_cast<std::uint32_t>(row * kXRowBytes + (moved << 4));
  }
  /// Which column of y row `row` of the block's is for, from the block's first on; `is_up` says for
  /// which half of W.
  [[nodiscard]] static __device__ __forceinline__ int column_of(int row, bool& is_up) {
    is_up = kGated && row % 16 >= 8;
    return kGated ? row / 16 * 8 + row % 8 : row;
  }
};

/// 8 bytes from a shared address.
__device__ __forceinline__ uint2 load_pair_from_shared(std::uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

/// One thread's part in a block's copies and products.
template <class Block, class T, class W>
struct GroupedPart {
  const W* weight[Block::kWeightCopies];  ///< null where the row is not there
  const T* x[Block::kXCopies];
  const float* scales;  ///< what this thread copies of a step's; null for none
  std::uint32_t shared;
  float sum[Block::kGroups][4] = {};

  __device__ __forceinline__ void find_weights(const GroupedOperands<T, W>& p,
                                               const ExpertTile& tile, int first_column) {
    const int row = static_cast<int>(threadIdx.x) / 8, vector = static_cast<int>(threadIdx.x) % 8;
    const auto row_of = [&](int r) {
      bool is_up = false;
      const int column = first_column + Block::column_of(r, is_up);
      return column < p.n ? column + (is_up ? p.n : 0) : -1;
    };
    const W* const expert = p.weight + tile.expert * p.expert_stride + vector * Block::kVector;
#pragma unroll
    for (int i = 0; i < Block::kWeightCopies; ++i) {
      const int of_weight = row_of(row + Block::kWeightRows * i);
      weight[i] = of_weight >= 0 ? expert + of_weight * p.weight_stride : nullptr;
    }
    scales = nullptr;
    if (Block::kScaled && threadIdx.x < Block::kRows / 4) {
      const int of_weight = row_of(4 * static_cast<int>(threadIdx.x));
      if (of_weight >= 0) scales = p.scales + tile.expert * p.expert_scales + of_weight;
    }
  }

  /// pair_of(i) is pair i of the plan.
  template <class PairOf>
  __device__ __forceinline__ void find_rows(const GroupedOperands<T, W>& p, const ExpertTile& tile,
                                            const PairOf& pair_of) {
#pragma unroll
    for (int i = 0; i < Block::kXCopies; ++i) {
      const int r = static_cast<int>(threadIdx.x) / Block::kXVectors + Block::kXRows * i;
      x[i] = nullptr;
      if (r >= tile.count) continue;
      const std::int32_t pair = pair_of(tile.first + r);
      x[i] = p.x + pair / p.divisor * p.x_stride +
             static_cast<int>(threadIdx.x) % Block::kXVectors * 8;
    }
  }

  /// Stages take turns: `turn` counts the steps that went through them.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t stage_of(int turn) const {
    return shared + static_cast<std::uint32_t>(turn % Block::kStages * Block::kStageBytes);
  }

  /// Starts copying step `step` of W to a stage; zeros beyond the last row and column.
  __device__ __forceinline__ void copy_weights(const GroupedOperands<T, W>& p, int step,
                                               int turn) const {
    const int row = static_cast<int>(threadIdx.x) / 8, vector = static_cast<int>(threadIdx.x) % 8;
    const std::uint32_t to = stage_of(turn) + Block::weight_offset(row, vector);
    // Rows of e4m3 have zeros up to the end of the step.
    const bool has_columns = Block::kScaled || step * Block::kStep + vector * Block::kVector < p.k;
#pragma unroll
    for (int i = 0; i < Block::kWeightCopies; ++i) {
      const bool wanted = has_columns && weight[i] != nullptr;
      copy_async_16_or_zero<L2Fetch::bytes_128>(to + i * Block::kWeightRows * Block::kRowBytes,
                                                wanted ? weight[i] + step * Block::kStep : p.weight,
                                                wanted);
    }
    if constexpr (Block::kScaled) {
      if (threadIdx.x < Block::kRows / 4) {
        copy_async_16_or_zero(stage_of(turn) + Block::kScalesAt + 16 * threadIdx.x,
                              scales != nullptr ? scales + step * p.scale_stride : p.scales,
                              scales != nullptr);
      }
    }
  }

  __device__ __forceinline__ void copy_rows(const GroupedOperands<T, W>& p, int step,
                                            int turn) const {
    const int row = static_cast<int>(threadIdx.x) / Block::kXVectors;
    const int vector = static_cast<int>(threadIdx.x) % Block::kXVectors;
    const std::uint32_t to = stage_of(turn) + Block::kXAt + Block::x_offset(row, vector);
    const bool has_columns = step * Block::kStep + vector * 8 < p.k;
#pragma unroll
    for (int i = 0; i < Block::kXCopies; ++i) {
      if (Block::kTokens % Block::kXRows != 0 && row + Block::kXRows * i >= Block::kTokens) break;
      const bool wanted = has_columns && x[i] != nullptr;
      copy_async_16_or_zero(to + i * Block::kXRows * Block::kXRowBytes,
                            wanted ? x[i] + step * Block::kStep : p.x, wanted);
    }
  }

  /// Adds the products of a step.
  __device__ __forceinline__ void multiply(int turn) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t weights = stage_of(turn), rows = weights + Block::kXAt;
    const auto load_a = [&](std::uint32_t(&a)[4], int vector) {
      ldmatrix_x4(a, weights + Block::weight_offset(16 * warp + lane % 16, vector + lane / 16));
    };
    if constexpr (!Block::kScaled) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {  // of 16 columns each
        std::uint32_t a[2][4];
        load_a(a[0], 4 * pair);
        load_a(a[1], 4 * pair + 2);
#pragma unroll
        for (int group = 0; group < Block::kGroups; ++group) {
          std::uint32_t b[4];
          ldmatrix_x4(b, rows + Block::x_offset(8 * group + lane % 8, 4 * pair + lane / 8));
          mma_m16n8k16<T>(sum[group], a[0], b[0], b[1]);
          mma_m16n8k16<T>(sum[group], a[1], b[2], b[3]);
        }
      }
    } else {
      multiply_scaled(load_a, weights, rows, warp, lane);
    }
  }

  /// The same of e4m3. A lane's four bytes of a vector of W are two pairs of columns; as any order
  /// of k will do, it takes the same columns of x.
  template <class LoadA>
  __device__ __forceinline__ void multiply_scaled(const LoadA& load_a, std::uint32_t weights,
                                                  std::uint32_t rows, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    float part[Block::kGroups][4] = {};
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {  // of 32 columns
      std::uint32_t words[4];
      load_a(words, 2 * quarter);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[4];
        small_bf16_of(words[2 * half], a[0], a[2]);
        small_bf16_of(words[2 * half + 1], a[1], a[3]);
        constexpr std::uint32_t kUnit = 0x7b807b80u;  // two of kE4m3Unit
#pragma unroll
        for (std::uint32_t& pair : a) pair = multiply_pairs(pair, kUnit);
        const int vector = 4 * quarter + 2 * half + t / 2;
#pragma unroll
        for (int group = 0; group < Block::kGroups; ++group) {
          const uint2 b = load_pair_from_shared(rows + Block::x_offset(8 * group + g, vector) +
                                                static_cast<std::uint32_t>(t % 2 * 8));
          mma_m16n8k16<T>(part[group], a, b.x, b.y);
        }
      }
    }
    const std::uint32_t scale = weights + Block::kScalesAt + 4 * (16 * warp + g);
    const float low = load_float_from_shared(scale), high = load_float_from_shared(scale + 32);
#pragma unroll
    for (int group = 0; group < Block::kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sum[group][j] = __fmaf_rn(part[group][j], j < 2 ? low : high, sum[group][j]);
    }
  }

  /// Writes the results to results[token][column].
  __device__ __forceinline__ void store(T* results) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int group = 0; group < Block::kGroups; ++group) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        T* const row = results + (8 * group + 2 * t + j) * Block::kPitch;
        if constexpr (Block::kGated) {
          row[8 * warp + g] = from_float<T>(silu<T>(sum[group][j]) * sum[group][j + 2]);
        } else {
          row[16 * warp + g] = from_float<T>(sum[group][j]);
          row[16 * warp + g + 8] = from_float<T>(sum[group][j + 2]);
        }
      }
    }
  }
};

}  // namespace detail
}  // namespace nanovllm::cuda
