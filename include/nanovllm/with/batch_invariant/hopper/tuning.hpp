#pragma once
/// How a block of `batch_invariant_linear` may be cut, and what it takes. For the host; nothing
/// here needs CUDA.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

inline constexpr int kBatchInvariantColumns = 64;  ///< of K in a panel
inline constexpr int kBatchInvariantAlignment =
    1024;  ///< of panels in shared memory, for the swizzle

/// Rows of W and of x that a block of `batch_invariant_linear` owns.
struct BatchInvariantBlock {
  int rows = 64;
  int tokens = 64;
  int panels = 1;  ///< of 64 columns in a stage: 1 or kBatchInvariantPanels

  bool operator==(const BatchInvariantBlock&) const = default;
};

inline constexpr int kBatchInvariantPanels = 4;

/// All there are.
inline constexpr BatchInvariantBlock kBatchInvariantBlocks[] = {
    {32, 8, 1},  {64, 8, 1},  {32, 16, 1}, {64, 16, 1}, {32, 32, 1},  {64, 32, 1},
    {32, 64, 1}, {64, 64, 1}, {32, 8, 4},  {64, 8, 4},  {32, 16, 4},  {64, 16, 4},
    {32, 32, 4}, {64, 32, 4}, {32, 64, 4}, {64, 64, 4}, {64, 128, 1}, {128, 256, 1}};

/// What the others are held against, bit for bit.
inline constexpr BatchInvariantBlock kBatchInvariantReference{64, 64};

[[nodiscard]] constexpr bool has_batch_invariant_block(BatchInvariantBlock block) {
  return std::find(std::begin(kBatchInvariantBlocks), std::end(kBatchInvariantBlocks), block) !=
         std::end(kBatchInvariantBlocks);
}

/// Most rows of a step whose products are added to the residual by their kernels. With 16 that
/// takes longer than `add_rms_norm` does.
inline constexpr std::int64_t kMaxBatchInvariantSums = 8;

inline constexpr int kBatchInvariantMaxStages = 32;  ///< of a block's ring
/// Stages under way after the newest; more gain nothing, for products of a chain wait for each
/// other.
inline constexpr int kBatchInvariantPending = 1;

/// Whether `batch_invariant_linear` does m rows of x by W [n, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_batch_invariant_linear(std::int64_t m, std::int64_t n,
                                                         std::int64_t k) {
  constexpr std::int64_t kMaxGridY = 65535;
  return k % 8 == 0 && std::max(n, k) <= kMaxLinearExtent && m <= 64 * kMaxGridY;
}

/// Whether a block of this shape is worth trying on `m` rows of x. Blocks of 16 are the fastest for
/// what they do, so that several may beat one that has room for all rows.
[[nodiscard]] constexpr bool suits_batch_invariant_rows(BatchInvariantBlock block, std::int64_t m) {
  switch (block.tokens) {
    case 8: return m <= 8;
    case 16: return m <= 64;
    case 32: return m > 16 && m <= 32;
    case 64: return m > 16 && m <= 1024;
    default: return m > block.tokens / 4;
  }
}

/// A good shape for m rows of x by n rows of W where nothing was timed: room for the rows of x, and
/// as many rows of W as leave a block for four multiprocessors of ten.
[[nodiscard]] constexpr BatchInvariantBlock default_batch_invariant_block(std::int64_t m,
                                                                          std::int64_t n,
                                                                          int num_sms) {
  if (m > 512) return {128, 256, 1};
  const int tokens = m <= 16 ? 16 : m <= 32 ? 32 : 64;
  const bool fills = ceil_div(n, 64) * ceil_div(m, tokens) * 10 >= num_sms * 4;
  return fills ? BatchInvariantBlock{64, tokens, 1}
               : BatchInvariantBlock{32, tokens, kBatchInvariantPanels};
}

/// Stages of the rings of `blocks` blocks that pass through `all_stages` of them: blocks that run
/// on a multiprocessor at a time, four at the most, share its memory, fewer if they would have too
/// little.
[[nodiscard]] constexpr int batch_invariant_stages(std::int64_t blocks, int all_stages,
                                                   int stage_bytes, int other_bytes, int num_sms,
                                                   std::int64_t max_shared_bytes) {
  constexpr std::int64_t kOfBlock = 2048;  // what the driver and the barriers take
  const std::int64_t enough = std::min<std::int64_t>(all_stages, kBatchInvariantPending + 3);
  std::int64_t together = std::clamp<std::int64_t>(ceil_div(blocks, std::int64_t{num_sms}), 1, 4);
  const auto fitting = [&] {
    return (max_shared_bytes / together - kOfBlock - other_bytes) / stage_bytes;
  };
  while (together > 1 && fitting() < enough) --together;
  return static_cast<int>(
      std::min({fitting(), std::int64_t{all_stages}, std::int64_t{kBatchInvariantMaxStages}}));
}

}  // namespace nanovllm::cuda
