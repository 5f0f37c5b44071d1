#pragma once
/// The 8-bit elements of a KV cache as operands of products of halves.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"

namespace nanovllm::cuda {

/// The formats of the cache with 8-bit elements that the kernels on tensor cores read: elements are
/// halves times 2^F::kHalfUnitLog2, and a header of the format has `KvHalves<F>`.
template <class F>
concept KvBytes = requires {
  F::kHalfUnitLog2;
};

/// `of<kApart>(word, first, second)`: the elements 0 to 3 of a word as halves, without the factor,
/// elements 0 and 1 in `first`, 2 and 3 in `second`; with `kApart` 0 and 2, 1 and 3.
template <KvBytes F>
struct KvHalves;

/// What the halves must be multiplied by to be the elements, and its log2.
template <KvBytes F>
inline constexpr float kHalfUnit = static_cast<float>(1 << F::kHalfUnitLog2);
template <KvBytes F>
inline constexpr float kHalfUnitLog2 = static_cast<float>(F::kHalfUnitLog2);

/// The elements 0 to 3 of a word times their scale, rounded to T, as `F::load` gives them, but for
/// a NaN among e4m3 elements, which is read as 480; `scale` is `kHalfUnit` times theirs.
template <KvBytes F, class T>
__device__ __forceinline__ void dequantise(std::uint32_t word, float scale, std::uint32_t& first,
                                           std::uint32_t& second) {
  KvHalves<F>::template of<false>(word, first, second);
  const float2 a = unpack_pair<half>(first), b = unpack_pair<half>(second);
  first = pack_pair<T>(__fmul_rn(a.x, scale), __fmul_rn(a.y, scale));
  second = pack_pair<T>(__fmul_rn(b.x, scale), __fmul_rn(b.y, scale));
}

}  // namespace nanovllm::cuda
