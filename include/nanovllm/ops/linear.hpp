#pragma once
/// Contract of `linear`: a dense layer without bias.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// y = x · Wᵀ, or y += x · Wᵀ when `accumulate` is set. Products are summed in float32 and rounded
/// once to `Out`; with `accumulate` the old y is added before the rounding, or else, where a
/// library has it so, to the rounded product, and the sum is rounded again.
///
/// `Matrix` is the backend's weight type of `[out, in]` elements in whatever layout it likes best
/// (`rows()` = out, `cols()` = in), and has its own element type. The order of summation for
/// one element of y depends neither on the number of rows of x nor on its place among them, unless
/// the backend says otherwise.
template <class T, class Matrix, class Out = T>
struct LinearArgs {
  MatrixView<const T> x;           ///< [n, in]
  const Matrix* weight = nullptr;  ///< [out, in]
  MatrixView<Out> y;               ///< [n, out]
  bool accumulate = false;
};

/// The same with results in float, as logits are.
template <class T, class Matrix>
using FloatLinearArgs = LinearArgs<T, Matrix, float>;

/// Throws ShapeError when the operands do not fit together.
template <class T, class Matrix, class Out>
void validate(const LinearArgs<T, Matrix, Out>& args) {
  check_shape("linear", "x", args.x, {-1, args.weight->cols()});
  check_shape("linear", "y", args.y, {args.x.extent(0), args.weight->rows()});
}

}  // namespace nanovllm
