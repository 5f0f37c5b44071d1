#pragma once
/// Attention over the paged cache: queries, keys and values of a step, norms of their heads, rotary
/// positions, and what they see.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm {

/// Owns the table of cosines and sines.
template <class Context>
class NormRope {
  using Weight = typename Context::Weight;

 public:
  /// `fill(MatrixView<float>)` writes the table, [max_model_len, head_dim]: cosines, then sines.
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

  /// What a layer does to heads of q and k, by weights and positions, and where k and v go.
  [[nodiscard]] QkNormRope<Weight> of(VectorView<const Weight> q_norm,
                                      VectorView<const Weight> k_norm, const auto& in) const {
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

/// Attention with any number of query heads for each KV head. `Heads` is the `HeadShape` that the
/// model's type gives.
///
/// `Batch` has the members of a `ForwardBatch`: decodes in rows [0, num_decodes), then chunks.
template <class Context, class Heads = HeadShape<>>
class PagedAttention {
  using A = typename Context::Activation;
  using Kv = typename Context::KvElement;

 public:
  PagedAttention(const Context& context, std::int64_t max_rows, const AttentionHeads& heads)
      : context_(context),
        heads_(heads),
        qkv_(max_rows, heads.qkv_width()),
        out_(max_rows, heads.num_heads * heads.head_dim) {}

  /// Once a step, ahead of `attend` in all layers.
  void plan(const auto& in) {
    context_.backend.run(PlanAttentionArgs{.num_decodes = in.num_decodes,
                                           .num_tokens = in.tokens.extent(0),
                                           .query_starts = in.query_starts,
                                           .kv_lens = in.kv_lens,
                                           .shared = {in.shared_prefixes, in.prefix_members},
                                           .has_chunk_rows = in.has_chunk_rows,
                                           .num_heads = heads_.num_heads,
                                           .num_kv_heads = heads_.num_kv_heads,
                                           .head_dim = heads_.head_dim});
  }

  /// q, k and v of a step's rows from `begin` on, heads normed and rotated, k and v stored in `kv`.
  /// `weight` has the rows of q_proj, k_proj, v_proj, `heads` the positions and slots of the step.
  void project_qkv(const BlockInput<Context>& in, std::int64_t begin,
                   const typename Context::Matrix& weight,
                   const QkNormRope<typename Context::Weight>& heads, KvView<Kv> kv) {
    const std::int64_t end = begin + in.x.extent(0);
    const ProjectQkvArgs<A, typename Context::Matrix, Kv, typename Context::Weight> args{
        .x = in.x,
        .norm = in.norm,
        .weight = &weight,
        .heads = heads.rows(begin, end),
        .kv = kv,
        .qkv = qkv_.rows(end).slice(begin, end),
        .normed = in.scratch};
    run_or_compose(context_.backend, args);
  }
  /// What that has computed, of n rows.
  [[nodiscard]] Qkv<A> qkv(std::int64_t n) {
    return split_qkv(qkv_.rows(n), heads_.num_heads, heads_.num_kv_heads, heads_.head_dim);
  }

  /// x · weightᵀ + bias (unless that is empty), for models without norm and rotation: q's, k's
  /// and v's rows and elements one after another. Nothing is stored. A bias needs
  /// `add_bias(context, rows, bias)`, which is found next to Context.
  [[nodiscard]] Qkv<A> project_qkv(typename Context::ConstRows x,
                                   const typename Context::Matrix& weight,
                                   VectorView<const typename Context::Weight> bias = {}) {
    const typename Context::Rows qkv = qkv_.rows(x.extent(0));
    project(context_, x, weight, qkv);
    if (!bias.empty()) add_bias(context_, qkv, bias);
    return split_qkv(qkv, heads_.num_heads, heads_.num_kv_heads, heads_.head_dim);
  }

  /// What every query sees, [n, heads · head_dim], valid until the next call. The step's keys and
  /// values are in `kv` already; chunks also get them directly, so that without a prefix the cache
  /// need not be read.
  [[nodiscard]] typename Context::Rows attend(const Qkv<A>& qkv, const auto& in, KvView<Kv> kv) {
    const std::int64_t n = qkv.q.extent(0), num_decodes = in.num_decodes;
    const typename Context::Rows rows = out_.rows(n);
    const TensorView<A, 3> out(rows.data, {n, heads_.num_heads, heads_.head_dim});
    const float scale = 1.f / std::sqrt(static_cast<float>(heads_.head_dim));
    if (num_decodes > 0) {
      context_.backend.run(
          DecodeAttentionArgs<A, Kv, Heads>{.q = qkv.q.slice(0, num_decodes),
                                            .kv = kv,
                                            .kv_lens = in.kv_lens.slice(0, num_decodes),
                                            .block_tables = in.block_tables.slice(0, num_decodes),
                                            .scale = scale,
                                            .out = out.slice(0, num_decodes)});
    }
    if (n > num_decodes) {
      context_.backend.run(VarlenAttentionArgs<A, Kv, Heads>{
          .q = qkv.q.slice(num_decodes, n),
          .k = qkv.k.slice(num_decodes, n),
          .v = qkv.v.slice(num_decodes, n),
          .kv = kv,
          .query_starts = in.query_starts,
          .kv_lens = in.kv_lens.slice(num_decodes, in.kv_lens.extent(0)),
          .block_tables = in.block_tables.slice(num_decodes, in.block_tables.extent(0)),
          .has_prefix = in.has_prefix,
          .scale = scale,
          .out = out.slice(num_decodes, n)});
    }
    return rows;
  }

 private:
  Context context_;
  AttentionHeads heads_;
  RowBuffer<Context> qkv_;
  RowBuffer<Context> out_;
};

}  // namespace nanovllm
