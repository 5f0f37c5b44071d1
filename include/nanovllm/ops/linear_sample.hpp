#pragma once
/// Contract of `linear_sample`: a token for every row, from the logits that a dense layer gives.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm {

/// tokens = `sample` of the logits x · Wᵀ: `linear` with results in float, and `sample` of all of
/// them in turn. The rows are plain, as SampleArgs::plain has it.
///
/// Tokens are those of the two ops, bit for bit: a backend that makes them in one has a `linear`
/// that sums in the same order. `sample.logits` is scratch: what it holds afterwards, if anything,
/// is the backend's affair.
template <class T, class Matrix>
struct LinearSampleArgs {
  MatrixView<const T> x;           ///< [rows, in]
  const Matrix* weight = nullptr;  ///< [vocab, in]
  SampleArgs sample{};             ///< of logits [rows, vocab]; plain
};

/// Throws ShapeError when the operands do not fit together, or the rows are not said to be plain.
template <class T, class Matrix>
void validate(const LinearSampleArgs<T, Matrix>& args) {
  constexpr auto kOp = "linear_sample";
  check_shape(kOp, "x", args.x, {-1, args.weight->cols()});
  check_shape(kOp, "logits", args.sample.logits, {args.x.extent(0), args.weight->rows()});
  check<ShapeError>(args.sample.plain, "linear_sample: rows must be plain");
  validate(args.sample);
}

/// The op by those that it is made of, each run by `run(its arguments)`.
template <class T, class Matrix, class Run>
void compose(const LinearSampleArgs<T, Matrix>& args, const Run& run) {
  run(FloatLinearArgs<T, Matrix>{.x = args.x, .weight = args.weight, .y = args.sample.logits});
  run(args.sample);
}

}  // namespace nanovllm
