#pragma once
/// The 8-bit float that weights and caches are kept in.

#include <bit>
#include <cstdint>

#include "nanovllm/core/config.hpp"

namespace nanovllm {

/// e4m3fn: a sign, 4 bits of exponent, 3 of mantissa; ±448 at the most, no infinities, and one NaN
/// of each sign. Conversion from float rounds to nearest even, and what is larger becomes ±448; NaN
/// stays NaN.
/// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
struct fp8_e4m3 {
  std::uint8_t bits;

  static constexpr float kMax = 448.f;

  fp8_e4m3() = default;
  NANOVLLM_HD explicit constexpr fp8_e4m3(float value) : bits(round(value)) {}
  NANOVLLM_HD constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
    if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
    // The exponent's bias is 7, a float's 127. Of a subnormal the product is exact, too.
    return std::bit_cast<float>(sign | (magnitude << 20)) * 0x1p120f;
  }

 private:
  NANOVLLM_HD static constexpr std::uint8_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fu;
    if (magnitude >= 0x43e00000u) return sign | 0x7eu;  // ≥ 448
    if (magnitude < 0x3c800000u) {                      // below 2^-6: subnormal
      // Adding 2^14 aligns the mantissa so that the float adder does the rounding.
      const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
      return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(shifted) - 0x46800000u);
    }
    const std::uint32_t rebased = magnitude - (120u << 23);
    return sign | static_cast<std::uint8_t>((rebased + 0x7ffffu + ((rebased >> 20) & 1u)) >> 20);
  }
};

}  // namespace nanovllm
