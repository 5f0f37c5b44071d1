#pragma once
/// The blocks that `wide_m_linear` is compiled for, and what it takes. For the host; nothing here
/// needs CUDA.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

/// How a block of `wide_m_linear` and its cluster are cut.
struct WideMBlock {
  int groups = 2;   ///< of 64 rows of x, a warpgroup each
  int rows = 64;    ///< of W; half of them gates and half ups in a gated product
  int share_x = 1;  ///< blocks of a cluster that have the same rows of x
  int share_w = 1;  ///< blocks of a cluster that have the same rows of W
  int split = 1;    ///< blocks of a cluster that share K
  int stages = 4;   ///< of the ring

  [[nodiscard]] constexpr int cluster() const { return share_x * share_w * split; }
  [[nodiscard]] constexpr std::int64_t tokens() const { return 64 * groups * share_w; }
  bool operator==(const WideMBlock&) const = default;
};

/// All there are, for plain products and for gated ones.
inline constexpr WideMBlock kWideMBlocks[] = {{2, 64, 2, 1, 1}, {1, 64, 1, 1, 2}};
inline constexpr WideMBlock kWideMGatedBlocks[] = {{2, 96, 2, 1, 1}};

/// Rows of x among which they are tried.
inline constexpr std::int64_t kMinWideMRows = 65;
inline constexpr std::int64_t kMaxWideMRows = 256;

/// Whether a block is worth trying on `m` rows of x: its cluster has no more rows than two warpgroups
/// need for them.
[[nodiscard]] constexpr bool suits_wide_m_rows(WideMBlock block, std::int64_t m) {
  return m >= kMinWideMRows && m <= kMaxWideMRows &&
         ceil_div(m, block.tokens()) * block.tokens() <= ceil_div(m, std::int64_t{128}) * 128;
}

/// Whether there is a product of m rows of x by W [n, k], as far as the extents go: `n` is the columns
/// of y.
[[nodiscard]] constexpr bool fits_wide_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= 1 && n >= 1 && k >= 1 && n % 4 == 0 && k % 8 == 0 &&
         std::max({2 * n, k, m}) <= kMaxLinearExtent;
}

}  // namespace nanovllm::cuda
