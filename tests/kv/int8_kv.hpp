#pragma once
/// A format of the KV cache that the library does not have: eight bits, with a scale a row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm::test {

/// x ≈ scale · stored, scale = the largest |x| of the row / 127. A row that has infinities or NaN
/// is loaded as NaN.
struct Int8Kv {
  using Stored = std::int8_t;
  static constexpr std::string_view kName = "int8 with a scale a row";

  template <class T>
  static float store(const T* row, std::int64_t n, Stored* to) {
    float largest = 0.f;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = std::abs(static_cast<float>(row[i]));
      largest = x <= largest ? largest : x;  // NaN stays
    }
    if (!std::isfinite(largest)) {
      std::fill_n(to, n, Stored{0});
      return std::numeric_limits<float>::quiet_NaN();
    }
    const float scale = largest / 127.f;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = scale > 0.f ? static_cast<float>(row[i]) / scale : 0.f;
      to[i] = static_cast<Stored>(std::lrint(std::clamp(x, -127.f, 127.f)));
    }
    return scale;
  }

  static void load(const Stored* from, float scale, std::int64_t n, float* row) {
    for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(from[i]) * scale;
  }
};

}  // namespace nanovllm::test
