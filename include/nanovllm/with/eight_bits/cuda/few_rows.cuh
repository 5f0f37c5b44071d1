#pragma once
/// A dense layer of up to 16 rows of x by 8-bit weights, whose activations are not rounded:
/// launcher of few_rows_kernel.cuh, which has the formulas.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/with/eight_bits/cuda/few_rows_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"

namespace nanovllm::cuda {

/// Most rows of x that `fp8_few_rows` takes.
inline constexpr std::int64_t kMaxFp8FewRows = 16;

/// y = norm(x) · Wᵀ (+ y), or its SwiGLU; W has the gate rows first, then the up rows. `Out` is
/// bf16, or float for logits.
template <Element Out>
struct Fp8LayerOf {
  MatrixView<const bf16> x;  ///< [m, k]
  InputNorm<bf16> norm{};
  Fp8View weight;           ///< [n, k]
  MatrixView<Out> y;        ///< [m, n], or [m, n / 2] where `gated`
  bool accumulate = false;  ///< not `gated`
  bool gated = false;

  /// The same of rows [first, end) of x.
  [[nodiscard]] Fp8LayerOf rows(std::int64_t first, std::int64_t end) const {
    Fp8LayerOf out = *this;
    out.x = x.slice(first, end);
    out.y = y.slice(first, end);
    return out;
  }
};
using Fp8Layer = Fp8LayerOf<bf16>;

namespace detail {

using Fp8FewRowsOperands = Fp8FewRowsOperandsOf<bf16>;

template <Element Out>
[[nodiscard]] Fp8FewRowsOperandsOf<Out> fp8_few_rows_operands(const Fp8LayerOf<Out>& layer) {
  const Fp8View& weight = layer.weight;
  return {.x = layer.x.data,
          .norm = layer.norm.weight.data,
          .weight = weight.data,
          .scales = weight.scales,
          .y = layer.y.data,
          .x_stride = layer.x.strides[0],
          .y_stride = layer.y.strides[0],
          .weight_stride = weight.stride,
          .scale_stride = weight.scale_stride,
          .num_tokens = static_cast<std::int32_t>(layer.x.extent(0)),
          .n = static_cast<std::int32_t>(layer.y.extent(1)),
          .k = static_cast<std::int32_t>(weight.cols),
          .pair_rows = static_cast<std::int32_t>(layer.y.extent(1)),
          .eps = layer.norm.eps,
          .accumulate = layer.accumulate,
          .whole = has_whole_rows(layer.x) &&
                   (!layer.norm || is_vector_aligned(layer.norm.weight.data))};
}

template <class Block, Element Out>
void launch_fp8_few_rows(const Fp8FewRowsOperandsOf<Out>& p, const Context& context) {
  launch(fp8_few_rows_kernel<Block, Out>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(p.n, Block::kColumns))),
          .block = dim3(Block::kThreads),
          .shared_bytes = static_cast<std::size_t>(Block::kSharedBytes)},
         context, p);
}

/// Blocks of eight warps read W faster where all of them find room at once, with up to 8 rows of x;
/// elsewhere blocks of four do. The number of warps decides the order of summation, so it must not
/// depend on the rows of x.
template <class Block8>
[[nodiscard]] bool fp8_few_rows_has_8_warps(std::int64_t n, const Context& context) {
  return n <= 2 * Block8::kColumns * context.num_sms;
}

/// Blocks with two tiles read x once for both. They gain with more than 8
/// rows, where there are two such blocks for each multiprocessor.
template <bool kNorm, WeightRows kForm, Element Out>
void launch_fp8_few_rows(const Fp8FewRowsOperandsOf<Out>& p, const Context& context) {
  using Few8 = Fp8FewRowsBlock<8, 1, 1, kNorm, kForm>;
  using More8 = Fp8FewRowsBlock<8, 1, 2, kNorm, kForm>;
  using Few = Fp8FewRowsBlock<4, 1, 1, kNorm, kForm>;
  using More = Fp8FewRowsBlock<4, 1, 2, kNorm, kForm>;
  using Wide = Fp8FewRowsBlock<4, 2, 2, kNorm, kForm>;
  const bool few = p.num_tokens <= 8;
  if (fp8_few_rows_has_8_warps<Few8>(p.n, context))
    return few ? launch_fp8_few_rows<Few8>(p, context) : launch_fp8_few_rows<More8>(p, context);
  if (few) return launch_fp8_few_rows<Few>(p, context);
  if (p.n < 2 * Wide::kColumns * context.num_sms) return launch_fp8_few_rows<More>(p, context);
  launch_fp8_few_rows<Wide>(p, context);
}

}  // namespace detail

/// Enqueues the layer of up to kMaxFp8FewRows rows; no operand is empty, W [n, k] has k > 0. The
/// next kernel may start once those ahead of this one are done. Neither allocates nor synchronises;
/// legal during graph capture.
inline void fp8_few_rows(const Fp8Layer& layer, const Context& context) {
  const auto p = detail::fp8_few_rows_operands(layer);
  if (layer.gated && layer.norm)
    return detail::launch_fp8_few_rows<true, WeightRows::gated>(p, context);
  if (layer.gated) return detail::launch_fp8_few_rows<false, WeightRows::gated>(p, context);
  if (layer.norm) return detail::launch_fp8_few_rows<true, WeightRows::plain>(p, context);
  detail::launch_fp8_few_rows<false, WeightRows::plain>(p, context);
}

/// The same with results in float, of a layer that is not gated and has no norm.
template <Element Out>
requires std::same_as<Out, float>
void fp8_few_rows(const Fp8LayerOf<Out>& layer, const Context& context) {
  detail::launch_fp8_few_rows<false, WeightRows::plain>(detail::fp8_few_rows_operands(layer),
                                                        context);
}

}  // namespace nanovllm::cuda
