#pragma once
/// Contract of `add_bias`: what makes a dense layer without bias one with bias.

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// x[i, :] += bias, in place, rounded to T.
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

}  // namespace nanovllm
