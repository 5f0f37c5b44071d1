#pragma once
/// Contracts of `rms_norm` and `add_rms_norm`.
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// out[i, :] = round(x[i, :] · rsqrt(mean(x[i, :]²) + eps)) · weight, the statistics in float32.
/// As in Hugging Face's Qwen3, the normalised value is rounded to T before the product with the
/// weight, which is rounded again. `out` may be `x`.
/// T is the activations' element, W the weights'.
template <class T, class W = T>
struct RmsNormArgs {
  MatrixView<const T> x;       ///< [n, width]
  VectorView<const W> weight;  ///< [width]
  float eps = 1e-6f;
  MatrixView<T> out;  ///< [n, width]
};

/// residual += x, rounded to T; then out = rms_norm(residual). `out` may be `x`.
template <class T, class W = T>
struct AddRmsNormArgs {
  MatrixView<const T> x;       ///< [n, width]
  MatrixView<T> residual;      ///< [n, width], updated in place
  VectorView<const W> weight;  ///< [width]
  float eps = 1e-6f;
  MatrixView<T> out;  ///< [n, width]
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const RmsNormArgs<T, W>& args) {
  check_shape("rms_norm", "weight", args.weight, {args.x.extent(1)});
  check_shape("rms_norm", "out", args.out, args.x.extents);
}

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const AddRmsNormArgs<T, W>& args) {
  check_shape("add_rms_norm", "weight", args.weight, {args.x.extent(1)});
  check_shape("add_rms_norm", "residual", args.residual, args.x.extents);
  check_shape("add_rms_norm", "out", args.out, args.x.extents);
}

}  // namespace nanovllm
