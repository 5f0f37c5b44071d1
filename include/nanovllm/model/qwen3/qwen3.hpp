#pragma once
/// The Qwen3 dense transformer, written once against the contracts in `ops/`.
/// Source: transformers, models/qwen3/modeling_qwen3.py; docs/numerics.md lists the departures.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/core/elements.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/embedding.hpp"
#include "nanovllm/model/layers/linear.hpp"
#include "nanovllm/model/layers/mlp.hpp"
#include "nanovllm/model/layers/norm_rope.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/model/rope_table.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/projections.hpp"

namespace nanovllm {

/// One rank's share of a Qwen3 model: its weights, its activations and the forward pass.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group: q, k, v, gate and up are split by output rows
/// (whole heads), o and down by input columns, the embedding and lm_head by vocabulary.
template <Qwen3Shape kShape, class ElementsT, class Backend, class Communicator>
class Qwen3Network {
  static_assert(check_backend<Backend, ElementsT>());

  using Context = LayerContext<ElementsT, Backend, Communicator>;
  using A = typename Context::Activation;
  using Matrix = typename Context::Matrix;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = Qwen3Weights<typename Context::Weight, Backend>;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Qwen3Network(const Qwen3Config& config, const StepLimits& limits, Backend& backend,
               Communicator& comm)
      : context_{backend, comm},
        weights_(config, resolve<kShape>(config), comm.rank(), comm.size()),
        limits_(limits),
        stream_(context_, limits.max_num_batched_tokens, hidden_size(), eps_of(config)),
        attention_(context_, limits.max_num_batched_tokens, heads()),
        norm_rope_(
            context_, limits.max_model_len, head_dim(), eps_of(config),
            [&](MatrixView<float> table) { fill_rope_table(config.rope, config.head_dim, table); }),
        mlp_(context_, limits.max_num_batched_tokens, weights_.shard().intermediate_size),
        lm_head_(context_, limits.max_num_seqs, weights_.shard().vocab_rows) {
    backend.reserve({.limits = limits,
                     .vocab_size = vocab_size(),
                     .num_heads = heads().num_heads,
                     .num_kv_heads = num_kv_heads(),
                     .head_dim = head_dim()});
  }

  [[nodiscard]] Weights& weights() { return weights_; }

  /// All weight matrices of a step, for backends that tune their kernels.
  [[nodiscard]] Projections<A, Matrix, typename Context::Weight, Heads> projections() const {
    using Role = ProjectionRole;
    const std::int64_t rows = limits_.max_num_batched_tokens;
    const bool sums = stream_.accumulates();
    // With several ranks a norm follows a sum over them, and stays a separate op.
    const auto norm = sums ? stream_.norm_of(view_of(weights_.layer(0).input_norm))
                           : InputNorm<typename Context::Weight>{};
    const auto all = [&](Matrix Layer::*matrix) {
      return matrices_of<Context>(weights_, num_layers(), matrix);
    };
    return {.list = {{Role::qkv, all(&Layer::qkv), norm, false, rows},
                     {Role::output, all(&Layer::o), {}, sums, rows},
                     {Role::gate_up, all(&Layer::gate_up), norm, false, rows},
                     {Role::down, all(&Layer::down), {}, sums, rows},
                     {Role::logits, {&weights_.lm_head()}, {}, false, limits_.max_num_seqs}},
            .kv_heads = {num_kv_heads(), head_dim()},
            .max_seqs = limits_.max_num_seqs};
  }

  /// Heads of this rank, for its KV pool.
  [[nodiscard]] std::int64_t num_kv_heads() const { return weights_.shard().num_kv_heads; }
  [[nodiscard]] std::int64_t head_dim() const {
    return detail::fixed_or(kShape.head_dim, weights_.shape().head_dim);
  }
  [[nodiscard]] std::int64_t num_layers() const {
    return detail::fixed_or(kShape.num_layers, weights_.shape().num_layers);
  }
  [[nodiscard]] std::int64_t vocab_size() const {
    return detail::fixed_or(kShape.vocab_size, weights_.shape().vocab_size);
  }

  /// Columns that the logits matrix must have: the vocabulary, rounded up to equal shards.
  [[nodiscard]] std::int64_t padded_vocab_size() const { return lm_head_.width(); }

  /// Computes the tokens of `in`, stores their K and V in the layers of `kv`, and writes the logits
  /// of `in.logit_rows`, [m, padded_vocab_size()], of which the first vocab_size() columns count.
  /// All ranks call this together and all get the same logits.
  template <class Batch, class KvCache>
  void forward(const Batch& in, KvCache& kv, MatrixView<float> logits) {
    run_layers(in, kv);
    if (in.logit_rows.extent(0) > 0)
      lm_head_(stream_.take_rows(in.logit_rows), weights_.lm_head(), logits);
  }

 private:
  using Layer = typename Weights::Layer;

  /// All but the logits.
  template <class Batch, class KvCache>
  void run_layers(const Batch& in, KvCache& kv) {
    stream_.start(in.tokens.extent(0));
    embed(context_, in.tokens, weights_.embedding(), weights_.shard().first_token,
          stream_.residual());
    attention_.plan(in);
    for (std::int64_t i = 0; i < num_layers(); ++i) {
      const Layer& layer = weights_.layer(i);
      const Qkv<A> qkv = attention_.project_qkv(
          stream_.normed(view_of(layer.input_norm)), layer.qkv,
          norm_rope_.of(view_of(layer.q_norm), view_of(layer.k_norm), in), kv.layer(i));
      stream_.add(attention_.attend(qkv, in, kv.layer(i)), layer.o);
      stream_.add(mlp_(stream_.normed(view_of(layer.post_norm)), layer.gate_up), layer.down);
    }
    stream_.norm(view_of(weights_.final_norm()));
  }

  [[nodiscard]] static float eps_of(const Qwen3Config& config) {
    return static_cast<float>(config.rms_norm_eps);
  }
  [[nodiscard]] std::int64_t hidden_size() const {
    return detail::fixed_or(kShape.hidden_size, weights_.shape().hidden_size);
  }
  [[nodiscard]] AttentionHeads heads() const {
    return {weights_.shard().num_heads, num_kv_heads(), head_dim()};
  }

  Context context_;
  Weights weights_;
  StepLimits limits_;
  ResidualStream<Context> stream_;
  PagedAttention<Context, Heads> attention_;
  NormRope<Context> norm_rope_;
  GatedMlp<Context> mlp_;
  LmHead<Context> lm_head_;
};

/// Names the Qwen3 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3Shape kShape>
struct Qwen3 {
  static constexpr Qwen3Shape shape = kShape;

  using Config = Qwen3Config;

  template <class Elements, class Backend, class Communicator>
  using Network = Qwen3Network<kShape, Elements, Backend, Communicator>;
};

/// Sizes of a Qwen3 model that must be the same in all processes of a group.
[[nodiscard]] inline std::vector<ModelSetting> settings_of(const Qwen3Config& config) {
  return {{"hidden_size", config.hidden_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"vocab_size", config.vocab_size}};
}

}  // namespace nanovllm
