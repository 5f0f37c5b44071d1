#pragma once
/// 8-bit floats in registers: made from floats, and as operands of products of bf16.

#include <bit>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"

namespace nanovllm::cuda {

/// Columns that share a scale, of weights and of activations.
inline constexpr std::int64_t kFp8Group = 128;

/// Rounded as `fp8_e4m3(float)` does; `first` in the low byte.
__device__ __forceinline__ std::uint32_t pack_e4m3(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(second), "f"(first));
  return out;
#else
  return fp8_e4m3(first).bits | static_cast<std::uint32_t>(fp8_e4m3(second).bits) << 8;
#endif
}

/// The values of the four e4m3 elements of a word.
__device__ __forceinline__ void unpack_e4m3(std::uint32_t word, float& a, float& b, float& c,
                                            float& d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint32_t first, second;  // pairs of half
  asm("{\n\t"
      ".reg .b16 low, high;\n\t"
      "mov.b32 {low, high}, %2;\n\t"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n\t"
      "}"
      : "=r"(first), "=r"(second)
      : "r"(word));
  const float2 low = unpack_pair<half>(first), high = unpack_pair<half>(second);
  a = low.x, b = low.y, c = high.x, d = high.y;
#else
  const auto value = [&](int i) {
    return static_cast<float>(std::bit_cast<fp8_e4m3>(static_cast<std::uint8_t>(word >> 8 * i)));
  };
  a = value(0), b = value(1), c = value(2), d = value(3);
#endif
}

/// What `small_bf16_of` leaves out.
inline constexpr float kE4m3Unit = 0x1p120f;

/// The e4m3 elements 0 to 3 of a word as bf16 in units of 1 / kE4m3Unit: 0 and 1 in `first`, 2 and
/// 3 in `second`. Sign, exponent and mantissa stand in the same order, four bits lower, so it is a
/// shift; subnormals are right, too. A NaN becomes 480 of these units.
__device__ __forceinline__ void small_bf16_of(std::uint32_t word, std::uint32_t& first,
                                              std::uint32_t& second) {
  const auto moved = [](std::uint32_t upper) {
    return (upper & 0x80008000u) | (upper >> 4 & 0x07f007f0u);
  };
  first = moved(__byte_perm(word, 0u, 0x1404));
  second = moved(__byte_perm(word, 0u, 0x3424));
}

}  // namespace nanovllm::cuda
