#pragma once
/// `small_m_linear` with a norm ahead, and with SwiGLU behind: launchers of `small_m/kernel.cuh`,
/// which has the formulas, for bf16 and up to 16 rows of x.
///
/// Neither allocates nor synchronises; both are legal during graph capture. Weights are read before
/// the kernel ahead has ended.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/input_norm.hpp"

namespace nanovllm::cuda {

namespace detail {

[[nodiscard]] inline bool small_m_fused_takes(const MatrixView<const bf16>& x,
                                              const InputNorm<bf16>& norm,
                                              const MatrixView<const bf16>& weight) {
  return fits_small_m_fused(x.extent(0), weight.extent(0), weight.extent(1)) &&
         has_aligned_rows(x) && is_vector_aligned(weight.data) &&
         (!norm || is_vector_aligned(norm.weight.data));
}

template <int kTiles, int kGroups, bool kNorm, SmallMForm kForm, class Out>
void launch_small_m_fused(const SmallMOperands<bf16, Out>& p, const Context& context) {
  using Block = SmallMBlock<kTiles, kGroups, kNorm, kForm>;
  const int steps = static_cast<int>(ceil_div(p.k, Block::kSpan));
  launch(small_m_fused_kernel<bf16, Out, kTiles, kGroups, kNorm, kForm>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(p.n, Block::kColumns))),
          .block = dim3(Block::kThreads),
          .shared_bytes = static_cast<std::size_t>(Block::shared_bytes(steps, p.num_tokens)),
          .shared_percent = small_m_shared_percent(p.num_tokens)},
         context, p);
}

/// A norm and SwiGLU are compiled for four tiles and more, because fewer were never close to the
/// fastest, and a norm for results in bf16.
template <int kTiles, SmallMForm kForm, class Out>
void launch_small_m_fused(const SmallMOperands<bf16, Out>& p, const Context& context) {
  const auto with_groups = [&]<int kGroups>() {
    if constexpr (kTiles >= kMinSmallMFusedTiles && std::is_same_v<Out, bf16>) {
      if (p.norm != nullptr) return launch_small_m_fused<kTiles, kGroups, true, kForm>(p, context);
    }
    launch_small_m_fused<kTiles, kGroups, false, kForm>(p, context);
  };
  if (p.num_tokens <= 8)
    with_groups.template operator()<1>();
  else
    with_groups.template operator()<2>();
}

template <class Out>
[[nodiscard]] SmallMOperands<bf16, Out> small_m_operands(const char* op,
                                                         const MatrixView<const bf16>& x,
                                                         const InputNorm<bf16>& norm,
                                                         const MatrixView<const bf16>& weight,
                                                         const MatrixView<Out>& y, bool accumulate,
                                                         bool wait_first) {
  check<ShapeError>(x.extent(0) <= kMaxSmallMFusedRows, op, ": x must have at most ",
                    kMaxSmallMFusedRows, " rows, got ", x.extent(0));
  check_input_norm(op, norm, weight.extent(1));
  return {.x = x.data,
          .norm = norm.weight.data,
          .weight = weight.data,
          .y = y.data,
          .x_stride = x.strides[0],
          .y_stride = y.strides[0],
          .num_tokens = static_cast<std::int32_t>(x.extent(0)),
          .n = static_cast<std::int32_t>(y.extent(1)),
          .k = static_cast<std::int32_t>(weight.extent(1)),
          .pair_rows = static_cast<std::int32_t>(y.extent(1)),
          .eps = norm.eps,
          .accumulate = accumulate,
          .wait_first = wait_first};
}

}  // namespace detail

/// Whether the `small_m_linear` below takes these operands.
[[nodiscard]] inline bool small_m_linear_takes(const MatrixView<const bf16>& x,
                                               const InputNorm<bf16>& norm,
                                               const MatrixView<const bf16>& weight) {
  return detail::small_m_fused_takes(x, norm, weight);
}

/// y = norm(x) · Wᵀ (+ y) for operands that `small_m_linear_takes`; blocks own `tiles` tiles of 8
/// rows of W, one of kSmallMTiles (with a norm 4 or 6), which changes the time and not the result.
/// With `wait_first`, kernels after this one start when the one ahead has ended, not before. No
/// operand is empty. Throws ShapeError when x has more rows than kMaxSmallMFusedRows or the norm's
/// weights are not of k elements, ConfigError for other tiles.
template <Element Out>
void small_m_linear(const MatrixView<const bf16>& x, const InputNorm<bf16>& norm,
                    const MatrixView<const bf16>& weight, const MatrixView<Out>& y, bool accumulate,
                    int tiles, const Context& context, bool wait_first = false) {
  const auto p =
      detail::small_m_operands("small_m_linear", x, norm, weight, y, accumulate, wait_first);
  using detail::SmallMForm;
  check<ConfigError>(
      p.norm == nullptr || (tiles >= kMinSmallMFusedTiles && std::is_same_v<Out, bf16>),
      "small_m_linear: with a norm tiles must be 4 or 6 and y of bf16, got ", tiles, " and ",
      name(kDType<Out>));
  switch (tiles) {
    case 1: return detail::launch_small_m_fused<1, SmallMForm::plain>(p, context);
    case 2: return detail::launch_small_m_fused<2, SmallMForm::plain>(p, context);
    case 4: return detail::launch_small_m_fused<4, SmallMForm::plain>(p, context);
    case 6: return detail::launch_small_m_fused<6, SmallMForm::plain>(p, context);
    default: throw ConfigError(concat("small_m_linear: tiles must be 1, 2, 4 or 6, got ", tiles));
  }
}

/// Whether `small_m_gated_linear` takes these operands; W has the gate rows first, then the up rows.
[[nodiscard]] inline bool small_m_gated_linear_takes(const MatrixView<const bf16>& x,
                                                     const InputNorm<bf16>& norm,
                                                     const MatrixView<const bf16>& weight) {
  return weight.extent(0) % 2 == 0 && detail::small_m_fused_takes(x, norm, weight);
}

/// out = silu(g) · u with [g | u] = norm(x) · Wᵀ, W [2 · width, k], out [m, width], for operands that
/// `small_m_gated_linear_takes`. g and u are not rounded. `tiles` is 4 or 6; else as above.
template <Element Out>
void small_m_gated_linear(const MatrixView<const bf16>& x, const InputNorm<bf16>& norm,
                          const MatrixView<const bf16>& weight, const MatrixView<Out>& out,
                          int tiles, const Context& context, bool wait_first = false) {
  const auto p =
      detail::small_m_operands("small_m_gated_linear", x, norm, weight, out, false, wait_first);
  using detail::SmallMForm;
  switch (tiles) {
    case 4: return detail::launch_small_m_fused<4, SmallMForm::gated>(p, context);
    case 6: return detail::launch_small_m_fused<6, SmallMForm::gated>(p, context);
    default: throw ConfigError(concat("small_m_gated_linear: tiles must be 4 or 6, got ", tiles));
  }
}

}  // namespace nanovllm::cuda
