#pragma once
/// Products of experts.cuh for tiles of 32 pairs, of rounded rows: rows of W are those of
/// wgmma (operand A), pairs its columns. A warpgroup has 64 of the first and 64 of the second 128
/// rows of W, and all pairs. What rounded.cuh says of sums holds here, and a pair's result is the
/// same in a tile of either kind, bit for bit.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/pair.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/eight_bits/cuda/elements.cuh"
#include "nanovllm/with/moe/cuda/hopper/block.cuh"
#include "nanovllm/with/moe/cuda/hopper/rounded.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A consumer's place: with g = lane / 4 and t = lane % 4 it has rows `row` and `row + 8` of each
/// half of an item's rows of W, and pairs 8i + 2t and 8i + 2t + 1.
template <class Block>
struct NarrowPlace {
  int group, warp, g, t;

  __device__ __forceinline__ NarrowPlace()
      : group(static_cast<int>(threadIdx.x) / Block::kGroup - 1),
        warp(static_cast<int>(threadIdx.x) / 32 - Block::kGroup / 32),
        g(static_cast<int>(threadIdx.x) % 32 / 4),
        t(static_cast<int>(threadIdx.x) % 4) {}
  [[nodiscard]] __device__ __forceinline__ int row() const { return 16 * warp + g; }
};

/// The products of a warpgroup: `sums` by rows of the first and of the second 128 rows of W.
template <class Block>
__device__ __forceinline__ void narrow_experts_multiply(float (&sums)[2][Block::kTokens / 2],
                                                        const std::byte* ring, std::uint64_t* full,
                                                        std::uint64_t* empty,
                                                        RingPosition<Block::kStages>& at,
                                                        const NarrowPlace<Block>& place,
                                                        int num_panels) {
  constexpr int kSums = Block::kTokens / 2;
  for (int panel = 0; panel < num_panels; ++panel) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Block::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage, 0);
    float products[2][kSums];
    wgmma_hold(products[0]);
    wgmma_hold(products[1]);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const WgmmaOperand w = wgmma_operand(
          stage + Block::kXBytes + half * Block::kBoxBytes + place.group * (Block::kBoxBytes / 2),
          0);
      wgmma_e4m3<false>(products[half], w, x);
#pragma unroll
      for (int step = 1; step < 4; ++step)  // of 32 columns
        wgmma_e4m3<true>(products[half], w.plus(32 * step), x.plus(32 * step));
    }
    wgmma_commit();
    const auto* const of_w = reinterpret_cast<const float*>(stage + Block::kScalesAt) + place.row();
    const auto* const of_x =
        reinterpret_cast<const float*>(stage + Block::kXScalesAt) + 2 * place.t;
    const float upper[] = {of_w[0], of_w[Block::kBoxRows]};
    const float lower[] = {of_w[8], of_w[Block::kBoxRows + 8]};
    wgmma_wait<0>();
    wgmma_hold(products[0]);
    wgmma_hold(products[1]);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float2 scale = *reinterpret_cast<const float2*>(of_x + 8 * i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const sum = sums[half] + 4 * i;
        const float* const product = products[half] + 4 * i;
        sum[0] = fmaf(product[0], scale.x * upper[half], sum[0]);
        sum[1] = fmaf(product[1], scale.y * upper[half], sum[1]);
        sum[2] = fmaf(product[2], scale.x * lower[half], sum[2]);
        sum[3] = fmaf(product[3], scale.y * lower[half], sum[3]);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty[at.stage]);
    at.advance();
  }
}

/// Rounds gated results to y, with zeros after the last column. All consumers call it together;
/// `shared` has room for the results.
template <class Block>
__device__ __forceinline__ void narrow_experts_store_rounded(const typename Block::Operands& p,
                                                             const WideExpertsItem& item,
                                                             float (&sums)[2][Block::kTokens / 2],
                                                             const NarrowPlace<Block>& place,
                                                             std::byte* shared) {
  constexpr int kBarrier = 1, kConsumers = Block::kConsumerGroups * Block::kGroup;
  constexpr int kPairs = Block::kTokens / 4;              // of a thread
  auto* const maxima = reinterpret_cast<float*>(shared);  // [pairs, warps]
  std::byte* const results = shared + 4 * Block::kTokens * Block::kWarps;
  const bool has_first = item.first_column + place.row() < p.n;
  const bool has_second = item.first_column + place.row() + 8 < p.n;
  const auto pair_of = [&](int i) { return i / 2 * 8 + 2 * place.t + i % 2; };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = i / 2 * 4 + i % 2;
    float &a = sums[0][at], &b = sums[0][at + 2];
    swiglu_pair(a, b, sums[1][at], sums[1][at + 2]);
    if (!has_first) a = 0.f;
    if (!has_second) b = 0.f;
    float largest = fmaxf(fabsf(a), fabsf(b));
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    if (place.g == 0) maxima[pair_of(i) * Block::kWarps + place.warp] = largest;
  }
  named_barrier_sync<kConsumers>(kBarrier);
  const auto scale_of = [&](int pair) {
    float largest = 0.f;
#pragma unroll
    for (int i = 0; i < Block::kWarps; ++i)
      largest = fmaxf(largest, maxima[pair * Block::kWarps + i]);
    return rounding_scale(largest);
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = i / 2 * 4 + i % 2;
    const float inverse = __frcp_rn(scale_of(pair_of(i)));
    const std::uint32_t both = pack_e4m3(sums[0][at] * inverse, sums[0][at + 2] * inverse);
    std::byte* const to = results + pair_of(i) * Block::kResultPitch + place.row();
    to[0] = static_cast<std::byte>(both & 0xff);
    to[8] = static_cast<std::byte>(both >> 8);
  }
  named_barrier_sync<kConsumers>(kBarrier);
  const Fp8Activations& y = p.rounded_y;
  constexpr int kVectors = Block::kColumns / 16;  // of a row
  for (int i = static_cast<int>(threadIdx.x) - Block::kGroup; i < item.tile.count * kVectors;
       i += kConsumers) {
    const int row = i / kVectors, vector = i % kVectors;
    const std::int64_t pair = planned_pair(p, item.tile.first + row);
    *reinterpret_cast<uint4*>(y.data + pair * y.stride + item.first_column + 16 * vector) =
        *reinterpret_cast<const uint4*>(results + row * Block::kResultPitch + 16 * vector);
    if (vector == 0)
      y.scales[item.first_column / Block::kColumns * y.scale_stride + pair] = scale_of(row);
  }
  named_barrier_sync<kConsumers>(kBarrier);  // until the next item's
}

/// Writes the sums to y, rounded.
template <class Block>
__device__ __forceinline__ void narrow_experts_store(const typename Block::Operands& p,
                                                     const WideExpertsItem& item,
                                                     const float (&sums)[2][Block::kTokens / 2],
                                                     const NarrowPlace<Block>& place) {
  // Of 8 rows of W and 8 pairs, to a vector of one pair: four of them in a quad of lanes.
  const int column =
      item.first_column + 16 * place.warp + place.t % 2 * 8 + place.t / 2 * Block::kBoxRows;
#pragma unroll
  for (int i = 0; i < Block::kTokens / 8; ++i) {
    std::uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const sum = sums[half] + 4 * i;
      words[2 * half] = movmatrix_trans(pack_pair<bf16>(sum[0], sum[1]));
      words[2 * half + 1] = movmatrix_trans(pack_pair<bf16>(sum[2], sum[3]));
    }
    const uint4 vector = transpose_in_quad(words);
    const int row = 8 * i + place.g;
    if (row >= item.tile.count || column >= p.n) continue;
    store_vector(p.y + planned_pair(p, item.tile.first + row) * p.y_stride + column, vector);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
