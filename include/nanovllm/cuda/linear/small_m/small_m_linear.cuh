#pragma once
/// A dense layer of up to 16 rows of x, alone, with a norm ahead, or with SwiGLU behind: launchers
/// of `small_m/kernel.cuh`, which has the formulas.
///
/// Neither allocates nor synchronises; both are legal during graph capture. Weights are read before
/// the kernel ahead has ended.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/input_norm.hpp"

namespace nanovllm::cuda {
namespace detail {

template <int kTiles, int kGroups, bool kNorm, SmallMForm kForm, class T, class Out>
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

/// A norm and SwiGLU are compiled for four tiles and more, because fewer were never close to the
/// fastest, and for bf16.
template <int kTiles, SmallMForm kForm, class T, class Out>
void launch_small_m(const SmallMOperands<T, Out>& p, const Context& context) {
  const auto with_groups = [&]<int kGroups>() {
    if constexpr (kTiles >= kMinSmallMFusedTiles && std::same_as<Out, bf16>) {
      if (p.norm != nullptr) return launch_small_m<kTiles, kGroups, true, kForm>(p, context);
    }
    launch_small_m<kTiles, kGroups, false, kForm>(p, context);
  };
  if (p.num_tokens <= 8)
    with_groups.template operator()<1>();
  else
    with_groups.template operator()<2>();
}

template <class T, class Out>
[[nodiscard]] SmallMOperands<T, Out> small_m_operands(const char* op, const MatrixView<const T>& x,
                                                      const InputNorm<T>& norm,
                                                      const MatrixView<const T>& weight,
                                                      const MatrixView<Out>& y, bool accumulate,
                                                      bool wait_first) {
  check<ShapeError>(x.extent(0) <= kMaxSmallMRows, op, ": x must have at most ", kMaxSmallMRows,
                    " rows, got ", x.extent(0));
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

/// Whether `small_m_linear` takes these operands.
template <Element T>
[[nodiscard]] bool small_m_linear_takes(const MatrixView<const T>& x, const InputNorm<T>& norm,
                                        const MatrixView<const T>& weight) {
  return sizeof(T) == 2 && (std::same_as<T, bf16> || !norm) &&
         fits_small_m_linear(x.extent(0), weight.extent(0), weight.extent(1)) &&
         has_aligned_rows(x) && is_vector_aligned(weight.data) &&
         (!norm || is_vector_aligned(norm.weight.data));
}

/// y = norm(x) · Wᵀ (+ y) for operands that `small_m_linear_takes`; blocks own `tiles` tiles of 8
/// rows of W, one of kSmallMTiles (with a norm 4 or 6), which changes the time and not the result.
/// With `wait_first`, kernels after this one start when the one ahead has ended, not before. No
/// operand is empty. Throws ShapeError when x has more rows than kMaxSmallMRows or the norm's
/// weights are not of k elements, ConfigError for other tiles.
template <MmaElement T, Element Out>
void small_m_linear(const MatrixView<const T>& x, const InputNorm<T>& norm,
                    const MatrixView<const T>& weight, const MatrixView<Out>& y, bool accumulate,
                    int tiles, const Context& context, bool wait_first = false) {
  const auto p =
      detail::small_m_operands("small_m_linear", x, norm, weight, y, accumulate, wait_first);
  using detail::SmallMForm;
  check<ConfigError>(!norm || (tiles >= kMinSmallMFusedTiles && std::same_as<Out, bf16>),
                     "small_m_linear: with a norm tiles must be 4 or 6 and y of bf16, got ", tiles,
                     " and ", name(kDType<Out>));
  switch (tiles) {
    case 1: return detail::launch_small_m<1, SmallMForm::plain>(p, context);
    case 2: return detail::launch_small_m<2, SmallMForm::plain>(p, context);
    case 4: return detail::launch_small_m<4, SmallMForm::plain>(p, context);
    case 6: return detail::launch_small_m<6, SmallMForm::plain>(p, context);
    default: throw ConfigError(concat("small_m_linear: tiles must be 1, 2, 4 or 6, got ", tiles));
  }
}

/// Whether `small_m_gated_linear` takes these operands; W has the gate rows first, then the up
/// rows.
[[nodiscard]] inline bool small_m_gated_linear_takes(const MatrixView<const bf16>& x,
                                                     const InputNorm<bf16>& norm,
                                                     const MatrixView<const bf16>& weight) {
  return weight.extent(0) % 2 == 0 && small_m_linear_takes(x, norm, weight);
}

/// out = silu(g) · u with [g | u] = norm(x) · Wᵀ, W [2 · width, k], out [m, width], for operands
/// that `small_m_gated_linear_takes`. g and u are not rounded. `tiles` is 4 or 6; else as above.
inline void small_m_gated_linear(const MatrixView<const bf16>& x, const InputNorm<bf16>& norm,
                                 const MatrixView<const bf16>& weight, const MatrixView<bf16>& out,
                                 int tiles, const Context& context, bool wait_first = false) {
  const auto p =
      detail::small_m_operands("small_m_gated_linear", x, norm, weight, out, false, wait_first);
  using detail::SmallMForm;
  switch (tiles) {
    case 4: return detail::launch_small_m<4, SmallMForm::gated>(p, context);
    case 6: return detail::launch_small_m<6, SmallMForm::gated>(p, context);
    default: throw ConfigError(concat("small_m_gated_linear: tiles must be 4 or 6, got ", tiles));
  }
}

}  // namespace nanovllm::cuda
