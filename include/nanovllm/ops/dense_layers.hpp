#pragma once
/// The dense matrices of a decoder, for backends that choose how to run them by timing whole
/// layers.

#include <span>

#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm {

/// What decoder layers multiply by, one matrix a layer in each list and all of a list of one shape:
/// x += attention(norm(x) · qkvᵀ) · oᵀ, then x += swiglu(norm(x) · gate_upᵀ) · downᵀ.
template <class Matrix, class W>
struct DenseLayers {
  std::span<const Matrix* const> qkv;      ///< [q + k + v columns, hidden]
  std::span<const Matrix* const> o;        ///< [hidden, q columns]
  std::span<const Matrix* const> gate_up;  ///< [2 · width, hidden]
  std::span<const Matrix* const> down;     ///< [hidden, width]
  KvHeads heads;                           ///< of k and v
  InputNorm<W> norm;                       ///< any of the layers'
};

}  // namespace nanovllm
