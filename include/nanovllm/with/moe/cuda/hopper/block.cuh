#pragma once
/// A block of experts.cuh: how it is cut, what it does, and how it brings rows of x.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda {

/// Operands of a product of rounded rows by e4m3: x and, gated, y are e4m3 with a scale for each
/// row and 128 columns.
struct RoundedExpertOperands : GroupedOperands<bf16, fp8_e4m3> {
  Fp8Activations rounded_x{}, rounded_y{};
};

namespace detail {

/// Weights `W` are bf16 or e4m3, and the elements of x are as theirs. Tiles of e4m3 may also have
/// 32 pairs.
template <bool kIsGated, class W, int kTokenCount = 128>
struct WideExpertsBlock {
  static constexpr bool kRounded = std::same_as<W, fp8_e4m3>;
  using Operands = std::conditional_t<kRounded, RoundedExpertOperands, GroupedOperands<bf16, bf16>>;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = kTokenCount;
  static constexpr bool kNarrow = kTokens < 128;  ///< W is operand A, else x is
  static_assert(kTokens == 128 || (kRounded && kTokens == 32));
  static constexpr int kRows = 256;                            ///< of W
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kBoxRows = 128;                         ///< of W in a copy
  static constexpr int kGroup = 128;                           ///< threads of a warpgroup
  static constexpr int kConsumerGroups = 2;
  static constexpr int kThreads = (1 + kConsumerGroups) * kGroup;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(W));           ///< elements
  static constexpr int kPanel = kTmaRowBytes / static_cast<int>(sizeof(W));  ///< columns of K
  static constexpr int kXBytes = kTokens * kTmaRowBytes;
  static constexpr int kBoxBytes = kBoxRows * kTmaRowBytes;
  static constexpr int kWeightBytes = 2 * kBoxBytes;
  static constexpr int kScalesAt = kXBytes + kWeightBytes;  ///< of rows of W, then of x
  static constexpr int kXScalesAt = kScalesAt + 4 * kRows;
  static constexpr int kAlignment = 1024;
  static constexpr int kStageBytes =
      align_up(kRounded ? kXScalesAt + 4 * kTokens : kScalesAt, kAlignment);
  static constexpr int kRowsAtOnce = kGroup / 8;  ///< of x; a thread copies a vector of each
  static constexpr int kCopies = kTokens / kRowsAtOnce;
  // Gated results of a narrow tile on their way out: the largest of each warp, and e4m3.
  static constexpr int kWarps = kConsumerGroups * kGroup / 32;
  static constexpr int kResultPitch = kTmaRowBytes + 16;
  static constexpr int kResultBytes = kNarrow && kGated ? kTokens * (4 * kWarps + kResultPitch) : 0;
  static constexpr int kStages =
      std::min(6, (226 * 1024 - kAlignment - kResultBytes) / kStageBytes);
  static constexpr int kResultsAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = kResultsAt + kResultBytes + kAlignment;
  static_assert(kStages >= 4);
  static_assert(kGroup * (kProducerRegisters + kConsumerGroups * kConsumerRegisters) <= 64 * 1024);

  /// The second 128 rows of W of an item.
  [[nodiscard]] static __device__ __forceinline__ int second_row(const Operands& p,
                                                                 int first_column) {
    return kGated ? p.n + first_column : first_column + kBoxRows;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// What a block does at a time.
struct WideExpertsItem {
  ExpertTile tile;
  int first_column;  ///< of y
};

/// How many there are of all blocks; block b has items b, b + gridDim.x, and so on.
template <class Operands>
[[nodiscard]] __device__ __forceinline__ int num_wide_experts_items(const Operands& p) {
  return *static_cast<const volatile std::int32_t*>(p.plan.num_tiles) * p.row_blocks;
}

template <class Block>
[[nodiscard]] __device__ __forceinline__ WideExpertsItem
wide_experts_item(const typename Block::Operands& p, int i) {
  const volatile ExpertTile* const entry = p.plan.tiles + i / p.row_blocks;
  return {.tile = {entry->expert, entry->first, entry->count},
          .first_column = i % p.row_blocks * Block::kColumns};
}

/// use(item) for each item of this block.
template <class Block, class Use>
__device__ __forceinline__ void for_each_item(const typename Block::Operands& p, const Use& use) {
  const int num_items = num_wide_experts_items(p);
  for (int i = static_cast<int>(blockIdx.x); i < num_items; i += static_cast<int>(gridDim.x))
    use(wide_experts_item<Block>(p, i));
}

template <class Operands>
[[nodiscard]] __device__ __forceinline__ std::int32_t planned_pair(const Operands& p, int i) {
  return *static_cast<const volatile std::int32_t*>(p.plan.pairs + i);
}

/// The rows of x of an item, as the producer's threads copy them: a vector of each of `kCopies`
/// rows, and the scale of one.
template <class Block>
struct WideExpertsRows {
  using X = std::conditional_t<Block::kRounded, fp8_e4m3, bf16>;

  const X* x;
  std::uint32_t first[Block::kCopies];  ///< vectors from the beginning of x
  std::uint32_t wanted;
  std::uint32_t to;           ///< in the first stage, under the swizzle of the copy engine
  std::int32_t of_scale = 0;  ///< the row of x whose scale this thread copies

  __device__ __forceinline__ WideExpertsRows(const typename Block::Operands& p,
                                             const ExpertTile& tile, std::uint32_t ring)
      : wanted(0) {
    std::int64_t stride = p.x_stride;
    if constexpr (Block::kRounded) {
      x = p.rounded_x.data, stride = p.rounded_x.stride;
      const int r = min(static_cast<int>(threadIdx.x), tile.count - 1);
      of_scale = planned_pair(p, tile.first + r) / p.divisor;
    } else {
      x = p.x;
    }
    const int row = static_cast<int>(threadIdx.x) / 8, vector = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < Block::kCopies; ++i) {
      const int r = row + Block::kRowsAtOnce * i;
      first[i] = 0;
      if (r >= tile.count) continue;
      wanted |= 1u << i;
      first[i] = static_cast<std::uint32_t>(
          planned_pair(p, tile.first + r) / p.divisor * stride / Block::kVector + vector);
    }
    to = ring + static_cast<std::uint32_t>(row * kTmaRowBytes + ((vector ^ row % 8) << 4));
  }

  /// Starts copying panel `panel` to a stage at `ring`, one group of copies of this thread; zeros
  /// for rows and columns that do not exist. Rounded rows have zeros after their last column.
  __device__ __forceinline__ void copy(const typename Block::Operands& p, int panel,
                                       std::uint32_t ring, int stage) const {
    const int vector = static_cast<int>(threadIdx.x) % 8;
    const bool has_columns =
        Block::kRounded || panel * Block::kPanel + vector * Block::kVector < p.k;
    const auto offset = static_cast<std::uint32_t>(stage * Block::kStageBytes);
#pragma unroll
    for (int j = 0; j < Block::kCopies; ++j) {
      const bool is_wanted = has_columns && (wanted >> j & 1u) != 0;
      const std::int64_t from =
          is_wanted ? std::int64_t{first[j]} * Block::kVector + panel * Block::kPanel : 0;
      copy_async_16_or_zero(
          to + offset + static_cast<std::uint32_t>(j * Block::kRowsAtOnce * kTmaRowBytes), x + from,
          is_wanted);
    }
    if constexpr (Block::kRounded) {
      if (threadIdx.x < Block::kTokens) {
        copy_async_4(ring + offset + Block::kXScalesAt + 4 * threadIdx.x,
                     p.rounded_x.scales + panel * p.rounded_x.scale_stride + of_scale);
      }
    }
    copy_async_commit();
  }
};

/// Of a matrix of four words in each of four lanes side by side, its transpose.
__device__ __forceinline__ uint4 transpose_in_quad(std::uint32_t (&v)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const auto exchange = [](std::uint32_t& low, std::uint32_t& high, bool is_upper, int distance) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, distance);
    (is_upper ? low : high) = other;
  };
  exchange(v[0], v[1], t % 2 != 0, 1);
  exchange(v[2], v[3], t % 2 != 0, 1);
  exchange(v[0], v[2], t >= 2, 2);
  exchange(v[1], v[3], t >= 2, 2);
  return {v[0], v[1], v[2], v[3]};
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace detail
}  // namespace nanovllm::cuda
