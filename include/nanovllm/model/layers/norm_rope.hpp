#pragma once
/// Norm of q and k by head, and rotary positions.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm {

/// Owns the table of cosines and sines.
template <class Context>
class NormRope {
  using Weight = typename Context::Weight;

 public:
  /// `fill(MatrixView<float> table)` writes the table, [max_model_len, head_dim]: cosines, then
  /// sines.
  template <class Fill>
  NormRope(const Context& context, std::int64_t max_model_len, std::int64_t head_dim, float eps,
           const Fill& fill)
      : max_model_len_(max_model_len),
        head_dim_(head_dim),
        eps_(eps),
        table_(static_cast<std::size_t>(max_model_len * head_dim)) {
    std::vector<float> table(static_cast<std::size_t>(max_model_len * head_dim));
    fill(MatrixView<float>(table.data(), {max_model_len, head_dim}));
    context.backend.upload(table.data(), table_.data(), table.size());
  }

  /// What a layer does to the heads of q and k, by its weights and the step's positions, and where
  /// k and v go.
  template <class Batch>
  [[nodiscard]] QkNormRope<Weight> of(VectorView<const Weight> q_norm,
                                      VectorView<const Weight> k_norm, const Batch& in) const {
    return {.q_norm = q_norm,
            .k_norm = k_norm,
            .eps = eps_,
            .positions = in.positions,
            .cos_sin = {table_.data(), {max_model_len_, head_dim_}},
            .slots = in.slots};
  }

 private:
  std::int64_t max_model_len_;
  std::int64_t head_dim_;
  float eps_;
  typename Context::template Buffer<float> table_;
};

}  // namespace nanovllm
