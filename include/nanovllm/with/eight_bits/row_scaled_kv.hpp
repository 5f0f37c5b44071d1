#pragma once
/// What formats of the KV cache have in common that scale a row by its largest element.

#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/core/config.hpp"

namespace nanovllm {

/// A row is kept as stored · scale, the scale being its largest |x| / `Format::kLargest`. A row
/// with infinities or NaN is read as NaN, one of zeros as zeros. `Format::quantised(x)` is what x,
/// |x| up to `kLargest`, is stored as. Quotients and products are rounded to nearest, on all
/// backends.
template <class Format, class StoredT>
struct RowScaledKv {
  using Stored = StoredT;
  static constexpr bool kIsProduct = true;  ///< see ByteKvFormat

  /// The scale of a row whose largest |x| is `largest`, infinity or NaN.
  NANOVLLM_HD static float scale_of(float largest) {
    if (!(largest <= std::numeric_limits<float>::max()))
      return std::numeric_limits<float>::quiet_NaN();
    return largest / Format::kLargest;
  }

  template <class T>
  static float store(const T* row, std::int64_t n, Stored* to) {
    float largest = 0.f;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = std::abs(static_cast<float>(row[i]));
      if (x > largest || std::isnan(x)) largest = x;  // NaN stays
    }
    const float scale = scale_of(largest);
    for (std::int64_t i = 0; i < n; ++i)
      to[i] = Format::quantised(scale > 0.f ? static_cast<float>(row[i]) / scale : 0.f);
    return scale;
  }

  static void load(const Stored* from, float scale, std::int64_t n, float* row) {
    for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(from[i]) * scale;
  }
};

}  // namespace nanovllm
