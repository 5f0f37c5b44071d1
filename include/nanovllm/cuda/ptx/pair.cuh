#pragma once
/// Two 16-bit elements in a register, and their conversion to and from float.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"

namespace nanovllm::cuda {

/// Two 16-bit elements in a register (the first in the low half) as floats.
template <Element T>
requires(sizeof(T) == 2) __device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
  float2 out;
  if constexpr (std::same_as<T, half>) {
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
        " cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
        : "=f"(out.x), "=f"(out.y)
        : "r"(pair));
  } else {
    out.x = __uint_as_float(pair << 16);
    out.y = __uint_as_float(pair & 0xffff0000u);
  }
  return out;
}

/// Two floats rounded to nearest even; `first` in the low half.
template <Element T>
requires(sizeof(T) == 2) __device__ __forceinline__ std::uint32_t
    pack_pair(float first, float second) {
  std::uint32_t out;
  if constexpr (std::same_as<T, half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  }
  return out;
}

/// a · b of two pairs of bf16, each product rounded once.
__device__ __forceinline__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
  return out;
}

/// a · b + c of pairs of bf16, each rounded once.
__device__ __forceinline__ std::uint32_t multiply_add_pairs(std::uint32_t a, std::uint32_t b,
                                                            std::uint32_t c) {
  std::uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

__device__ __forceinline__ uint4 multiply_pairs(uint4 a, uint4 b) {
  return {multiply_pairs(a.x, b.x), multiply_pairs(a.y, b.y), multiply_pairs(a.z, b.z),
          multiply_pairs(a.w, b.w)};
}

}  // namespace nanovllm::cuda
