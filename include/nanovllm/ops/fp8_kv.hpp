#pragma once
/// A KV cache of 8-bit floats with a scale for each token and head.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

/// x ≈ scale · stored: the largest |x| of a row is stored as 448, and the scale is a 448th of it. A
/// row with infinities or NaN is read as NaN, one of zeros as zeros. Half the bytes of a 16-bit
/// cache and 4 a row: 132 of 256 where head_dim is 128.
///
/// The error of an element is at most 2⁻⁴ of its value, and at most the row's largest / 448 · 2⁻¹⁰
/// where it is smaller than a 28,672nd of that.
struct Fp8Kv {
  using Stored = fp8_e4m3;
  static constexpr std::string_view kName = "float8_e4m3 with a scale a token and head";

  /// The scale of a row whose largest |x| is `largest`, infinity or NaN.
  NANOVLLM_HD static float scale_of(float largest) {
    if (!(largest <= std::numeric_limits<float>::max()))
      return std::numeric_limits<float>::quiet_NaN();
    return largest / fp8_e4m3::kMax;
  }
  /// x in a row of that scale. Products and quotients are rounded to nearest, on all backends.
  NANOVLLM_HD static fp8_e4m3 quantised(float x, float scale) {
    return scale > 0.f ? fp8_e4m3(x / scale) : fp8_e4m3(0.f);
  }

  template <class T>
  static float store(const T* row, std::int64_t n, Stored* to) {
    float largest = 0.f;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = std::abs(static_cast<float>(row[i]));
      if (x > largest || std::isnan(x)) largest = x;  // NaN stays
    }
    const float scale = scale_of(largest);
    for (std::int64_t i = 0; i < n; ++i) to[i] = quantised(static_cast<float>(row[i]), scale);
    return scale;
  }

  static void load(const Stored* from, float scale, std::int64_t n, float* row) {
    for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(from[i]) * scale;
  }
};

static_assert(ScaledKvFormat<Fp8Kv>);

}  // namespace nanovllm
