#pragma once
/// GPT-2, written once against the contracts in `ops/`.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, as
/// transformers' GPT2LMHeadModel computes it.

#include <cstdint>

#include "nanovllm/core/elements.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/gpt2/config.hpp"
#include "nanovllm/model/gpt2/shapes.hpp"
#include "nanovllm/model/gpt2/weights.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/embedding.hpp"
#include "nanovllm/model/layers/linear.hpp"
#include "nanovllm/model/layers/mlp.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/projections.hpp"

namespace nanovllm {

/// True if `B` has the ops that GPT-2 needs in addition to those of every model; a compile error
/// that names what is missing if not.
template <class B, class E>
consteval bool check_gpt2_ops() {
  using W = typename E::Weight;
  using A = typename E::Activation;
  static_assert(RunsOp<B, LayerNormArgs<A, W>> && RunsOp<B, AddLayerNormArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'LayerNormArgs' and "
                "'AddLayerNormArgs', which Gpt2 needs; see ops/layer_norm.hpp");
  static_assert(RunsOp<B, AddBiasArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'AddBiasArgs', which Gpt2 needs; "
                "see ops/add_bias.hpp");
  static_assert(RunsOp<B, BiasGeluArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'BiasGeluArgs', which Gpt2 needs; "
                "see ops/bias_gelu.hpp");
  static_assert(RunsOp<B, KvStoreArgs<A, typename E::KvElement>>,
                "nanovllm: the policy's Backend has no 'run' for 'KvStoreArgs', which Gpt2 needs; "
                "see ops/kv_store.hpp");
  return true;
}

/// One rank's share of a GPT-2 model: its weights, its activations and the forward pass.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group: q, k, v and the MLP's first layer are split by
/// output rows (whole heads), the layers after them by input columns, embedding and lm_head by
/// vocabulary.
template <Gpt2Shape kShape, class ElementsT, class Backend, class Communicator>
class Gpt2Network {
  static_assert(check_backend<Backend, ElementsT>() && check_gpt2_ops<Backend, ElementsT>());

  using Context = LayerContext<ElementsT, Backend, Communicator>;
  using A = typename Context::Activation;
  using Matrix = typename Context::Matrix;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = Gpt2Weights<typename Context::Weight, Backend>;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Gpt2Network(const Gpt2Config& config, const StepLimits& limits, Backend& backend,
              Communicator& comm)
      : context_{backend, comm},
        weights_(resolve<kShape>(config), comm.rank(), comm.size()),
        limits_(limits),
        stream_(context_, limits.max_num_batched_tokens, hidden_size(),
                static_cast<float>(config.layer_norm_eps)),
        attention_(context_, limits.max_num_batched_tokens,
                   {num_kv_heads(), num_kv_heads(), head_dim()}),
        mlp_(context_, limits.max_num_batched_tokens, weights_.shard().intermediate_size),
        lm_head_(context_, limits.max_num_seqs, weights_.shard().vocab_rows) {
    backend.reserve({.limits = limits,
                     .vocab_size = vocab_size(),
                     .num_heads = num_kv_heads(),
                     .num_kv_heads = num_kv_heads(),
                     .head_dim = head_dim()});
  }

  [[nodiscard]] Weights& weights() { return weights_; }

  /// All weight matrices of a step, for backends that tune their kernels.
  [[nodiscard]] Projections<A, Matrix, typename Context::Weight, Heads> projections() const {
    using Role = ProjectionRole;
    const InputNorm<typename Context::Weight> none{};  // by name: GCC 12 crashes at a mere {}
    const std::int64_t rows = limits_.max_num_batched_tokens;
    const auto all = [&](Matrix Layer::*matrix) {
      return matrices_of<Context>(weights_, num_layers(), matrix);
    };
    return {.list = {{Role::plain, all(&Layer::qkv), none, false, rows},
                     {Role::plain, all(&Layer::out), none, false, rows},
                     {Role::plain, all(&Layer::fc), none, false, rows},
                     {Role::plain, all(&Layer::proj), none, false, rows},
                     {Role::logits, {&weights_.lm_head()}, none, false, limits_.max_num_seqs}},
            .max_seqs = limits_.max_num_seqs};
  }

  /// Heads of this rank, for its KV pool: every query head has its own keys and values.
  [[nodiscard]] std::int64_t num_kv_heads() const { return weights_.shard().num_heads; }
  [[nodiscard]] std::int64_t head_dim() const { return weights_.head_dim(); }
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
    stream_.start(in.tokens.extent(0));
    embed(context_, in.tokens, weights_.embedding(), weights_.shard().first_token,
          stream_.residual());
    embed_positions(context_, in.positions, weights_.positions(), stream_.summand());
    attention_.plan(in);
    norm(weights_.layer(0).attention_norm);
    for (std::int64_t i = 0; i < num_layers(); ++i) {
      const Layer& layer = weights_.layer(i);
      const Qkv<A> qkv =
          attention_.project_qkv(stream_.hidden(), layer.qkv, view_of(layer.qkv_bias));
      context_.backend.run(KvStoreArgs<A, typename Context::KvElement>{
          .k = qkv.k, .v = qkv.v, .slots = in.slots, .kv = kv.layer(i)});
      stream_.add(attention_.attend(qkv, in, kv.layer(i)), layer.out, view_of(layer.out_bias));
      norm(layer.mlp_norm);
      stream_.add(mlp_(stream_.hidden(), layer.fc, view_of(layer.fc_bias)), layer.proj,
                  view_of(layer.proj_bias));
      const bool last = i + 1 == num_layers();
      norm(last ? weights_.final_norm() : weights_.layer(i + 1).attention_norm);
    }
    if (in.logit_rows.extent(0) > 0)
      lm_head_(stream_.take_rows(in.logit_rows), weights_.lm_head(), logits);
  }

 private:
  using Layer = typename Weights::Layer;

  [[nodiscard]] std::int64_t hidden_size() const {
    return detail::fixed_or(kShape.hidden_size, weights_.shape().hidden_size);
  }

  void norm(const typename Weights::Norm& norm) {
    stream_.norm({view_of(norm.weight), view_of(norm.bias)});
  }

  Context context_;
  Weights weights_;
  StepLimits limits_;
  ResidualStream<Context, LayerNorm> stream_;
  PagedAttention<Context, Heads> attention_;
  GeluMlp<Context> mlp_;
  LmHead<Context> lm_head_;
};

/// Names the GPT-2 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Gpt2Shape kShape>
struct Gpt2 {
  static constexpr Gpt2Shape shape = kShape;

  using Config = Gpt2Config;

  template <class Elements, class Backend, class Communicator>
  using Network = Gpt2Network<kShape, Elements, Backend, Communicator>;
};

}  // namespace nanovllm
