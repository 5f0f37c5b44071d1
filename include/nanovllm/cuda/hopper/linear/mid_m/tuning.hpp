#pragma once
/// The forms of `mid_m_linear`, and which of them do a shape. For the host; nothing here needs
/// CUDA.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

/// Most rows of x that `mid_m_linear` takes.
inline constexpr std::int64_t kMaxMidMRows = 64;

/// How a block of `mid_m_linear` is cut.
struct MidMVariant {
  int rows;    ///< of W; half of them gates and half ups in a gated product
  int split;   ///< blocks of a cluster, which share K
  int panels;  ///< of K in a stage of the rings; K must be whole panels where it is not 1

  /// Whether blocks of a cluster may share a multiprocessor, so that all clusters find room at
  /// once. o of Qwen3-8B takes 10.4 us on 8 rows by clusters of four, not 13.6. Clusters of two and
  /// eight gain nothing; with those of 32 rows of W a layer of Qwen3-0.6B takes up to 0.5 us
  /// longer.
  bool packs = false;
};

/// All there are. Two blocks on each of 132 multiprocessors are fastest: which form makes them
/// depends on the extents of W.
inline constexpr MidMVariant kMidMVariants[] = {
    {32, 4, 2}, {32, 2, 2}, {48, 2, 2}, {64, 4, 1, true}, {64, 8, 1}};
inline constexpr MidMVariant kMidMNormedVariants[] = {{64, 2, 1}, {64, 2, 2}, {48, 2, 2}};
inline constexpr MidMVariant kMidMGatedVariants[] = {{96, 2, 1}, {96, 1, 1}};
/// The one of them that there is without a norm in 16 bits; of e4m3 there are all.
inline constexpr int kMidMUnnormedGated = 0;

inline constexpr ProductForms<MidMVariant> kMidMForms{
    .plain = kMidMVariants, .normed = kMidMNormedVariants, .gated = kMidMGatedVariants};

/// Bytes of a row of x, or of W, in a panel.
inline constexpr int kMidMPanelBytes = 128;

/// Panels of rows of so many bytes that one block of a cluster takes: whole stages.
[[nodiscard]] constexpr std::int64_t mid_m_panels(std::int64_t row_bytes, MidMVariant form) {
  return ceil_div(ceil_div(row_bytes, std::int64_t{kMidMPanelBytes}),
                  std::int64_t{form.split * form.panels}) *
         form.panels;
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

/// Whether start-up should try it: on fewer rows only where weights are large, for else the kernels
/// of `small_m/` are faster.
[[nodiscard]] constexpr bool suits_mid_m(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kFewestRows = 5;
  return fits_mid_m(m, n, k) && (m >= kFewestRows || n > kSmallWeights / k);
}

}  // namespace nanovllm::cuda
