#pragma once
/// GPT-2, written once against the contracts in `ops/`.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, as
/// transformers' GPT2LMHeadModel computes it.

#include <cstdint>
#include <string>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/decoder.hpp"
#include "nanovllm/model/layers/sizes.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/input_norm.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/with/gpt2/config.hpp"
#include "nanovllm/with/gpt2/cpu/ops.hpp"
#include "nanovllm/with/gpt2/layers.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"
#include "nanovllm/with/gpt2/weights.hpp"

namespace nanovllm {

/// True if `B` has the ops that GPT-2 needs in addition to those of every model; a compile error
/// that names what is missing if not.
template <class B, class E>
consteval bool check_gpt2_ops() {
  using W = WeightElement<typename E::Weight>;
  using A = typename E::Activation;
  static_assert(RunsOp<B, LayerNormArgs<A, W>> && RunsOp<B, AddLayerNormArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'LayerNormArgs' and "
                "'AddLayerNormArgs', which Gpt2 needs; see with/gpt2/layer_norm.hpp");
  static_assert(RunsOp<B, AddBiasArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'AddBiasArgs', which Gpt2 needs; "
                "see with/gpt2/add_bias.hpp");
  static_assert(RunsOp<B, BiasGeluArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'BiasGeluArgs', which Gpt2 needs; "
                "see with/gpt2/bias_gelu.hpp");
  static_assert(RunsOp<B, KvStoreArgs<A, typename E::KvElement>>,
                "nanovllm: the policy's Backend has no 'run' for 'KvStoreArgs', which Gpt2 needs; "
                "see ops/kv_store.hpp");
  return true;
}

/// Attention of a GPT-2 layer: LayerNorm, q, k and v with bias.
template <class Context, class Heads>
class Gpt2Attention {
 public:
  Gpt2Attention(const Context& context, const Gpt2Config&, const StepLimits& limits,
                const DecoderSizes& sizes)
      : context_(context), attention_(context, limits.max_num_batched_tokens, sizes.heads) {}

  template <class Batch>
  void plan(const Batch& in) {
    attention_.plan(in);
  }

  template <class Stream, class Layer, class Batch, class Kv>
  void operator()(Stream& stream, const Layer& layer, const Batch& in, const Kv& kv) {
    using A = typename Context::Activation;
    stream.norm(LayerNorm::parameters<Context>(layer.attention_norm));
    const Qkv<A> qkv = attention_.project_qkv(stream.hidden(), layer.qkv, view_of(layer.qkv_bias));
    context_.backend.run(KvStoreArgs<A, typename Context::KvElement>{
        .k = qkv.k, .v = qkv.v, .slots = in.slots, .kv = kv});
    stream.add(attention_.attend(qkv, in, kv), layer.out, view_of(layer.out_bias));
  }

 private:
  Context context_;
  PagedAttention<Context, Heads> attention_;
};

/// The MLP of a GPT-2 layer: LayerNorm, then proj(gelu(fc)), both with bias.
template <class Context>
class Gpt2Mlp {
 public:
  Gpt2Mlp(const Context& context, const Gpt2Config&, const StepLimits& limits,
          const DecoderSizes& sizes)
      : mlp_(context, limits.max_num_batched_tokens, sizes.intermediate_size) {}

  template <class Stream, class Layer>
  void operator()(Stream& stream, const Layer& layer) {
    stream.norm(LayerNorm::parameters<Context>(layer.mlp_norm));
    stream.add(mlp_(stream.hidden(), layer.fc, view_of(layer.fc_bias)), layer.proj,
               view_of(layer.proj_bias));
  }

 private:
  GeluMlp<Context> mlp_;
};

/// One rank's share of a GPT-2 model, see `Decoder`.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group: q, k, v and the MLP's first layer are split by
/// output rows (whole heads), the layers after them by input columns, embedding and lm_head by
/// vocabulary.
template <Gpt2Shape kShape, class ElementsT, class Backend, class Communicator>
class Gpt2Network
    : public Decoder<LayerContext<ElementsT, Backend, Communicator>,
                     Gpt2Weights<typename ElementsT::Weight, Backend>,
                     Gpt2Attention<LayerContext<ElementsT, Backend, Communicator>,
                                   decltype(head_shape_of<kShape>())>,
                     Gpt2Mlp<LayerContext<ElementsT, Backend, Communicator>>, LayerNorm> {
  static_assert(check_backend<Backend, ElementsT>() && check_gpt2_ops<Backend, ElementsT>());

  using Context = typename Gpt2Network::Decoder::Context;
  using Matrix = typename Context::Matrix;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = typename Gpt2Network::Decoder::Weights;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Gpt2Network(const Gpt2Config& config, const StepLimits& limits, Backend& backend,
              Communicator& comm)
      : Gpt2Network::Decoder(config, Weights(resolve<kShape>(config), comm.rank(), comm.size()),
                             static_cast<float>(config.layer_norm_eps), limits, backend, comm) {}

  /// All weight matrices of a step, for backends that tune their kernels.
  [[nodiscard]] Projections<typename Context::Activation, Matrix, typename Context::Weight, Heads,
                            typename Context::Table>
  projections() const {
    using Role = ProjectionRole;
    using Layer = typename Weights::Layer;
    const InputNorm<typename Context::Weight> none{};  // by name: GCC 12 crashes at a mere {}
    const StepLimits& limits = this->limits();
    const std::int64_t rows = limits.max_num_batched_tokens;
    return {.list = {{Role::plain, this->all(&Layer::qkv), none, false, rows},
                     {Role::plain, this->all(&Layer::out), none, false, rows},
                     {Role::plain, this->all(&Layer::fc), none, false, rows},
                     {Role::plain, this->all(&Layer::proj), none, false, rows}},
            .logits = {Role::plain, {&this->weights().lm_head()}, none, false, limits.max_num_seqs},
            .max_seqs = limits.max_num_seqs};
  }
};

/// Names the GPT-2 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Gpt2Shape kShape>
struct Gpt2 {
  static constexpr Gpt2Shape shape = kShape;
  static constexpr ModelFamily kFamily{.model_type = "gpt2", .architecture = "GPT2LMHeadModel"};

  using Config = Gpt2Config;

  /// In which sizes `config` is not of `kShape`; empty if it is.
  [[nodiscard]] static std::string mismatch(const Config& config) {
    return detail::shape_differences(kShape, shape_of(config)).text();
  }

  /// Throws ConfigError where `num_ranks`, at least 1, cannot divide such a model.
  static void check_ranks(const Config& config, int num_ranks) {
    static_cast<void>(Gpt2Shard(shape_of(config), 0, num_ranks));
  }

  template <class Elements, class Backend, class Communicator>
  using Network = Gpt2Network<kShape, Elements, Backend, Communicator>;
};

}  // namespace nanovllm
