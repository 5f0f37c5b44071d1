#pragma once
/// Keys and values of a tile as operands of the decode kernel's products, in 16-bit formats as they
/// lie in shared memory, in 8-bit formats as halves.
///
/// Where keys have 8 bits, a matrix of ldmatrix has 16 elements a row. Products with K add up pairs
/// of elements in any order, so the four of a lane are a pair each of two operands, and those of q
/// are taken accordingly; rows of the products with V are the even elements, then the odd ones.

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/tile/kv_halves.cuh"

namespace nanovllm::cuda::detail {

/// The element of the products: that of the activations, or half where keys have 8 bits.
template <class T, class Traits>
using DecodeOperand = std::conditional_t<Traits::kHasScales, half, T>;

/// Two elements of T as two operands. Of queries beyond ±65504, half has infinities.
template <class T, class Traits>
__device__ __forceinline__ std::uint32_t decode_operands(std::uint32_t pair) {
  using Operand = DecodeOperand<T, Traits>;
  if constexpr (std::same_as<T, Operand>) {
    return pair;
  } else {
    const float2 x = unpack_pair<T>(pair);
    return pack_pair<Operand>(x.x, x.y);
  }
}

/// What the scores of a tile are multiplied by, and what their weights are. Weights of values that
/// have scales are those of 2^score · scale: they meet the values as stored, and are at most 1
/// whatever the scales.
template <class Traits>
struct DecodeScales {
  float scale_log2;

  __device__ __forceinline__ DecodeScales(std::uint32_t, int, float scale_log2_in)
      : scale_log2(scale_log2_in) {}
  __device__ __forceinline__ float of_key(int) const { return scale_log2; }
};

template <class Traits>
requires(Traits::kHasScales) struct DecodeScales<Traits> {
  float key[2];         ///< of keys g and g + 8, g = lane / 4
  float value_log2[2];  ///< log2 of the values' scales

  /// Of the tile at the shared address `tile`, of which `num_keys` keys exist.
  __device__ __forceinline__ DecodeScales(std::uint32_t tile, int num_keys, float scale_log2) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const std::uint32_t at = tile + 2 * Traits::kMatrixBytes + 4 * g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      key[i] = load_float_from_shared(at + 32 * i) * (scale_log2 * kHalfUnit<typename Traits::Kv>);
      const float log2 = __log2f(load_float_from_shared(at + 64 + 32 * i));
      // Where the values are zeros, or as good as that, weights stay finite; NaN stays NaN. What
      // lies after the last key may be anything.
      const float least = log2 < -100.f ? -100.f : log2;
      value_log2[i] = g + 8 * i < num_keys ? least + kHalfUnitLog2<typename Traits::Kv> : 0.f;
    }
  }
  __device__ __forceinline__ float of_key(int i) const { return key[i]; }
};

/// Where a lane reads its part of the first matrices of K at the shared address `keys`: keys 0–7
/// and 8–15 of a chunk, then of the next chunk.
template <class Traits>
__device__ __forceinline__ std::uint32_t key_address(std::uint32_t keys) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return keys + (lane % 16) * Traits::kRowBytes +
         (((lane / 16) ^ Traits::exchange(lane % 16)) * 16);
}

/// The same of V at the shared address `values`; in 16-bit formats two chunks of keys 0–7, then of
/// keys 8–15.
template <class Traits>
__device__ __forceinline__ std::uint32_t value_address(std::uint32_t values) {
  if constexpr (Traits::kElementBytes == 1) return key_address<Traits>(values);
  const std::uint32_t lane = threadIdx.x % 32;
  return values + (lane % 8 + lane / 16 * 8) * Traits::kRowBytes +
         (((lane / 8 % 2) ^ (lane % 8)) * 16);
}

/// Elements [32 · pair, 32 · pair + 32) of the keys as the operands A of two products.
template <class Traits>
__device__ __forceinline__ void load_keys(std::uint32_t address, int pair,
                                          std::uint32_t (&k)[2][4]) {
  if constexpr (Traits::kElementBytes == 1) {
    std::uint32_t words[4];
    ldmatrix_x4(words, address ^ (pair * 32));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      KvHalves<typename Traits::Kv>::template of<false>(words[2 * i], k[i][0], k[i][2]);
      KvHalves<typename Traits::Kv>::template of<false>(words[2 * i + 1], k[i][1], k[i][3]);
    }
  } else {
    ldmatrix_x4(k[0], address ^ (pair * 64));
    ldmatrix_x4(k[1], address ^ (pair * 64 + 32));
  }
}

/// The same of values in 8 bits, transposed.
template <class Traits>
__device__ __forceinline__ void load_value_bytes(std::uint32_t address, int pair,
                                                 std::uint32_t (&v)[2][4]) {
  std::uint32_t words[4];
  ldmatrix_x4_trans(words, address ^ (pair * 32));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    KvHalves<typename Traits::Kv>::template of<true>(words[2 * i], v[i][0], v[i][1]);
    KvHalves<typename Traits::Kv>::template of<true>(words[2 * i + 1], v[i][2], v[i][3]);
  }
}

}  // namespace nanovllm::cuda::detail
