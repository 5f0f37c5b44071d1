#pragma once
/// Contract of `silu_mul`: the gated activation of SwiGLU.
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020.

#include "nanovllm/core/tensor_view.hpp"

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

}  // namespace nanovllm
