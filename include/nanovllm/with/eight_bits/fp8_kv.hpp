#pragma once
/// A KV cache of 8-bit floats with a scale for each token and head, and what such formats have in
/// common.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/ops/kv_format.hpp"

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

/// x ≈ scale · stored in e4m3. Half the bytes of a 16-bit cache and 4 a row: 132 of 256 where
/// head_dim is 128.
///
/// The error of an element is at most 2⁻⁴ of its value, and at most the row's largest / 448 · 2⁻¹⁰
/// where it is smaller than a 28,672nd of that.
struct Fp8Kv : RowScaledKv<Fp8Kv, fp8_e4m3> {
  static constexpr std::string_view kName = "float8_e4m3 with a scale a token and head";
  static constexpr float kLargest = fp8_e4m3::kMax;
  static constexpr int kHalfUnitLog2 = 8;  ///< see KvBytes of cuda/tile/kv_halves.cuh

  NANOVLLM_HD static fp8_e4m3 quantised(float x) { return fp8_e4m3(x); }
};

static_assert(ScaledKvFormat<Fp8Kv>);

}  // namespace nanovllm
