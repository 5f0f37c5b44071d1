#pragma once
/// Launchers of `mid_m/kernel.cuh`, which has the formulas: a dense layer of up to 64 rows of x,
/// with a norm ahead or SwiGLU after.
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
#include "nanovllm/cuda/hopper/linear/mid_m/kernel.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/input_norm.hpp"

namespace nanovllm::cuda {

static_assert(kMidMPanelBytes == kTmaRowBytes);

namespace detail {

/// Stages of the rings that have room, at most what K takes; 0 or 1 where there is too little.
template <class Block>
[[nodiscard]] int mid_m_stages(int panels, int num_tokens, const Context& context) {
  const auto room =
      static_cast<int>(mid_m_shared_bytes(static_cast<std::int64_t>(context.max_shared_bytes)));
  int stages = panels / Block::kPanels;
  while (stages > 0 && Block::shared_bytes(panels, num_tokens, stages) > room) --stages;
  return stages;
}

/// The map of rows of k elements, of which a copy brings `box` rows of a stage's panels; they are a
/// dimension of it where there are several.
template <int kPanels, class T>
[[nodiscard]] CUtensorMap mid_m_map(TensorMaps& maps, const T* data, std::int64_t rows,
                                    std::int64_t k, std::int64_t stride, int box) {
  constexpr int kColumns = kTmaRowBytes / static_cast<int>(sizeof(T));
  if constexpr (kPanels == 1) {
    return maps.get<T, 2>(data, {k, rows}, {stride}, {kColumns, box});
  } else {
    return maps.get<T, 3>(data, {kColumns, rows, k / kColumns}, {stride, kColumns},
                          {kColumns, box, kPanels});
  }
}

/// Enqueues the product. False, with nothing enqueued, where the rings have too little room, or
/// stages of several panels would not be whole.
template <ProductKind kKind, MidMVariant kForm, bool kNorm = kKind != ProductKind::plain, class T,
          class Out>
bool launch_mid_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                  MidMOperands<T, Out> p, TensorMaps& maps, const Context& context) {
  constexpr bool kGated = kKind == ProductKind::gated;
  using Block = MidMBlock<T, kForm.rows, kForm.split, kForm.panels, kNorm, kGated>;
  if (kForm.panels > 1 && p.k % Block::kPanelColumns != 0) return false;
  p.panels =
      static_cast<std::int32_t>(mid_m_panels(p.k * static_cast<std::int64_t>(sizeof(T)), kForm));
  p.stages = mid_m_stages<Block>(p.panels, p.num_tokens, context);
  if (p.stages < std::min(p.panels / kForm.panels, 2)) return false;
  const std::int64_t m = x.extent(0), k = p.k;
  const CUtensorMap w_map = mid_m_map<kForm.panels>(maps, weight.data, weight.extent(0), k, k,
                                                    kGated ? kForm.rows / 2 : kForm.rows);
  const CUtensorMap x_map =
      mid_m_map<kForm.panels>(maps, x.data, m, k, m == 1 ? k : x.strides[0],
                              Block::x_panel_bytes(p.num_tokens) / Block::kRowBytes);
  launch(mid_m_kernel<T, Out, kForm.rows, kForm.split, kForm.panels, kNorm, kGated>,
         {.grid = dim3(
              static_cast<unsigned>(ceil_div(std::int64_t{p.n}, Block::kColumns) * kForm.split)),
          .block = dim3(Block::kThreads),
          .shared_bytes =
              static_cast<std::size_t>(Block::shared_bytes(p.panels, p.num_tokens, p.stages)),
          .cluster = kForm.split,
          .packs_clusters = kForm.packs},
         context, w_map, x_map, p);
  return true;
}

/// The same by a variant's index.
template <ProductKind kKind, class T, class Out>
bool launch_mid_m_variant(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MidMOperands<T, Out>& p, int variant, TensorMaps& maps,
                          const Context& context) {
  return with_variant<kMidMForms.size(kKind)>(variant, [&]<int kVariant>() {
    return launch_mid_m<kKind, kMidMForms.at(kKind, kVariant)>(x, weight, p, maps, context);
  });
}

}  // namespace detail

/// Enqueues the layer by the form `variant`, an index into the forms of its kind. False, with
/// nothing enqueued, when the form does not take these operands. `maps` keeps the descriptions of x
/// and W for later calls; `start` says when the next kernel may start. Throws ShapeError when the
/// norm's weights are not of k elements.
template <class T, class Out>
[[nodiscard]] bool mid_m_linear(const DenseLayer<T, Out>& layer, int variant, TensorMaps& maps,
                                const Context& context, NextStart start = NextStart::after_wait) {
  const MatrixView<const T>&x = layer.x, &weight = layer.weight;
  const MatrixView<Out>& y = layer.y;
  const InputNorm<T>& norm = layer.norm;
  const bool gated = layer.gated;
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  if (!fits_mid_m(m, n, k) || (gated && n % 2 != 0) || !is_vector_aligned(weight.data) ||
      !(m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) ||
      (norm && !is_vector_aligned(norm.weight.data)))
    return false;
  check_input_norm("mid_m_linear", norm, k);
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
  if (layer.kind() == ProductKind::plain)
    return detail::launch_mid_m_variant<ProductKind::plain>(x, weight, p, variant, maps, context);
  if constexpr (std::same_as<T, bf16>) {
    if (!norm) {
      return variant == kMidMUnnormedGated &&
             detail::launch_mid_m<ProductKind::gated, kMidMGatedVariants[kMidMUnnormedGated],
                                  false>(x, weight, p, maps, context);
    }
    p.norm = norm.weight.data;
    return gated ? detail::launch_mid_m_variant<ProductKind::gated>(x, weight, p, variant, maps,
                                                                    context)
                 : detail::launch_mid_m_variant<ProductKind::normed>(x, weight, p, variant, maps,
                                                                     context);
  }
  return false;
}

}  // namespace nanovllm::cuda
