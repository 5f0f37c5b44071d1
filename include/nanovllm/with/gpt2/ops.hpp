#pragma once
/// Contracts of the ops that GPT-2 has and Qwen3 has not.
/// Sources: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: the approximation by tanh,
/// which transformers calls "gelu_new"; Ba, Kiros and Hinton, "Layer Normalization", 2016.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// x[i, :] += bias, in place, rounded to T: makes a dense layer without bias one with bias.
/// T is the activations' element, W the bias's.
template <class T, class W = T>
struct AddBiasArgs {
  MatrixView<T> x;           ///< [n, width]
  VectorView<const W> bias;  ///< [width]
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const AddBiasArgs<T, W>& args) {
  check_shape("add_bias", "bias", args.bias, {args.x.extent(1)});
}

/// out[i, :] = gelu(x[i, :] + bias), with gelu(v) = v / 2 · (1 + tanh(√(2/π) · (v + 0.044715 ·
/// v³))). All in float32, rounded once to T. `out` may be `x`. T is the activations' element, W the
/// bias's.
template <class T, class W = T>
struct BiasGeluArgs {
  MatrixView<const T> x;     ///< [n, width]
  VectorView<const W> bias;  ///< [width]
  MatrixView<T> out;         ///< [n, width]
};

/// The constants of `gelu` in the form that is computed. As (1 + tanh(u)) / 2 = 1 / (1 + e^-2u),
///   gelu(v) = v / (1 + e^(v · (kGeluLinear + kGeluCubic · v²))),
/// which keeps its relative precision where tanh is near -1.
inline constexpr float kGeluLinear = -1.5957691216057308f;  ///< -2 · √(2/π)
inline constexpr float kGeluCubic = kGeluLinear * 0.044715f;

/// Throws ShapeError when the operands do not fit together.
template <class T, class W>
void validate(const BiasGeluArgs<T, W>& args) {
  check_shape("bias_gelu", "bias", args.bias, {args.x.extent(1)});
  check_shape("bias_gelu", "out", args.out, args.x.extents);
}

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
