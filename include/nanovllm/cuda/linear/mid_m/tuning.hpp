#pragma once
/// The forms of `mid_m_linear`, and which of them do a shape. For the host; nothing here needs CUDA.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// Most rows of x that `mid_m_linear` takes.
inline constexpr std::int64_t kMaxMidMRows = 64;

/// Rows of W of a block, and blocks of a cluster, which share K.
struct MidMVariant {
  int rows;
  int split;
};

/// The forms of a plain product, and of one with SwiGLU. A variant is an index into one of them.
inline constexpr MidMVariant kMidMVariants[] = {{32, 4}, {64, 2}, {64, 8}};
inline constexpr MidMVariant kMidMGatedVariants[] = {{96, 2}};

[[nodiscard]] constexpr int num_mid_m_variants(bool gated) {
  return static_cast<int>(gated ? std::size(kMidMGatedVariants) : std::size(kMidMVariants));
}
[[nodiscard]] constexpr MidMVariant mid_m_variant(bool gated, int index) {
  return gated ? kMidMGatedVariants[index] : kMidMVariants[index];
}

/// Columns of K in a panel.
inline constexpr int kMidMColumns = 64;

/// Panels of K that one of `split` blocks takes.
[[nodiscard]] constexpr std::int64_t mid_m_panels(std::int64_t k, int split) {
  return ceil_div(ceil_div(k, std::int64_t{kMidMColumns}), std::int64_t{split});
}

/// Shared memory of a block where two stand on a multiprocessor that has this much for one.
[[nodiscard]] constexpr std::int64_t mid_m_shared_bytes(std::int64_t max_shared_bytes) {
  return (max_shared_bytes - 1024) / 2;
}

/// Whether `mid_m_linear` does m rows of x by W [n, k], as far as the extents go.
[[nodiscard]] constexpr bool fits_mid_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMostColumns = 1 << 18;  // whose norm weights have room
  return m >= 1 && m <= kMaxMidMRows && n >= 1 && k >= 8 && k % 8 == 0 && k <= kMostColumns &&
         n <= std::int64_t{1} << 30;
}

/// Whether start-up should try it. Larger weights are read no faster than by cuBLASLt, and whole
/// layers of them are slower than their parts one by one promise.
[[nodiscard]] constexpr bool suits_mid_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kFewestRows = 9, kMostElements = std::int64_t{1} << 23;
  return m >= kFewestRows && fits_mid_m(m, n, k) && n <= kMostElements / k;
}

}  // namespace nanovllm::cuda
