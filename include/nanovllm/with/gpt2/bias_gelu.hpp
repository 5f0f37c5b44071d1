#pragma once
/// Contract of `bias_gelu`: the bias and the activation of an MLP that is not gated.
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: the approximation by tanh,
/// which transformers calls "gelu_new".

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

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

}  // namespace nanovllm
