#pragma once
/// Where `wide_m_linear` puts its results: a thread's part of y, from the sums that wgmma leaves
/// it. A float32 sum is rounded once, after y's old value was added to it where that is wanted.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/ptx/pair.cuh"

namespace nanovllm::cuda::detail {

/// Where results go and how the work is cut, by value.
template <class T>
struct WideMParams {
  T* y;
  const T* norm;  ///< weights of the norm, if there is one
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;  ///< columns of y
  std::int32_t k;
  std::int32_t panels;       ///< of 64 columns, in K
  std::int32_t token_tiles;  ///< of rows of x
  float eps;                 ///< added to the mean square
  bool accumulate;
};

/// A thread's part of y: of each pair of tiles of 8 columns, in row g and in row g + 8 of its
/// warp's, 4 neighbouring columns, so that a warp writes whole sectors of 32 bytes. It holds sums
/// of two columns of either tile, and trades with the lane beside it.
template <int kPairs, class T>
struct WideMOutput {
  T* y;
  std::int64_t stride;
  int tokens_left, columns_left;
  bool odd;
  uint2 old[2 * kPairs];

  /// `row` is the thread's first, `column` the first of the first pair.
  __device__ __forceinline__ WideMOutput(const WideMParams<T>& p, int row, int column) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    odd = t % 2 != 0;
    column += t % 2 * 8 + t / 2 * 4;
    y = p.y + row * p.y_stride + column;
    stride = p.y_stride;
    tokens_left = p.num_tokens - row;
    columns_left = p.n - column;
    if (!p.accumulate) return;
    each([&](int pair, int half) {
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                   : "=r"(old[2 * pair + half].x), "=r"(old[2 * pair + half].y)
                   : "l"(__cvta_generic_to_global(at(pair, half)))
                   : "memory");
    });
  }

  __device__ __forceinline__ T* at(int pair, int half) const {
    return y + 8 * half * stride + 16 * pair;
  }
  template <class Use>
  __device__ __forceinline__ void each(const Use& use) const {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (8 * half < tokens_left && 16 * pair < columns_left) use(pair, half);
      }
    }
  }

  /// The pair of registers of either tile for the four columns of one, and back.
  __device__ __forceinline__ uint2 trade(uint2 v) const {
    const std::uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? v.x : v.y, 1);
    return odd ? uint2{got, v.y} : uint2{v.x, got};
  }

  /// Rounds and writes; `sum[4 · tile + 2 · half + column]`.
  __device__ __forceinline__ void store(float (&sum)[8 * kPairs], bool accumulate) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const first = sum + 8 * pair + 2 * half;
        float* const second = first + 4;
        uint2& out = old[2 * pair + half];
        if (accumulate) {
          const uint2 before = trade(out);
          const float2 a = unpack_pair<T>(before.x), b = unpack_pair<T>(before.y);
          first[0] += a.x, first[1] += a.y;
          second[0] += b.x, second[1] += b.y;
        }
        out = trade({pack_pair<T>(first[0], first[1]), pack_pair<T>(second[0], second[1])});
      }
    }
    each([&](int pair, int half) {
      asm volatile(
          "st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(at(pair, half))),
          "r"(old[2 * pair + half].x), "r"(old[2 * pair + half].y)
          : "memory");
    });
  }
};

}  // namespace nanovllm::cuda::detail
