#pragma once
/// The 8-bit elements of a KV cache as halves. All of them are exact in 11 bits, and a permutation
/// of bytes with a subtraction, or a shift, is less work than a conversion.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/tile/kv_halves.cuh"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

namespace nanovllm::cuda {

namespace detail {

/// a - b of two pairs of halves.
__device__ __forceinline__ std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

/// Two e4m3 in the upper bytes of 16 bits as halves of a 256th: sign, exponent and mantissa stand
/// in the same order, one bit lower, and the exponent's bias is 8 more. Subnormals are right, too.
__device__ __forceinline__ std::uint32_t halves_of_e4m3(std::uint32_t upper) {
  return (upper & 0x80008000u) | (upper >> 1 & 0x3f803f80u);
}

}  // namespace detail

template <>
struct KvHalves<Int8Kv> {
  template <bool kApart>
  static __device__ __forceinline__ void of(std::uint32_t word, std::uint32_t& first,
                                            std::uint32_t& second) {
    // x + 128 in the lower byte of the half 1024 makes it 1152 + x.
    const std::uint32_t biased = word ^ 0x80808080u;
    first = detail::subtract_halves(__byte_perm(biased, 0x64646464u, kApart ? 0x4240 : 0x4140),
                                    0x64806480u);
    second = detail::subtract_halves(__byte_perm(biased, 0x64646464u, kApart ? 0x4341 : 0x4342),
                                     0x64806480u);
  }
};

template <KvBytes F>
requires std::same_as<KvStored<F>, fp8_e4m3>
struct KvHalves<F> {
  template <bool kApart>
  static __device__ __forceinline__ void of(std::uint32_t word, std::uint32_t& first,
                                            std::uint32_t& second) {
    first = detail::halves_of_e4m3(__byte_perm(word, 0u, kApart ? 0x2404 : 0x1404));
    second = detail::halves_of_e4m3(__byte_perm(word, 0u, kApart ? 0x3414 : 0x3424));
  }
};

}  // namespace nanovllm::cuda
