#pragma once
/// Gated layers of 8-bit floats by the kernel of cuda/hopper/linear/mid_m/kernel.cuh: scales, in a
/// ring beside those of the operands, and the launcher.
///
/// K is a multiple of 128, and there is a scale for each row and 128 columns of x and of W: sums of
/// these columns, which keep about 14 bits, are multiplied by both. Gates, ups and silu of gates
/// are rounded to bf16, as y is.

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/linear/mid_m/block.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

template <class Block>
struct MidMScaleRing;

/// That of row i and panel g at [g · stride + i].
template <>
struct MidMScales<fp8_e4m3> {
  static constexpr bool kAreThere = true;
  template <class Block>
  using Ring = MidMScaleRing<Block>;

  const float* x = nullptr;
  const float* weight = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

  /// SwiGLU as of a gate and an up that were stored in T: both, and silu(gate), are rounded.
  template <class T>
  [[nodiscard]] static __device__ __forceinline__ float swiglu(float gate, float up) {
    const auto rounded = [](float x) { return to_float(from_float<T>(x)); };
    return rounded(silu<T>(rounded(gate))) * rounded(up);
  }

  /// The products of a block's panels, each multiplied by the scales of its rows and columns.
  template <class Block, class Part, int kSums>
  static __device__ __forceinline__ void multiply(const Part& part, float (&sum)[kSums]) {
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
    const Ring<Block> scales = part.scale_ring();
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

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace detail

/// Enqueues out = silu(x · gateᵀ) · (x · upᵀ) of rows of e4m3 by the form `variant` of gated
/// layers: x [m, k], `weight` [2 · width, k] with the gate rows first, out [m, width]. Gates, ups
/// and silu of gates are rounded, as `silu_mul` has them. Rows of x's scales are a multiple of 8
/// floats apart, of which the kernel reads whole eights, those of the weight's a multiple of 4.
/// False, with nothing enqueued, when the form does not take these operands.
[[nodiscard]] inline bool mid_m_swiglu(const MatrixView<const fp8_e4m3>& x,
                                       const MatrixView<const fp8_e4m3>& weight,
                                       const detail::MidMScales<fp8_e4m3>& scales,
                                       const MatrixView<bf16>& out, int variant, TensorMaps& maps,
                                       const Context& context) {
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  const bool is_aligned = is_vector_aligned(x.data) && is_vector_aligned(weight.data) &&
                          is_vector_aligned(scales.x) && is_vector_aligned(scales.weight);
  if (!fits_mid_m(m, n, k) || k % kMidMPanelBytes != 0 || n % 8 != 0 || !is_aligned) return false;
  const detail::MidMOperands<fp8_e4m3, bf16> p{
      .norm = nullptr,
      .y = out.data,
      .y_stride = out.strides[0],
      .num_tokens = static_cast<std::int32_t>(m),
      .n = static_cast<std::int32_t>(out.extent(1)),
      .k = static_cast<std::int32_t>(k),
      .panels = 0,
      .stages = 0,
      .eps = 0,
      .accumulate = false,
      .y_pairs = reinterpret_cast<std::uintptr_t>(out.data) % 4 == 0 && out.strides[0] % 2 == 0,
      .start = NextStart::after_wait,
      .scales = scales};
  return with_variant<kMidMForms.size(ProductKind::gated)>(variant, [&]<int kVariant>() {
    return detail::launch_mid_m<ProductKind::gated, kMidMGatedVariants[kVariant], false>(
        x, weight, p, maps, context);
  });
}

}  // namespace nanovllm::cuda
