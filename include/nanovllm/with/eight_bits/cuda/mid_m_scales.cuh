#pragma once
/// Scales of 8-bit operands in the kernel of kernel.cuh: a ring beside those of the operands.

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

/// Whether elements of type T have scales: one for a row, of x or of W, and a panel.
template <class T>
inline constexpr bool kMidMScaled = std::same_as<T, fp8_e4m3>;

/// The scales of operands that have them: that of row i and panel g at [g · stride + i].
template <class T>
struct MidMScales {};
template <class T>
requires kMidMScaled<T>
struct MidMScales<T> {
  const float* x = nullptr;
  const float* weight = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A stage's scales in shared memory: of the rows of x, of the tile's gate rows, of its up rows.
template <class Block>
struct MidMScaleRing {
  static_assert(Block::kGated && Block::kPanels == 1);

  const MidMScales<fp8_e4m3>& global;
  float* shared;
  int first;        ///< gate row of the tile
  int width;        ///< gate rows of W
  int first_panel;  ///< of K of this block

  [[nodiscard]] __device__ __forceinline__ float* x(int stage) const {
    return shared + stage * (Block::kScaleBytes / 4);
  }
  [[nodiscard]] __device__ __forceinline__ float* weights(int stage) const {
    return x(stage) + Block::kTokens;
  }
  [[nodiscard]] __device__ __forceinline__ int weight_bytes() const {
    return 4 * (count_from(first) + count_from(width + first));
  }
  /// Start copying those of panel `i` of this block; `full` counts the bytes.
  __device__ __forceinline__ void load_weights(int i, int stage, std::uint64_t& full) const {
    const float* const from = global.weight + (first_panel + i) * global.weight_stride;
    for (const int half : {0, 1}) {
      const int row = half * width + first;
      bulk_load(weights(stage) + half * Block::kColumns, from + row, 4 * count_from(row), full);
    }
  }
  __device__ __forceinline__ void load_x(int i, int stage, int rows, std::uint64_t& full) const {
    bulk_load(x(stage), global.x + (first_panel + i) * global.x_stride, 4 * rows, full);
  }

 private:
  /// How many a tile has from row `row` of W on: kColumns, or fewer where the row of scales ends.
  [[nodiscard]] __device__ __forceinline__ int count_from(int row) const {
    return static_cast<int>(min(std::int64_t{Block::kColumns}, global.weight_stride - row));
  }
};

/// SwiGLU as of a gate and an up that were stored in T: both, and silu(gate), are rounded.
template <class T>
[[nodiscard]] __device__ __forceinline__ float rounded_swiglu(float gate, float up) {
  const auto rounded = [](float x) { return to_float(from_float<T>(x)); };
  return rounded(silu<T>(rounded(gate))) * rounded(up);
}

/// The products of a block's panels, each multiplied by the scales of its rows and columns.
template <class Block, class Part, int kSums>
__device__ __forceinline__ void multiply_scaled(const Part& part, float (&sum)[kSums]) {
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const MidMScaleRing<Block> scales = part.scale_ring();
  int stage = 0;
  std::uint32_t parity = 0;
  float products[kSums] = {};
  for (int i = 0; i < part.fills; ++i) {
    mbarrier_wait(part.full_weights[stage], parity);
    mbarrier_wait(part.full_x[stage], parity);
    const WgmmaOperand a = wgmma_operand(part.x + stage * part.x_bytes, 0);
    const WgmmaOperand b = wgmma_operand(part.weights + stage * Block::kWeightBytes, 0);
    wgmma_hold(products);
    wgmma_fence();
    wgmma_e4m3<false>(products, a, b);
#pragma unroll
    for (int step = 1; step < 4; ++step)  // of 32 columns
      wgmma_e4m3<true>(products, a.plus(32 * step), b.plus(32 * step));
    wgmma_commit();
    const float* const of_w = scales.weights(stage) + lane % 4 * 2;
    const float upper = scales.x(stage)[row], lower = scales.x(stage)[row + 8];
    wgmma_wait<0>();
    wgmma_hold(products);
#pragma unroll
    for (int set = 0; set < kSums / 4; ++set) {
      const float2 w = *reinterpret_cast<const float2*>(of_w + 8 * set);
      const int at = 4 * set;
      sum[at] = fmaf(products[at], upper * w.x, sum[at]);
      sum[at + 1] = fmaf(products[at + 1], upper * w.y, sum[at + 1]);
      sum[at + 2] = fmaf(products[at + 2], lower * w.x, sum[at + 2]);
      sum[at + 3] = fmaf(products[at + 3], lower * w.y, sum[at + 3]);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(part.empty[stage]);
    if (++stage == part.p.stages) stage = 0, parity ^= 1;
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
