#pragma once
/// Contracts of `rms_norm` and `add_rms_norm`, and the norm that an op may apply to its input
/// itself.
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

/// RMSNorm of the rows of an op's input, n(x), ahead of what the op is for: `rms_norm` with this
/// weight (ops/rms_norm.hpp). None, n(x) = x, where the weight has no data. W is its element.
template <class W>
struct InputNorm {
  VectorView<const W> weight{};  ///< [width of the input]
  float eps = 1e-6f;

  [[nodiscard]] explicit operator bool() const { return weight.data != nullptr; }
};

/// Throws ShapeError unless a norm that is there fits rows of `width` elements.
template <class W>
void check_input_norm(const char* op, const InputNorm<W>& norm, std::int64_t width) {
  if (norm) check_shape(op, "norm.weight", norm.weight, {width});
}

}  // namespace nanovllm
