#pragma once
/// SwiGLU of rows rounded to 8 bits, by 8-bit weights, in one kernel after the rounding, where the
/// device's architecture has one; and the choice between its forms and the parts, by time. The
/// kernel rounds where the parts do; the order of sums is its own.
///
/// Hopper's kernel is that of mid_m_linear.cuh (cuda/hopper/linear/mid_m/), with scales in a ring
/// beside those of the operands. K is a multiple of 128, and there is a scale for each row and 128
/// columns of x and of W: sums of these columns, which keep about 14 bits, are multiplied by both.
/// Gates, ups and silu of gates are rounded to bf16, as y is.

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/block.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/dispatch/tuned_plans.hpp"
#include "nanovllm/cuda/linear/tune/stopwatch.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"

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

/// The kernel of architecture A for such layers, after the rounding of x: none, but where this is
/// specialised.
template <class A>
struct Fp8SwigluOf {
  /// How many forms it has for m rows by W [n, k].
  [[nodiscard]] static constexpr int num_forms(std::int64_t /*m*/, std::int64_t /*n*/) { return 0; }
  /// (activations, rows, weight, out, form, tensor maps, context): false, with nothing enqueued,
  /// where it does not take the operands.
  [[nodiscard]] static bool run(const Fp8Activations&, std::int64_t, const Fp8View&,
                                const MatrixView<bf16>&, int, TensorMaps&, const Context&) {
    return false;
  }
};

template <>
struct Fp8SwigluOf<Hopper> {
  [[nodiscard]] static constexpr int num_forms(std::int64_t m, std::int64_t n) {
    return m <= kMaxMidMRows && n % 8 == 0 ? kMidMForms.size(ProductKind::gated) : 0;
  }
  [[nodiscard]] static bool run(const Fp8Activations& x, std::int64_t rows, const Fp8View& weight,
                                const MatrixView<bf16>& out, int form, TensorMaps& maps,
                                const Context& context) {
    return mid_m_swiglu({x.data, {rows, x.stride}}, {weight.data, {weight.rows, weight.stride}},
                        {.x = x.scales,
                         .weight = weight.scales,
                         .x_stride = x.scale_stride,
                         .weight_stride = weight.scale_stride},
                        out, form, maps, context);
  }
};

/// What such layers of one device share: descriptions of tensors and the choices. Serves one stream
/// and one host thread at a time.
template <class Architectures>
class Fp8Swiglu {
 public:
  /// Enqueues the gated layer by the form that was timed fastest, or the first where none was
  /// timed. False, with nothing enqueued: run its parts.
  [[nodiscard]] bool run(const Fp8Layer& layer, Fp8Products& products, const Context& context) {
    const int* const form = forms_.find(key_of(layer));
    return run_form(layer, form == nullptr ? 0 : *form, products, context);
  }

  /// Chooses by timing for up to `max_rows` rows. `run_parts(layer, gate_up)` enqueues the parts,
  /// with gates and ups in `gate_up`; false where it does not. Blocks the host.
  template <class RunParts>
  void tune(std::span<const Fp8Matrix* const> weights, const InputNorm<bf16>& norm,
            std::int64_t max_rows, Fp8Products& products, const Context& context,
            const RunParts& run_parts) {
    const Fp8View first = weights[0]->view();
    if (first.rows == 0 || first.cols == 0) return;
    const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
    DeviceBuffer<bf16> x, y, out;
    for (const std::int64_t bucket : kRowBuckets) {
      if (bucket <= kMaxFp8FewRows) continue;
      const std::int64_t rows = std::min(bucket, max_rows);
      const int num_forms = num_forms_for(bucket, first.rows, context);
      if (rows <= kMaxFp8FewRows || num_forms == 0) return;
      x = noise(rows * first.cols, context);
      y = noise(rows * first.rows, context);
      out = noise(rows * (first.rows / 2), context);
      const auto run_way = [&](int i, int form) {
        const Fp8Layer layer{
            .x = MatrixView<const bf16>(x.data(), {rows, first.cols}),
            .norm = norm,
            .weight = weights[static_cast<std::size_t>(i) % weights.size()]->view(),
            .y = {out.data(), {rows, first.rows / 2}},
            .gated = true};
        return form == kParts ? run_parts(layer, MatrixView<bf16>(y.data(), {rows, first.rows}))
                              : run_form(layer, form, products, context);
      };
      std::vector<int> ways = {kParts};
      for (int form = 0; form < num_forms; ++form) ways.push_back(form);
      detail::time_plans(
          forms_, Key{first.rows, first.stride, bucket}, ways,
          detail::calls_to_time(rows, weights[0]->size_bytes(), context), deadline, context,
          [&](int form) { return run_way(0, form); },
          [&](int i, int form) { static_cast<void>(run_way(i, form)); });
      if (bucket >= max_rows || is_over(deadline)) return;
    }
  }

 private:
  static constexpr int kParts = -1;  ///< instead of a form

  struct Key {
    std::int64_t n, k, bucket;
    auto operator<=>(const Key&) const = default;
  };
  [[nodiscard]] static Key key_of(const Fp8Layer& layer) {
    return {layer.weight.rows, layer.weight.stride, row_bucket(layer.x.extent(0))};
  }

  /// For so many rows of x and n rows of W. None where no product rounds activations.
  [[nodiscard]] static int num_forms_for(std::int64_t rows, std::int64_t n,
                                         const Context& context) {
    if (!Fp8Products::is_available(context)) return 0;
    return Architectures::choose(
        context, [&](auto native) { return Fp8SwigluOf<decltype(native)>::num_forms(rows, n); });
  }

  [[nodiscard]] static DeviceBuffer<bf16> noise(std::int64_t size, const Context& context) {
    DeviceBuffer<bf16> out(static_cast<std::size_t>(size));
    detail::fill_noise(out.data(), size, context);
    return out;
  }

  [[nodiscard]] bool run_form(const Fp8Layer& layer, int form, Fp8Products& products,
                              const Context& context) {
    const std::int64_t rows = layer.x.extent(0);
    if (form == kParts || form >= num_forms_for(rows, layer.weight.rows, context)) return false;
    const std::optional<Fp8Activations> x = products.round(layer, context);
    return x && Architectures::choose(context, [&](auto native) {
             return Fp8SwigluOf<decltype(native)>::run(*x, rows, layer.weight, layer.y, form, maps_,
                                                       context);
           });
  }

  TensorMaps maps_;
  TunedPlans<Key, int> forms_;
};

}  // namespace nanovllm::cuda
