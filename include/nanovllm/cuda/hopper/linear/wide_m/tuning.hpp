#pragma once
/// The blocks that `wide_m_linear` is compiled for, and what it takes. For the host; nothing here
/// needs CUDA.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

/// How a block of `wide_m_linear` is cut.
struct WideMBlock {
  int rows;    ///< of W; half of them gates and half ups in a gated product
  int split;   ///< blocks that share K
  int stages;  ///< of the ring
};

/// All there are.
inline constexpr WideMBlock kWideMBlocks[] = {{64, 2, 6}, {64, 2, 10}, {32, 2, 8}};
inline constexpr WideMBlock kWideMNormedBlocks[] = {{64, 1, 6}, {96, 1, 5}, {128, 1, 4}};
inline constexpr WideMBlock kWideMGatedBlocks[] = {{96, 1, 5}, {96, 1, 4}};

inline constexpr ProductForms<WideMBlock> kWideMForms{
    .plain = kWideMBlocks, .normed = kWideMNormedBlocks, .gated = kWideMGatedBlocks};

/// Rows of x among which start-up tries them.
inline constexpr std::int64_t kMinWideMRows = 65;
inline constexpr std::int64_t kMaxWideMRows = 256;

[[nodiscard]] constexpr bool suits_wide_m_rows(std::int64_t m) {
  return m >= kMinWideMRows && m <= kMaxWideMRows;
}

/// Whether `wide_m_linear` does m rows of x by W, to n columns of y, as far as the extents go.
[[nodiscard]] constexpr bool fits_wide_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= 1 && n >= 1 && k >= 8 && n % 4 == 0 && k % 8 == 0 &&
         std::max({2 * n, k, m}) <= kMaxLinearExtent;
}

}  // namespace nanovllm::cuda
