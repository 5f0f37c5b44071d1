#pragma once
/// Rows in 8-bit floats by W in 8-bit floats, for experts.cuh: wgmma multiplies both as they are.
///
///   x = q · s    q in e4m3, s a scale for each row and 128 columns (quantise.cuh)
///   y = Σ_g s[g] · w[g] · Σ_k q[k] · W[k]    over groups g of 128 columns, w W's scale
///
/// Sums over a group keep about 14 bits; those over groups are in float32. Gated results are
/// rounded to e4m3 at once: an item of 128 columns is a group of its rows, which four neighbouring
/// threads have.
///
/// A warpgroup has sums of 64 rows by 256 rows of W in registers, and of one group by 128 rows of
/// W. While it adds those to these, the tensor cores work for the other warpgroup.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/hopper/block.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The scales of the rows of W of an item, a group of columns at a time.
template <class Block>
struct WideExpertsScales {
  /// Of the 128 rows from `row` on those that have scales, in bytes.
  [[nodiscard]] static __device__ __forceinline__ int bytes_from(const typename Block::Operands& p,
                                                                 int row) {
    return 4 * max(min(Block::kBoxRows, static_cast<int>(p.scale_stride) - row), 0);
  }
  /// Starts copying those of 128 rows, the first or the second of an item, to a stage.
  static __device__ __forceinline__ void load(const typename Block::Operands& p, int expert,
                                              int group, int row, int half, std::byte* stage,
                                              std::uint64_t& full) {
    const int bytes = bytes_from(p, row);
    if (bytes == 0) return;
    bulk_load(stage + Block::kScalesAt + half * 4 * Block::kBoxRows,
              p.scales + expert * p.expert_scales + group * p.scale_stride + row, bytes, full);
  }
};

/// Adds the products of a group of columns by 128 rows of W, times their scales, of which those of
/// W are equal if `one_scale`.
template <class Block>
__device__ __forceinline__ void add_scaled_products(float (&sums)[64], const std::byte* stage,
                                                    int group, int half, bool one_scale) {
  const int warp = static_cast<int>(threadIdx.x) % Block::kGroup / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WgmmaOperand x = wgmma_operand(stage + group * (Block::kXBytes / 2), 0);
  const WgmmaOperand w = wgmma_operand(stage + Block::kXBytes + half * Block::kBoxBytes, 0);
  float products[64];
  wgmma_hold(products);
  wgmma_fence();
  wgmma_e4m3<false>(products, x, w);
#pragma unroll
  for (int step = 1; step < 4; ++step)  // of 32 columns
    wgmma_e4m3<true>(products, x.plus(32 * step), w.plus(32 * step));
  wgmma_commit();
  const auto* const of_x = reinterpret_cast<const float*>(stage + Block::kXScalesAt) +
                           Block::kTokens / 2 * group + 16 * warp + lane / 4;
  const auto* const of_w = reinterpret_cast<const float*>(stage + Block::kScalesAt) +
                           half * Block::kBoxRows + lane % 4 * 2;
  const float upper = of_x[0], lower = of_x[8];
  wgmma_wait<0>();
  wgmma_hold(products);
  if (one_scale) {
    const float of_upper = upper * of_w[0], of_lower = lower * of_w[0];
#pragma unroll
    for (int i = 0; i < 64; ++i)
      sums[i] = fmaf(products[i], i % 4 < 2 ? of_upper : of_lower, sums[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(of_w + 8 * i);
    sums[4 * i] = fmaf(products[4 * i], upper * scale.x, sums[4 * i]);
    sums[4 * i + 1] = fmaf(products[4 * i + 1], upper * scale.y, sums[4 * i + 1]);
    sums[4 * i + 2] = fmaf(products[4 * i + 2], lower * scale.x, sums[4 * i + 2]);
    sums[4 * i + 3] = fmaf(products[4 * i + 3], lower * scale.y, sums[4 * i + 3]);
  }
}

/// The products of a warpgroup: `sums` of the first and of the second 128 rows of W.
template <class Block>
__device__ __forceinline__ void rounded_experts_multiply(float (&first)[64], float (&second)[64],
                                                         const std::byte* ring, std::uint64_t* full,
                                                         std::uint64_t* empty,
                                                         RingPosition<Block::kStages>& at,
                                                         int group, int num_panels,
                                                         bool one_scale) {
  for (int i = 0; i < num_panels; ++i) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Block::kStageBytes;
    add_scaled_products<Block>(first, stage, group, 0, one_scale);
    add_scaled_products<Block>(second, stage, group, 1, one_scale);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty[at.stage]);
    at.advance();
  }
}

/// silu(gates) · ups of two outputs, columns c and c + 8 of a row, c % 16 < 8. One reciprocal
/// serves both.
__device__ __forceinline__ void swiglu_pair(float& first, float& second, float first_up,
                                            float second_up) {
  constexpr float kLargest = 0x1p60f;  // where silu is 0 all the same
  const float a = 1.f + fminf(__expf(-first), kLargest);
  const float b = 1.f + fminf(__expf(-second), kLargest);
  const float inverse = __fdividef(1.f, a * b);
  first *= inverse * b * first_up;
  second *= inverse * a * second_up;
}

/// The scale of a group of columns whose largest element is `largest`.
[[nodiscard]] __device__ __forceinline__ float rounding_scale(float largest) {
  return largest > 0.f ? __fdiv_rn(largest, fp8_e4m3::kMax) : 1.f;
}

/// A word of each of four lanes side by side: the lower halves of all, then the upper ones.
[[nodiscard]] __device__ __forceinline__ uint4 halves_in_order(const uint4& v) {
  return {__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410),
          __byte_perm(v.x, v.y, 0x7632), __byte_perm(v.z, v.w, 0x7632)};
}

/// Rounds a warpgroup's gated results to y, with zeros after the last column. The thread's rows are
/// of `pairs`, negative where there is none.
template <class Block>
__device__ __forceinline__ void rounded_experts_store(const typename Block::Operands& p,
                                                      int first_column, float (&first)[64],
                                                      const float (&second)[64],
                                                      const std::int32_t (&pairs)[2]) {
  const int t = static_cast<int>(threadIdx.x) % 4;
  const int columns = p.n - first_column - 2 * t;  // that exist, from the thread's first on
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
#pragma unroll
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        float &a = first[4 * i + j], &b = first[4 * i + 4 + j];
        swiglu_pair(a, b, second[4 * i + j], second[4 * i + 4 + j]);
        if (8 * i >= columns) a = 0.f;
        if (8 * i + 8 >= columns) b = 0.f;
        largest = fmaxf(largest, fmaxf(fabsf(a), fabsf(b)));
      }
    }
    largest = warp_reduce<4>(largest, Max{});
    const float scale = rounding_scale(largest);
    const float inverse = __frcp_rn(scale);
    const Fp8Activations& y = p.rounded_y;
    fp8_e4m3* const to = y.data + pairs[half] * y.stride + first_column + 16 * t;
#pragma unroll
    for (int quad = 0; quad < 2; ++quad) {  // of vectors of a row
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const v = first + 32 * quad + 8 * i + 2 * half;
        words[i] = pack_e4m3(v[0] * inverse, v[1] * inverse) |
                   pack_e4m3(v[4] * inverse, v[5] * inverse) << 16;
      }
      const uint4 vector = halves_in_order(transpose_in_quad(words));  // of all lanes
      if (pairs[half] >= 0) *reinterpret_cast<uint4*>(to + 64 * quad) = vector;
    }
    const std::int64_t group = first_column / static_cast<int>(kFp8Group);
    if (pairs[half] >= 0 && t == 0) y.scales[group * y.scale_stride + pairs[half]] = scale;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
