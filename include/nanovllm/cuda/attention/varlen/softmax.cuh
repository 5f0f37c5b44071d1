#pragma once
/// The softmax of flash attention on tiles of scores in registers, in the layout of wgmma and mma:
/// a thread holds columns 8i + 2t + {0, 1} of rows g and g + 8 (g = lane / 4, t = lane % 4) in
/// s[4i + {0, 1}] and s[4i + {2, 3}].
///
///   weights p = 2^(c (s - m)),   c = scale · log2 e,   m the running maximum of the row
///
/// The scale is folded into the exponent, one fused multiply-add a score. Sums stay apart in the
/// four threads of a row until `finish`.
/// Source: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024.

#include <cmath>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"

namespace nanovllm::cuda {

/// Maximum and sum of the two rows that a thread shares with the three others of its quad.
struct RowSoftmax {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.f, 0.f};

  /// Takes a tile of scores in and leaves its weights in `s`. `shrink[r]` is what everything summed
  /// with earlier weights must be multiplied by.
  ///
  /// With `kMasked`, only the columns below `limit` (for row g) or `limit` + 8 (row g + 8) count;
  /// `limit` may lie outside of the tile, and NaN in what does not count is harmless.
  template <bool kMasked, int kSize>
  __device__ __forceinline__ void update(float (&s)[kSize], int limit, float c,
                                         float (&shrink)[2]) {
    if constexpr (kMasked) mask(s, limit);
    float base[2];  // c · m
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = max[r];
      max[r] = row_max(s, r, old);
      // A row that has seen no key yet keeps weights of 0 rather than NaN.
      const float m = kMasked && max[r] == -INFINITY ? 0.f : max[r];
      base[r] = m * c;
      shrink[r] = exp2_approx((old - m) * c);
    }
    float partial[2][2] = {};
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const int r = i / 2 % 2;
      s[i] = exp2_approx(__fmaf_rn(s[i], c, -base[r]));
      partial[r][i % 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = __fmaf_rn(sum[r], shrink[r], partial[r][0] + partial[r][1]);
    }
  }

  /// The sum of row g + 8r over its four threads.
  __device__ __forceinline__ float total(int r) const {
    float out = sum[r];
    out += __shfl_xor_sync(0xffffffffu, out, 1);
    out += __shfl_xor_sync(0xffffffffu, out, 2);
    return out;
  }

  /// 1 / `total`; 0 for a row without keys.
  __device__ __forceinline__ float finish(int r) const {
    const float all = total(r);
    return all == 0.f ? 0.f : __frcp_rn(all);
  }

 private:
  template <int kSize>
  static __device__ __forceinline__ void mask(float (&s)[kSize], int limit) {
    const int bound = limit - 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const int column = 8 * (i / 4) + i % 2;  // less 2t
      if (column >= bound + 8 * (i / 2 % 2)) s[i] = -INFINITY;
    }
  }

  template <int kSize>
  static __device__ __forceinline__ float row_max(const float (&s)[kSize], int r, float old) {
    float m[2] = {old, old};  // two chains, because one warp a scheduler may be all that runs
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      m[0] = fmaxf(m[0], s[i + 2 * r]);
      m[1] = fmaxf(m[1], s[i + 2 * r + 1]);
    }
    float out = fmaxf(m[0], m[1]);
    out = fmaxf(out, __shfl_xor_sync(0xffffffffu, out, 1));
    return fmaxf(out, __shfl_xor_sync(0xffffffffu, out, 2));
  }
};

/// Multiplies rows g and g + 8 of an accumulator by factors.
template <int kSize>
__device__ __forceinline__ void scale_rows(float (&o)[kSize], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) o[i] *= factor[i / 2 % 2];
}

/// Rounds weights to operands of the product with V: a[k] covers 16 keys.
template <class T, int kSize>
__device__ __forceinline__ void pack_weights(const float (&s)[kSize],
                                             std::uint32_t (&a)[kSize / 8][4]) {
#pragma unroll
  for (int k = 0; k < kSize / 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) a[k][j] = pack_pair<T>(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
  }
}

/// Transposes a 4 × 4 matrix of which thread t of a quad holds column t: out[i] is what thread i
/// had in w[t].
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = (t & bit) != 0;
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i | bit], bit);
      w[i] = upper ? got : w[i];
      w[i | bit] = upper ? w[i | bit] : got;
    }
  }
}

/// Rounds the normalised rows of an accumulator and writes them, 16 bytes a thread. `to` is row g
/// of this thread's 16, `stride` the distance of rows; rows g and g + 8 are written when below
/// `num_rows`, counted from row g, and columns below `num_columns`, a multiple of 8.
template <class T, int kSize>
__device__ __forceinline__ void store_rows(const float (&o)[kSize], const float (&factor)[2], T* to,
                                           std::int64_t stride, int num_rows,
                                           int num_columns = 2 * kSize) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < kSize; i += 16) {  // 32 columns of the row, 8 a thread
      std::uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = i + 4 * j + 2 * r;
        w[j] = pack_pair<T>(o[at] * factor[r], o[at + 1] * factor[r]);
      }
      transpose_quad(w);
      if (8 * r < num_rows && 2 * i + 8 * t < num_columns) {
        *reinterpret_cast<uint4*>(to + 8 * r * stride + 2 * i + 8 * t) =
            make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}

}  // namespace nanovllm::cuda
