#pragma once
/// The matrices that a network multiplies by, for backends that choose how to run them by timing.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm {

/// What a network does with a matrix W.
enum class ProjectionRole : std::uint8_t {
  plain,    ///< `linear`
  qkv,      ///< `project_qkv`: its heads follow
  output,   ///< `linear` of what attention gives
  gate_up,  ///< `gated_linear`: SwiGLU follows
  down,     ///< `linear` of what SwiGLU gives
};

/// Matrices of one role and one shape.
template <class Matrix, class W>
struct Projection {
  ProjectionRole role = ProjectionRole::plain;
  std::vector<const Matrix*> matrices;  ///< one a layer
  InputNorm<W> norm{};                  ///< any layer's, where the op norms its input itself
  bool accumulates = false;             ///< the product is added to the residual
  std::int64_t max_rows = 0;            ///< of x
};

/// All of a network, in the order of a step. A is the activations' element, W the vectors'; `Head`
/// is the type of lm_head, attention is of `Heads`.
template <class A, class Matrix, class W, class HeadsT = HeadShape<>, class Head = Matrix>
struct Projections {
  using Activation = A;
  using Weight = W;
  using Heads = HeadsT;

  std::vector<Projection<Matrix, W>> list;  ///< of the layers
  Projection<Head, W> logits{};             ///< with results in float; may have no matrix
  KvHeads kv_heads{};                       ///< of k and v, where there is a `qkv`
  std::int64_t max_seqs = 0;                ///< rows that are decodes, at most

  /// The first of a role; null where there is none.
  [[nodiscard]] const Projection<Matrix, W>* find(ProjectionRole role) const {
    const auto found =
        std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.role == role; });
    return found == list.end() ? nullptr : &*found;
  }
};

}  // namespace nanovllm
