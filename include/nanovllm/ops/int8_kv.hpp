#pragma once
/// A KV cache of 8-bit integers with a scale for each token and head.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "nanovllm/core/config.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

/// x ≈ scale · stored: the largest |x| of a row is stored as 127, and the scale is a 127th of it. A
/// row with infinities or NaN is read as NaN, one of zeros as zeros. Half the bytes of a 16-bit
/// cache and 4 a row: 132 of 256 where head_dim is 128.
///
/// The error of an element is at most the row's largest / 254. docs/quantization.md compares it
/// with Fp8Kv, which takes the same bytes.
struct Int8Kv {
  using Stored = std::int8_t;
  static constexpr std::string_view kName = "int8 with a scale a token and head";

  /// The scale of a row whose largest |x| is `largest`, infinity or NaN.
  NANOVLLM_HD static float scale_of(float largest) {
    if (!(largest <= std::numeric_limits<float>::max()))
      return std::numeric_limits<float>::quiet_NaN();
    return largest / 127.f;
  }
  /// x in a row of that scale. The quotient is rounded to nearest, and to the nearest integer, ties
  /// to even, on all backends.
  NANOVLLM_HD static Stored quantised(float x, float scale) {
    if (!(scale > 0.f)) return 0;
    const float q = x / scale;
    return static_cast<Stored>(std::rint(q > 127.f ? 127.f : q < -127.f ? -127.f : q));
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

static_assert(ScaledKvFormat<Int8Kv>);

}  // namespace nanovllm
