#pragma once
/// A block of experts.cuh: how it is cut, what it does, and how it brings rows of x.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/with/moe/cuda/grouped_part.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda::detail {

/// Weights `W` are bf16 or e4m3. Of e4m3, stages of bytes lie after the ring (fp8_weights.cuh).
template <bool kIsGated, class W>
struct WideExpertsBlock {
  using Operands = GroupedOperands<bf16, W>;
  static constexpr bool kConverts = std::same_as<W, fp8_e4m3>;
  static constexpr bool kGated = kIsGated;
  static constexpr int kTokens = 128;
  static constexpr int kRows = 256;                            ///< of W
  static constexpr int kColumns = kGated ? kRows / 2 : kRows;  ///< of y
  static constexpr int kBoxRows = 128;                         ///< of W in a copy
  static constexpr int kGroup = 128;                           ///< threads of a warpgroup
  static constexpr int kProducerGroups = kConverts ? 2 : 1, kConsumerGroups = 2;
  static constexpr int kProducers = kProducerGroups * kGroup;
  static constexpr int kThreads = kProducers + kConsumerGroups * kGroup;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = kConverts ? 200 : 224;
  static constexpr int kStages = kConverts ? 3 : 4;
  static constexpr int kXBytes = kTokens * kTmaRowBytes;
  static constexpr int kBoxBytes = kBoxRows * kTmaRowBytes;
  static constexpr int kWeightBytes = 2 * kBoxBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kRowsAtOnce = kProducers / 8;  ///< of x; a thread copies a vector of each
  static constexpr int kCopies = kTokens / kRowsAtOnce;
  // Stages of bytes: 128 columns of the rows of W, and their scales.
  static constexpr int kByteStages = kConverts ? 2 : 0;
  static constexpr int kBytesAt = kStages * kStageBytes;
  static constexpr int kScalesAt = kWeightBytes;  ///< in a stage of bytes
  static constexpr int kByteStageBytes = kScalesAt + 4 * kRows;
  static constexpr int kSharedBytes = kBytesAt + kByteStages * kByteStageBytes + kAlignment;
  static_assert(kSharedBytes <= 226 * 1024 && kByteStageBytes % kAlignment == 0);
  static_assert(kProducers * kProducerRegisters + kConsumerGroups * kGroup * kConsumerRegisters <=
                64 * 1024);

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

/// The rows of x of an item, as the producers' threads copy them: a vector of each of `kCopies`
/// rows.
template <class Block>
struct WideExpertsRows {
  std::uint32_t first[Block::kCopies];  ///< vectors from the beginning of x
  std::uint32_t wanted;
  std::uint32_t to;  ///< in the first stage, under the swizzle of the copy engine

  __device__ __forceinline__ WideExpertsRows(const typename Block::Operands& p,
                                             const ExpertTile& tile, std::uint32_t ring)
      : wanted(0) {
    const int row = static_cast<int>(threadIdx.x) / 8, vector = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < Block::kCopies; ++i) {
      const int r = row + Block::kRowsAtOnce * i;
      first[i] = 0;
      if (r >= tile.count) continue;
      wanted |= 1u << i;
      first[i] = static_cast<std::uint32_t>(
          planned_pair(p, tile.first + r) / p.divisor * p.x_stride / 8 + vector);
    }
    to = ring + static_cast<std::uint32_t>(row * kTmaRowBytes + ((vector ^ row % 8) << 4));
  }

  /// Starts copying panel `panel` to a stage, one group of copies of this thread; zeros for rows
  /// and columns that do not exist.
  __device__ __forceinline__ void copy(const typename Block::Operands& p, int panel,
                                       int stage) const {
    const int vector = static_cast<int>(threadIdx.x) % 8;
    const bool has_columns = panel * kTmaColumns + vector * 8 < p.k;
#pragma unroll
    for (int j = 0; j < Block::kCopies; ++j) {
      const bool is_wanted = has_columns && (wanted >> j & 1u) != 0;
      const std::int64_t from = is_wanted ? std::int64_t{first[j]} * 8 + panel * kTmaColumns : 0;
      copy_async_16_or_zero(to + static_cast<std::uint32_t>(stage * Block::kStageBytes) +
                                static_cast<std::uint32_t>(j * Block::kRowsAtOnce * kTmaRowBytes),
                            p.x + from, is_wanted);
    }
    copy_async_commit();
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
