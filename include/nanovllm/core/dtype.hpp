#pragma once
/// Storage types for 16-bit floats, and the run-time names of element types.
///
/// `bf16` and `half` hold bits; arithmetic is done in float. Both have the layout of the CUDA
/// types of the same width, so device code may bit-cast.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "nanovllm/core/config.hpp"

namespace nanovllm {

/// bfloat16: the upper half of a float32. Conversion from float rounds to nearest even; NaN stays
/// NaN.
struct bf16 {
  std::uint16_t bits;

  bf16() = default;
  NANOVLLM_HD explicit constexpr bf16(float value) : bits(round(value)) {}
  NANOVLLM_HD constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  NANOVLLM_HD static constexpr std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

/// IEEE 754 binary16. Conversion from float rounds to nearest even; overflow becomes infinity.
struct half {
  std::uint16_t bits;

  half() = default;
  NANOVLLM_HD explicit constexpr half(float value) : bits(round(value)) {}
  NANOVLLM_HD constexpr operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
      return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero: exact
    return sign ? -magnitude : magnitude;
  }

 private:
  NANOVLLM_HD static constexpr std::uint16_t round(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    const std::uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // ≥ 65520 rounds to infinity
    if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal
      // Adding 0.5 aligns the mantissa so that the float adder does the rounding.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
    }
    const std::uint32_t rebased = magnitude - (112u << 23);
    return sign | static_cast<std::uint16_t>((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
  }
};

/// Element types a tensor may have in memory.
enum class DType : std::uint8_t { float32, float16, bfloat16 };

/// A type that weights, activations and the KV cache may be made of.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, half> || std::same_as<T, bf16>;

/// The run-time name of element type `T`.
template <Element T>
inline constexpr DType kDType = std::same_as<T, float>  ? DType::float32
                                : std::same_as<T, half> ? DType::float16
                                                        : DType::bfloat16;

/// "float32", "float16" or "bfloat16", as config.json spells them.
[[nodiscard]] constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
  }
  return "?";
}

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_bytes(DType dtype) {
  return dtype == DType::float32 ? 4 : 2;
}

}  // namespace nanovllm
