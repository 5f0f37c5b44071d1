#pragma once
/// Launcher of `wide_m/kernel.cuh`, which has the formulas: a dense layer on some hundred rows of
/// x, alone, with a norm ahead, or with a norm ahead and SwiGLU after.
///
/// It allocates nothing on the device and does not synchronise; it is legal during graph capture.
/// Weights are read before the kernel ahead has ended. The kernels after it start when it has.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/hopper.hpp"
#include "nanovllm/cuda/hopper/linear/wide_m/kernel.cuh"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

namespace detail {

template <class Traits, class T>
void launch_wide_m(const DenseLayer<T>& layer, WideMParams<T> p, TensorMaps& maps,
                   const Context& context) {
  const std::int64_t m = p.num_tokens, n = p.n, k = p.k;
  const CUtensorMap w_map = maps.get<T, 2>(layer.weight.data, {k, layer.weight.extent(0)}, {k},
                                           {kTmaColumns, Traits::kBoxRows});
  const CUtensorMap x_map = maps.get<T, 2>(layer.x.data, {k, m}, {m == 1 ? k : layer.x.strides[0]},
                                           {kTmaColumns, Traits::kTokens});
  const std::int64_t token_tiles = ceil_div(m, std::int64_t{Traits::kTokens});
  const std::int64_t tiles = token_tiles * ceil_div(n, std::int64_t{Traits::kColumns});
  p.token_tiles = static_cast<std::int32_t>(token_tiles);
  launch(wide_m_kernel<T, Traits>,
         {.grid = dim3(static_cast<unsigned>(tiles * Traits::kSplit)),
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::shared_bytes(p.panels)),
          .cluster = Traits::kSplit},
         context, w_map, x_map, p);
}

/// The same by a variant's index. False, with nothing enqueued, where it needs more shared memory.
template <ProductKind kKind, class T>
[[nodiscard]] bool launch_wide_m_variant(const DenseLayer<T>& layer, const WideMParams<T>& p,
                                         int variant, TensorMaps& maps, const Context& context) {
  return with_variant<kWideMForms.size(kKind)>(variant, [&]<int kVariant>() {
    constexpr WideMBlock b = kWideMForms.at(kKind, kVariant);
    using Traits = WideMTraits<b.rows, b.split, b.stages, kKind>;
    if (Traits::shared_bytes(p.panels) > static_cast<std::int64_t>(context.max_shared_bytes))
      return false;
    launch_wide_m<Traits>(layer, p, maps, context);
    return true;
  });
}

}  // namespace detail

/// Enqueues the layer by the form `variant`, an index into the blocks of its kind. False, with
/// nothing enqueued, when the form does not take these operands. `maps` keeps the descriptions of x
/// and W for later calls. Throws ShapeError when the norm's weights are not of k elements.
template <MmaElement T>
[[nodiscard]] bool wide_m_linear(const DenseLayer<T>& layer, int variant, TensorMaps& maps,
                                 const Context& context) {
  const auto& [x, norm, weight, y, accumulate, gated] = layer;
  const std::int64_t m = x.extent(0), n = y.extent(1), k = weight.extent(1);
  const auto y_bytes = reinterpret_cast<std::uintptr_t>(y.data) |
                       static_cast<std::uintptr_t>(y.strides[0]) * sizeof(T);
  if (!fits_wide_m(m, n, k) || weight.extent(0) != (gated ? 2 * n : n) ||
      !is_vector_aligned(weight.data) ||
      !(m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) || y_bytes % 8 != 0)
    return false;
  check_input_norm("wide_m_linear", norm, k);
  const detail::WideMParams<T> p{
      .y = y.data,
      .norm = norm.weight.data,
      .y_stride = y.strides[0],
      .num_tokens = static_cast<std::int32_t>(m),
      .n = static_cast<std::int32_t>(n),
      .k = static_cast<std::int32_t>(k),
      .panels = static_cast<std::int32_t>(ceil_div(k, std::int64_t{kTmaColumns})),
      .token_tiles = 0,
      .eps = norm.eps,
      .accumulate = accumulate};
  if (layer.kind() == ProductKind::plain)
    return detail::launch_wide_m_variant<ProductKind::plain>(layer, p, variant, maps, context);
  if constexpr (std::same_as<T, bf16>) {
    if (!norm || reinterpret_cast<std::uintptr_t>(norm.weight.data) % 4 != 0) return false;
    return gated
               ? detail::launch_wide_m_variant<ProductKind::gated>(layer, p, variant, maps, context)
               : detail::launch_wide_m_variant<ProductKind::normed>(layer, p, variant, maps,
                                                                    context);
  }
  return false;
}

}  // namespace nanovllm::cuda
