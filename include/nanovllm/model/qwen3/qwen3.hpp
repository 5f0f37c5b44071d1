#pragma once
/// The Qwen3 dense transformer, written once against the contracts in `ops/`.
/// Source: transformers, models/qwen3/modeling_qwen3.py; docs/numerics.md lists the departures.

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/decoder.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/qwen3/blocks.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm {

/// Attention of a layer that norms its heads, or does not.
template <bool kNormsHeads, class Context, class Heads>
using Qwen3AttentionOf = std::conditional_t<kNormsHeads, Qwen3Attention<Context, Heads>,
                                            RotaryAttention<Context, Heads>>;

/// One rank's share of a model with layers as a Qwen3's, each with an `Mlp`; see `Decoder`.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group, which divide the model as its table says
/// (`qwen3_modules`).
template <auto kShape, class ElementsT, class Backend, class Communicator, class Layer,
          template <class> class Mlp>
class Qwen3NetworkOf
    : public Decoder<
          LayerContext<ElementsT, Backend, Communicator>,
          Qwen3WeightsOf<Layer, typename ElementsT::Weight, Backend, typename ElementsT::KvElement>,
          Qwen3AttentionOf<Layer::kTraits.norms_heads,
                           LayerContext<ElementsT, Backend, Communicator>,
                           decltype(head_shape_of<kShape>())>,
          Mlp<LayerContext<ElementsT, Backend, Communicator>>> {
  static_assert(check_backend<Backend, ElementsT>());

  using Context = typename Qwen3NetworkOf::Decoder::Context;
  using Matrix = typename Context::Matrix;
  using Norm = InputNorm<typename Context::Weight>;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = typename Qwen3NetworkOf::Decoder::Weights;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Qwen3NetworkOf(const typename Layer::Config& config, const StepLimits& limits, Backend& backend,
                 Communicator& comm)
      : Qwen3NetworkOf::Decoder(config, Weights(resolved<kShape>(config), comm.rank(), comm.size()),
                                static_cast<float>(config.rms_norm_eps), limits, backend, comm) {}

  /// The weight matrices of a step, but for those of experts, for backends that tune their kernels.
  [[nodiscard]] Projections<typename Context::Activation, Matrix, typename Context::Weight, Heads,
                            typename Context::Head>
  projections() const {
    using Role = ProjectionRole;
    constexpr bool kNormsHeads = Layer::kTraits.norms_heads;
    const StepLimits& limits = this->limits();
    const std::int64_t rows = limits.max_num_batched_tokens;
    const bool sums = this->stream().accumulates();
    // With several ranks a norm follows a sum over them, and stays a separate op.
    const Norm norm =
        sums ? this->stream().norm_of(view_of(this->weights().layer(0).input_norm)) : Norm{};
    std::vector<Projection<Matrix, typename Context::Weight>> list{
        {kNormsHeads ? Role::qkv : Role::plain, this->all(&Layer::qkv), kNormsHeads ? norm : Norm{},
         false, rows},
        {Role::output, this->all(&Layer::o), Norm{}, sums, rows}};
    if constexpr (Layer::kIsDense) {
      list.push_back({Role::gate_up, this->all(&Layer::gate_up), norm, false, rows});
      list.push_back({Role::down, this->all(&Layer::down), Norm{}, sums, rows});
    }
    return {.list = std::move(list),
            .logits = {Role::plain, this->weights().lm_heads(), Norm{}, false, limits.max_num_seqs},
            .kv_heads = {this->num_kv_heads(), this->head_dim()},
            .max_seqs = limits.max_num_seqs};
  }
};

/// That of a dense Qwen3.
template <Qwen3Shape kShape, class ElementsT, class Backend, class Communicator,
          Qwen3Traits kTraits = Qwen3Traits{}>
using Qwen3Network =
    Qwen3NetworkOf<kShape, ElementsT, Backend, Communicator,
                   Qwen3DenseLayer<typename ElementsT::Weight, Backend, kTraits>, Qwen3Mlp>;

/// The `Network` of a family that is built as Qwen3 is, whose config derives from Qwen3Config and
/// is read by `load_as_qwen3`.
template <Qwen3Traits kTraits, class Elements, class Backend, class Communicator>
using NetworkAsQwen3 = Qwen3Network<shapes::qwen3_any, Elements, Backend, Communicator, kTraits>;

/// Names the Qwen3 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3Shape kShape>
struct Qwen3 : ShapedModel<kShape> {
  static constexpr ModelFamily kFamily{.model_type = "qwen3",
                                       .architecture = "Qwen3ForCausalLM",
                                       .others = {"Qwen3ForSequenceClassification", "Qwen3Model"}};

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
