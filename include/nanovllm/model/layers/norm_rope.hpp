#pragma once
/// Norm of q and k by head, rotary positions, and the way of k and v into the cache.

#include <cstdint>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/qk_norm_rope_store.hpp"

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
      : context_(context),
        max_model_len_(max_model_len),
        head_dim_(head_dim),
        eps_(eps),
        table_(static_cast<std::size_t>(max_model_len * head_dim)) {
    std::vector<float> table(static_cast<std::size_t>(max_model_len * head_dim));
    fill(MatrixView<float>(table.data(), {max_model_len, head_dim}));
    context_.backend.upload(table.data(), table_.data(), table.size());
  }

  /// Norms and rotates q and k in place, and stores k and v at the step's slots.
  template <class Batch>
  void operator()(const Qkv<typename Context::Activation>& qkv, VectorView<const Weight> q_norm,
                  VectorView<const Weight> k_norm, const Batch& in,
                  KvView<typename Context::KvElement> kv) {
    context_.backend.run(
        QkNormRopeStoreArgs<typename Context::Activation, typename Context::KvElement, Weight>{
            .q = qkv.q,
            .k = qkv.k,
            .v = qkv.v,
            .q_norm = q_norm,
            .k_norm = k_norm,
            .eps = eps_,
            .positions = in.positions,
            .cos_sin = {table_.data(), {max_model_len_, head_dim_}},
            .slots = in.slots,
            .kv = kv});
  }

 private:
  Context context_;
  std::int64_t max_model_len_;
  std::int64_t head_dim_;
  float eps_;
  typename Context::template Buffer<float> table_;
};

}  // namespace nanovllm
