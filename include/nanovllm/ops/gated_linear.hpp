#pragma once
/// Contracts of `gated_linear`, the first half of a gated MLP, its norm included, and of
/// `silu_mul`, the gated activation of SwiGLU.
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm {

/// out[i, j] = round(silu(gate_up[i, j])) · gate_up[i, width + j], with silu(x) = x / (1 + e^-x) in
/// float32. As in Hugging Face's Qwen3, silu is rounded to T before the product.
template <class T>
struct SiluMulArgs {
  MatrixView<const T> gate_up;  ///< [n, 2 · width]: gates, then ups
  MatrixView<T> out;            ///< [n, width]
};

/// Throws ShapeError when the operands do not fit together.
template <class T>
void validate(const SiluMulArgs<T>& args) {
  check_shape("silu_mul", "gate_up", args.gate_up, {args.out.extent(0), 2 * args.out.extent(1)});
}

/// out = silu(gate) · up, where gate and up are the halves of n(x) · Wᵀ: `rms_norm`,
/// then `linear`, then `silu_mul`. The backend decides whether values between them are rounded
/// after each op, as the three ops do, or not at all.
///
/// T is the activations' element, `Matrix` the backend's weight type, W the norm's element.
template <class T, class Matrix, class W = T>
struct GatedLinearArgs {
  MatrixView<const T> x;           ///< [n, in]
  InputNorm<W> norm{};             ///< of x
  const Matrix* weight = nullptr;  ///< [2 · width, in]: gates, then ups
  MatrixView<T> out;               ///< [n, width]
  MatrixView<T> normed;            ///< [n, in], scratch if there is a norm; may not be x
  MatrixView<T> gate_up;           ///< [n, 2 · width], scratch
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Matrix, class W>
void validate(const GatedLinearArgs<T, Matrix, W>& args) {
  constexpr auto kOp = "gated_linear";
  const std::int64_t n = args.x.extent(0), in = args.weight->cols();
  check_shape(kOp, "x", args.x, {-1, in});
  check_input_norm(kOp, args.norm, in);
  if (args.norm) check_shape(kOp, "normed", args.normed, {n, in});
  check_shape(kOp, "gate_up", args.gate_up, {n, args.weight->rows()});
  check_shape(kOp, "gate_up", args.gate_up, {n, 2 * args.out.extent(1)});
  check_shape(kOp, "out", args.out, {n, -1});
}

/// The op by those that it is made of, each run by `run(its arguments)`.
template <class T, class Matrix, class W, class Run>
void compose(const GatedLinearArgs<T, Matrix, W>& args, const Run& run) {
  MatrixView<const T> x = args.x;
  if (args.norm) {
    run(RmsNormArgs<T, W>{
        .x = x, .weight = args.norm.weight, .eps = args.norm.eps, .out = args.normed});
    x = args.normed;
  }
  run(LinearArgs<T, Matrix>{.x = x, .weight = args.weight, .y = args.gate_up});
  run(SiluMulArgs<T>{.gate_up = args.gate_up, .out = args.out});
}

}  // namespace nanovllm
