#pragma once
/// Contracts of `layer_norm` and `add_layer_norm`.
/// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// out[i, :] = (x[i, :] - mean) · rsqrt(variance + eps) · weight + bias, where mean is that of
/// x[i, :] and variance the mean of (x[i, :] - mean)², found in that order, so that a large mean
/// costs no precision. All in float32, rounded once to T. `out` may be `x`.
/// T is the activations' element, W that of weight and bias.
template <class T, class W = T>
struct LayerNormArgs {
  MatrixView<const T> x;       ///< [n, width]
  VectorView<const W> weight;  ///< [width]
  VectorView<const W> bias;    ///< [width]
  float eps = 1e-5f;
  MatrixView<T> out;  ///< [n, width]
};

/// residual += x + x_bias, in float32 and rounded once to T; then out = layer_norm(residual). `out`
/// may be `x`. Where `x_bias` has no data there is none: it is that of the dense layer whose
/// product is x, added here so that it needs neither a separate op nor a separate rounding.
template <class T, class W = T>
struct AddLayerNormArgs {
  MatrixView<const T> x;       ///< [n, width]
  VectorView<const W> x_bias;  ///< [width], or no data
  MatrixView<T> residual;      ///< [n, width], updated in place
  VectorView<const W> weight;  ///< [width]
  VectorView<const W> bias;    ///< [width]
  float eps = 1e-5f;
  MatrixView<T> out;  ///< [n, width]
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const LayerNormArgs<T, W>& args) {
  check_shape("layer_norm", "weight", args.weight, {args.x.extent(1)});
  check_shape("layer_norm", "bias", args.bias, {args.x.extent(1)});
  check_shape("layer_norm", "out", args.out, args.x.extents);
}

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const AddLayerNormArgs<T, W>& args) {
  check_shape("add_layer_norm", "weight", args.weight, {args.x.extent(1)});
  check_shape("add_layer_norm", "bias", args.bias, {args.x.extent(1)});
  if (args.x_bias.data != nullptr)
    check_shape("add_layer_norm", "x_bias", args.x_bias, {args.x.extent(1)});
  check_shape("add_layer_norm", "residual", args.residual, args.x.extents);
  check_shape("add_layer_norm", "out", args.out, args.x.extents);
}

}  // namespace nanovllm
