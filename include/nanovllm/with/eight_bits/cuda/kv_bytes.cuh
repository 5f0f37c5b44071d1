#pragma once
/// The 8-bit elements of a KV cache as operands of products of halves. All of them are exact in 11
/// bits, and a permutation of bytes with a subtraction, or a shift, is less work than a conversion.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

namespace nanovllm::cuda {

/// The formats of the cache with 8-bit elements that the kernels on tensor cores read.
template <class F>
concept KvBytes = std::same_as<F, Int8Kv> || std::same_as<F, Fp8Kv> || std::same_as<F, StaticFp8Kv>;

/// What the halves of `halves_of` must be multiplied by to be the elements, and its log2.
template <KvBytes F>
inline constexpr float kHalfUnit = std::same_as<KvStored<F>, fp8_e4m3> ? 256.f : 1.f;
template <KvBytes F>
inline constexpr float kHalfUnitLog2 = std::same_as<KvStored<F>, fp8_e4m3> ? 8.f : 0.f;

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

/// The elements 0 to 3 of a word as halves, in units of `kHalfUnit`: elements 0 and 1 in
/// `first`, 2 and 3 in `second`; with `kApart` 0 and 2, 1 and 3.
template <KvBytes F, bool kApart>
__device__ __forceinline__ void halves_of(std::uint32_t word, std::uint32_t& first,
                                          std::uint32_t& second) {
  if constexpr (std::same_as<F, Int8Kv>) {
    // x + 128 in the lower byte of the half 1024 makes it 1152 + x.
    const std::uint32_t biased = word ^ 0x80808080u;
    first = detail::subtract_halves(__byte_perm(biased, 0x64646464u, kApart ? 0x4240 : 0x4140),
                                    0x64806480u);
    second = detail::subtract_halves(__byte_perm(biased, 0x64646464u, kApart ? 0x4341 : 0x4342),
                                     0x64806480u);
  } else {
    first = detail::halves_of_e4m3(__byte_perm(word, 0u, kApart ? 0x2404 : 0x1404));
    second = detail::halves_of_e4m3(__byte_perm(word, 0u, kApart ? 0x3414 : 0x3424));
  }
}

/// The elements 0 to 3 of a word times their scale, rounded to T, as `F::load` gives them, but for
/// a NaN among e4m3 elements, which is read as 480; `scale` is `kHalfUnit` times theirs.
template <KvBytes F, class T>
__device__ __forceinline__ void dequantise(std::uint32_t word, float scale, std::uint32_t& first,
                                           std::uint32_t& second) {
  halves_of<F, false>(word, first, second);
  const float2 a = unpack_pair<half>(first), b = unpack_pair<half>(second);
  first = pack_pair<T>(__fmul_rn(a.x, scale), __fmul_rn(a.y, scale));
  second = pack_pair<T>(__fmul_rn(b.x, scale), __fmul_rn(b.y, scale));
}

}  // namespace nanovllm::cuda
