#pragma once
/// A dense layer of up to 16 rows of x, alone, with a norm ahead, or with SwiGLU after: launcher
/// of `small_m/kernel.cuh`, which has the formulas. y has the elements of x.
///
/// It neither allocates nor synchronises; it is legal during graph capture. Weights are read before
/// the kernel ahead has ended.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {
namespace detail {

template <int kTiles, int kGroups, bool kNorm, WeightRows kForm, class T, class Out>
void launch_small_m(const SmallMOperands<T, Out>& p, const Context& context) {
  using Block = SmallMBlock<kTiles, kGroups, kNorm, kForm>;
  const int steps = static_cast<int>(ceil_div(p.k, Block::kSpan));
  launch(small_m_kernel<T, Out, kTiles, kGroups, kNorm, kForm>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(p.n, Block::kColumns))),
          .block = dim3(Block::kThreads),
          .shared_bytes = static_cast<std::size_t>(Block::shared_bytes(steps, p.num_tokens)),
          .shared_percent = small_m_shared_percent(p.num_tokens)},
         context, p);
}

/// The same for the rows of x that there are.
template <int kTiles, bool kNorm, WeightRows kForm, class T, class Out>
void launch_small_m(const SmallMOperands<T, Out>& p, const Context& context) {
  if (p.num_tokens <= 8) {
    launch_small_m<kTiles, 1, kNorm, kForm>(p, context);
  } else {
    launch_small_m<kTiles, 2, kNorm, kForm>(p, context);
  }
}

template <class T, class Out>
[[nodiscard]] SmallMOperands<T, Out> small_m_operands(const DenseLayer<T, Out>& layer,
                                                      NextStart start) {
  return {.x = layer.x.data,
          .norm = layer.norm.weight.data,
          .weight = layer.weight.data,
          .y = layer.y.data,
          .x_stride = layer.x.strides[0],
          .y_stride = layer.y.strides[0],
          .num_tokens = static_cast<std::int32_t>(layer.x.extent(0)),
          .n = static_cast<std::int32_t>(layer.y.extent(1)),
          .k = static_cast<std::int32_t>(layer.weight.extent(1)),
          .pair_rows = static_cast<std::int32_t>(layer.y.extent(1)),
          .eps = layer.norm.eps,
          .accumulate = layer.accumulate,
          .wait_first = start == NextStart::after_wait};
}

}  // namespace detail

/// Whether `small_m_linear` takes the layer by blocks of `tiles` tiles of 8 rows of W: any of
/// kSmallMTiles, and of bf16 with a norm or SwiGLU kMinSmallMFusedTiles and more, because fewer
/// were never close to the fastest.
template <class T, class Out>
[[nodiscard]] bool small_m_takes(const DenseLayer<T, Out>& layer, int tiles) {
  const auto& [x, norm, weight, y, accumulate, gated] = layer;
  if constexpr (sizeof(T) == 2 && std::same_as<T, Out>) {
    const bool is_plain = layer.kind() == ProductKind::plain;
    return (is_plain || std::same_as<Out, bf16>)&&has_small_m_tiles(
               tiles, is_plain ? 1 : kMinSmallMFusedTiles) &&
           fits_small_m(x.extent(0), weight.extent(0), weight.extent(1)) &&
           !(gated && (accumulate || weight.extent(0) % 2 != 0)) && has_aligned_rows(x) &&
           is_vector_aligned(weight.data) && (!norm || is_vector_aligned(norm.weight.data));
  }
  return false;
}

/// Enqueues the layer by blocks of `tiles` tiles, which change the time and not the result. False,
/// with nothing enqueued, unless `small_m_takes` it. g and u of a gated layer are not rounded.
/// `start` says when the next kernel may start. No operand is empty. Throws ShapeError when the
/// norm's weights are not of k elements.
template <MmaElement T, Element Out>
[[nodiscard]] bool small_m_linear(const DenseLayer<T, Out>& layer, int tiles,
                                  const Context& context, NextStart start = NextStart::at_once) {
  if (!small_m_takes(layer, tiles)) return false;
  check_input_norm("small_m_linear", layer.norm, layer.weight.extent(1));
  const auto p = detail::small_m_operands(layer, start);
  return with_small_m_tiles(tiles, [&]<int kTiles>() {
    if constexpr (std::same_as<Out, bf16> && kTiles >= kMinSmallMFusedTiles) {
      if (layer.gated && layer.norm)
        return detail::launch_small_m<kTiles, true, WeightRows::gated>(p, context);
      if (layer.gated) return detail::launch_small_m<kTiles, false, WeightRows::gated>(p, context);
      if (layer.norm) return detail::launch_small_m<kTiles, true, WeightRows::plain>(p, context);
    }
    detail::launch_small_m<kTiles, false, WeightRows::plain>(p, context);
  });
}

}  // namespace nanovllm::cuda
