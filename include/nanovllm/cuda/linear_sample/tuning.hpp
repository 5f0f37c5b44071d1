#pragma once
/// The blocks that `linear_sample` is compiled for, and what it takes. For the host; nothing here
/// needs CUDA.

#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// How a block of `linear_sample` is cut.
struct LinearSampleBlock {
  int columns;  ///< most rows of x
  int stages;   ///< of the ring
};

/// All blocks there are. A form is an index into them.
inline constexpr LinearSampleBlock kLinearSampleBlocks[] = {{16, 10}, {32, 9}, {64, 8}};
inline constexpr int kNumLinearSampleForms = static_cast<int>(std::size(kLinearSampleBlocks));

/// Most rows of x. With more of them the draw takes longer than the weights to come, and two kernels
/// are faster.
inline constexpr std::int64_t kMaxLinearSampleRows = 64;

/// The form for so many rows, up to kMaxLinearSampleRows: the one of fewest columns that do.
[[nodiscard]] constexpr int linear_sample_form(std::int64_t rows) {
  int form = 0;
  while (kLinearSampleBlocks[form].columns < rows) ++form;
  return form;
}

/// Whether `linear_sample` does m rows of x by W [vocab, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_linear_sample(std::int64_t m, std::int64_t vocab,
                                                std::int64_t k) {
  return m >= 1 && m <= kMaxLinearSampleRows && vocab >= 1 && vocab <= (std::int64_t{1} << 30) &&
         k >= 8 && k % 8 == 0 && k <= (std::int64_t{1} << 20);
}

}  // namespace nanovllm::cuda
