#pragma once
/// Launchers of `mid_m/kernel.cuh`, which has the formulas: a dense layer of up to 64 rows of x, with
/// a norm ahead or SwiGLU behind.
///
/// They allocate nothing on the device and do not synchronise; all are legal during graph capture.
/// Weights are read before the kernel ahead has ended.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/mid_m/kernel.cuh"
#include "nanovllm/cuda/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/small_m/fused.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Stages of the rings that have room, at most one for each panel; 0 or 1 where there is too little.
template <class Block>
[[nodiscard]] int mid_m_stages(int panels, int num_tokens, const Context& context) {
  const auto room =
      static_cast<int>(mid_m_shared_bytes(static_cast<std::int64_t>(context.max_shared_bytes)));
  int stages = panels;
  while (stages > 0 && Block::shared_bytes(panels, num_tokens, stages) > room) --stages;
  return stages;
}

/// Enqueues the product. False, with nothing enqueued, where the rings have too little room.
template <int kRows, int kSplit, bool kNorm, bool kGated, class T, class Out>
bool launch_mid_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                  MidMOperands<T, Out> p, TensorMaps& maps, const Context& context) {
  using Block = MidMBlock<kRows, kSplit, kNorm, kGated>;
  p.panels = static_cast<std::int32_t>(mid_m_panels(p.k, kSplit));
  p.stages = mid_m_stages<Block>(p.panels, p.num_tokens, context);
  if (p.stages < std::min(p.panels, 2)) return false;
  const std::int64_t m = x.extent(0), k = p.k;
  const int box_rows = Block::x_bytes(p.num_tokens) / Block::kRowBytes;
  const CUtensorMap w_map = maps.get<T, 2>(weight.data, {k, weight.extent(0)}, {k},
                                           {kTmaColumns, kGated ? kRows / 2 : kRows});
  const CUtensorMap x_map =
      maps.get<T, 2>(x.data, {k, m}, {m == 1 ? k : x.strides[0]}, {kTmaColumns, box_rows});
  launch(
      mid_m_kernel<T, Out, kRows, kSplit, kNorm, kGated>,
      {.grid = dim3(static_cast<unsigned>(ceil_div(std::int64_t{p.n}, Block::kColumns) * kSplit)),
       .block = dim3(Block::kThreads),
       .shared_bytes =
           static_cast<std::size_t>(Block::shared_bytes(p.panels, p.num_tokens, p.stages)),
       .cluster = kSplit},
      context, w_map, x_map, p);
  return true;
}

/// The same by a variant's index, looked for from kIndex on.
template <bool kNorm, bool kGated, int kIndex = 0, class T, class Out>
bool launch_mid_m_variant(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MidMOperands<T, Out>& p, int variant, TensorMaps& maps,
                          const Context& context) {
  if constexpr (kIndex < num_mid_m_variants(kGated)) {
    constexpr MidMVariant kVariant = mid_m_variant(kGated, kIndex);
    if (variant == kIndex) {
      return launch_mid_m<kVariant.rows, kVariant.split, kNorm, kGated>(x, weight, p, maps,
                                                                        context);
    }
    return launch_mid_m_variant<kNorm, kGated, kIndex + 1>(x, weight, p, variant, maps, context);
  }
  return false;
}

}  // namespace detail

/// A product with what stands around it, y = norm(x) · Wᵀ (+ y), or its SwiGLU where `gated`; then W
/// has the gate rows first, then the up rows. No norm where `norm.weight.data` is null.
template <class T, class Out>
struct MidMLayer {
  MatrixView<const T> x;
  SmallMNorm norm{};
  MatrixView<const T> weight;
  MatrixView<Out> y;
  bool accumulate = false;  ///< not `gated`
  bool gated = false;
};

/// Enqueues the layer by the form `variant`, an index into kMidMVariants or, gated,
/// kMidMGatedVariants. False, with nothing enqueued, when the form does not take these operands.
/// `maps` keeps the descriptions of x and W for later calls; `start` says when the next kernel may
/// start. Throws ShapeError when the norm's
/// weights are not of k elements.
template <class T, class Out>
[[nodiscard]] bool mid_m_linear(const MidMLayer<T, Out>& layer, int variant, TensorMaps& maps,
                                const Context& context, NextStart start = NextStart::after_wait) {
  const MatrixView<const T>&x = layer.x, &weight = layer.weight;
  const MatrixView<Out>& y = layer.y;
  const SmallMNorm& norm = layer.norm;
  const bool gated = layer.gated;
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  const bool has_norm = norm.weight.data != nullptr;
  if (!context.is_hopper() || !fits_mid_m(m, n, k) || (gated && n % 2 != 0) ||
      !is_vector_aligned(weight.data) ||
      !(m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) ||
      (has_norm && !is_vector_aligned(norm.weight.data)))
    return false;
  if (has_norm) check_shape("mid_m_linear", "norm", norm.weight, {k});
  detail::MidMOperands<T, Out> p{
      .norm = nullptr,
      .y = y.data,
      .y_stride = y.strides[0],
      .num_tokens = static_cast<std::int32_t>(m),
      .n = static_cast<std::int32_t>(y.extent(1)),
      .k = static_cast<std::int32_t>(k),
      .panels = 0,
      .stages = 0,
      .eps = norm.eps,
      .accumulate = layer.accumulate,
      .y_pairs = reinterpret_cast<std::uintptr_t>(y.data) % 4 == 0 && y.strides[0] % 2 == 0,
      .start = start};
  if constexpr (std::same_as<T, bf16>) {
    p.norm = norm.weight.data;
    if (has_norm) {
      return gated
                 ? detail::launch_mid_m_variant<true, true>(x, weight, p, variant, maps, context)
                 : detail::launch_mid_m_variant<true, false>(x, weight, p, variant, maps, context);
    }
  } else if (has_norm) {
    return false;
  }
  return gated ? detail::launch_mid_m_variant<false, true>(x, weight, p, variant, maps, context)
               : detail::launch_mid_m_variant<false, false>(x, weight, p, variant, maps, context);
}

}  // namespace nanovllm::cuda
