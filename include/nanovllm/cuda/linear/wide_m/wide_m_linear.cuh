#pragma once
/// Launchers of `kernel.cuh`, which has the formulas: a dense layer on some hundred rows of x, alone
/// or with SwiGLU behind.
///
/// Neither allocates device memory nor synchronises; both are legal during graph capture. Weights
/// are read before the kernel ahead has ended.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/wide_m/block.hpp"
#include "nanovllm/cuda/linear/wide_m/kernel.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {
namespace detail {

template <class Traits, class T>
void launch_wide_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                   const MatrixView<T>& y, bool accumulate, TensorMaps& maps,
                   const Context& context) {
  constexpr WideMBlock kBlock = Traits::kBlock;
  const std::int64_t m = x.extent(0), n = y.extent(1), k = weight.extent(1);
  const CUtensorMap w_map =
      maps.get<T, 2>(weight.data, {k, weight.extent(0)}, {k}, {kTmaColumns, Traits::kBoxRows});
  const CUtensorMap x_map = maps.get<T, 2>(x.data, {k, m}, {m == 1 ? k : x.strides[0]},
                                           {kTmaColumns, Traits::kTokens / kBlock.share_x});
  const std::int64_t token_groups = ceil_div(m, kBlock.tokens());
  const std::int64_t clusters =
      token_groups * ceil_div(n, std::int64_t{Traits::kColumns} * kBlock.share_x);
  const WideMParams<T> params{
      .y = y.data,
      .y_stride = y.strides[0],
      .num_tokens = static_cast<std::int32_t>(m),
      .n = static_cast<std::int32_t>(n),
      .panels = static_cast<std::int32_t>(ceil_div(k, std::int64_t{kTmaColumns})),
      .token_groups = static_cast<std::int32_t>(token_groups),
      .accumulate = accumulate};
  launch(wide_m_kernel<T, Traits>,
         {.grid = dim3(static_cast<unsigned>(clusters * kBlock.cluster())),
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::kSharedBytes),
          .cluster = kBlock.cluster()},
         context, w_map, x_map, params);
}

/// Launches on blocks of shape `variant` of those listed for this kind of product.
template <bool kGated, class T>
void launch_wide_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                   const MatrixView<T>& y, bool accumulate, int variant, TensorMaps& maps,
                   const Context& context) {
  static constexpr auto block = [](std::size_t i) {
    if constexpr (kGated)
      return kWideMGatedBlocks[i];
    else
      return kWideMBlocks[i];
  };
  constexpr std::size_t kBlocks =
      kGated ? std::size(kWideMGatedBlocks) : std::size(kWideMBlocks);
  nanovllm::check<ConfigError>(variant >= 0 && variant < static_cast<int>(kBlocks),
                               "wide_m_linear: variant must be in [0, ", kBlocks, "), got ",
                               variant);
  const auto try_one = [&]<std::size_t kIndex>() {
    if (variant != static_cast<int>(kIndex)) return;
    constexpr WideMBlock b = block(kIndex);
    launch_wide_m<WideMTraits<b.groups, b.rows, b.share_x, b.share_w, b.split, b.stages, kGated>>(
        x, weight, y, accumulate, maps, context);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_one.template operator()<kIndex>(), ...);
  }
  (std::make_index_sequence<kBlocks>());
}

template <class T>
[[nodiscard]] bool wide_m_takes(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                                const MatrixView<T>& y, const Context& context) {
  const auto bits = reinterpret_cast<std::uintptr_t>(y.data) |
                    static_cast<std::uintptr_t>(y.strides[0]) * sizeof(T);
  return context.is_hopper() && fits_wide_m(x.extent(0), y.extent(1), weight.extent(1)) &&
         is_vector_aligned(weight.data) &&
         (x.extent(0) == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) && bits % 8 == 0;
}

}  // namespace detail

/// Whether `wide_m_linear` takes these operands.
template <MmaElement T>
[[nodiscard]] bool wide_m_linear_takes(const MatrixView<const T>& x,
                                       const MatrixView<const T>& weight, const MatrixView<T>& y,
                                       const Context& context) {
  return detail::wide_m_takes(x, weight, y, context);
}

/// y = x · Wᵀ (+ y) for operands that `wide_m_linear_takes`, by blocks of kWideMBlocks[variant].
/// `maps` keeps the descriptions of x and W for later calls. No operand is empty. Throws ConfigError
/// for a variant that there is not.
template <MmaElement T>
void wide_m_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                   const MatrixView<T>& y, bool accumulate, int variant, TensorMaps& maps,
                   const Context& context) {
  detail::launch_wide_m<false>(x, weight, y, accumulate, variant, maps, context);
}

/// Whether `wide_m_gated_linear` takes these operands; W has the gate rows first, then the up rows.
template <MmaElement T>
[[nodiscard]] bool wide_m_gated_linear_takes(const MatrixView<const T>& x,
                                             const MatrixView<const T>& weight,
                                             const MatrixView<T>& out, const Context& context) {
  return weight.extent(0) == 2 * out.extent(1) && detail::wide_m_takes(x, weight, out, context);
}

/// out = silu(g) · u with [g | u] = x · Wᵀ, W [2 · width, k], out [m, width], for operands that
/// `wide_m_gated_linear_takes`, by blocks of kWideMGatedBlocks[variant]. g and u are not rounded.
/// Else as above.
template <MmaElement T>
void wide_m_gated_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                         const MatrixView<T>& out, int variant, TensorMaps& maps,
                         const Context& context) {
  detail::launch_wide_m<true>(x, weight, out, false, variant, maps, context);
}

}  // namespace nanovllm::cuda
