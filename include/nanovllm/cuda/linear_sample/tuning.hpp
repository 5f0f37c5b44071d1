#pragma once
/// The blocks that `linear_sample` is compiled for, and what it takes. For the host; nothing here
/// needs CUDA.

#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// How a block of `linear_sample` is cut.
struct LinearSampleBlock {
  int columns;   ///< most rows of x
  int subtiles;  ///< tokens of a tile in units of 128
  int stages;    ///< of the ring
  int cluster;   ///< blocks that share rows of x
};

/// All blocks there are. A form is an index into them.
inline constexpr LinearSampleBlock kLinearSampleBlocks[] = {
    {8, 1, 10, 1}, {16, 1, 10, 1}, {32, 1, 9, 1}, {64, 1, 8, 1}, {128, 1, 6, 2}, {256, 1, 4, 2},
};
inline constexpr int kNumLinearSampleForms = static_cast<int>(std::size(kLinearSampleBlocks));

/// Most rows of x.
inline constexpr std::int64_t kMaxLinearSampleRows = 256;

/// Whether start-up tries a form for so many rows: none of fewer columns would do.
[[nodiscard]] constexpr bool suits_linear_sample(int form, std::int64_t rows) {
  const int columns = kLinearSampleBlocks[form].columns;
  for (const LinearSampleBlock& other : kLinearSampleBlocks) {
    if (other.columns < columns && rows <= other.columns) return false;
  }
  return rows <= columns;
}

/// Whether `linear_sample` does m rows of x by W [vocab, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_linear_sample(std::int64_t m, std::int64_t vocab,
                                                std::int64_t k) {
  return m >= 1 && m <= kMaxLinearSampleRows && vocab >= 1 && vocab <= (std::int64_t{1} << 30) &&
         k >= 8 && k % 8 == 0 && k <= (std::int64_t{1} << 20);
}

}  // namespace nanovllm::cuda
