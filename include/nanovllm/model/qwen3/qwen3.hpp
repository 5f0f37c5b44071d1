#pragma once
/// The Qwen3 dense transformer, written once against the contracts in `ops/`.
/// Source: transformers, models/qwen3/modeling_qwen3.py; docs/numerics.md lists the departures.

#include <cstddef>
#include <cstdint>
#include <string>
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

/// Attention of a layer of these traits.
template <Qwen3Traits kTraits, class Context, class Heads>
using Qwen3AttentionOf = std::conditional_t<kTraits.norms_heads, Qwen3Attention<Context, Heads>,
                                            RotaryAttention<Context, Heads>>;

/// One rank's share of a Qwen3 model, see `Decoder`.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group: q, k, v, gate and up are split by output rows
/// (whole heads), o and down by input columns, lm_head and a tied embedding by vocabulary.
template <Qwen3Shape kShape, class ElementsT, class Backend, class Communicator,
          Qwen3Traits kTraits = Qwen3Traits{}>
class Qwen3Network
    : public Decoder<
          LayerContext<ElementsT, Backend, Communicator>,
          Qwen3Weights<typename ElementsT::Weight, Backend, typename ElementsT::KvElement, kTraits>,
          Qwen3AttentionOf<kTraits, LayerContext<ElementsT, Backend, Communicator>,
                           decltype(head_shape_of<kShape>())>,
          Qwen3Mlp<LayerContext<ElementsT, Backend, Communicator>>> {
  static_assert(check_backend<Backend, ElementsT>());

  using Context = typename Qwen3Network::Decoder::Context;
  using Matrix = typename Context::Matrix;
  using Norm = InputNorm<typename Context::Weight>;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = typename Qwen3Network::Decoder::Weights;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Qwen3Network(const Qwen3Config& config, const StepLimits& limits, Backend& backend,
               Communicator& comm)
      : Qwen3Network::Decoder(config,
                              Weights(config, resolve<kShape>(config), comm.rank(), comm.size()),
                              static_cast<float>(config.rms_norm_eps), limits, backend, comm) {}

  /// All weight matrices of a step, for backends that tune their kernels.
  [[nodiscard]] Projections<typename Context::Activation, Matrix, typename Context::Weight, Heads,
                            typename Context::Table>
  projections() const {
    using Role = ProjectionRole;
    using Layer = typename Weights::Layer;
    const StepLimits& limits = this->limits();
    const std::int64_t rows = limits.max_num_batched_tokens;
    const bool sums = this->stream().accumulates();
    // With several ranks a norm follows a sum over them, and stays a separate op.
    const Norm norm =
        sums ? this->stream().norm_of(view_of(this->weights().layer(0).input_norm)) : Norm{};
    return {.list = {{kTraits.norms_heads ? Role::qkv : Role::plain, this->all(&Layer::qkv),
                      kTraits.norms_heads ? norm : Norm{}, false, rows},
                     {Role::output, this->all(&Layer::o), Norm{}, sums, rows},
                     {Role::gate_up, this->all(&Layer::gate_up), norm, false, rows},
                     {Role::down, this->all(&Layer::down), Norm{}, sums, rows}},
            .logits = {Role::plain, this->weights().lm_heads(), Norm{}, false, limits.max_num_seqs},
            .kv_heads = {this->num_kv_heads(), this->head_dim()},
            .max_seqs = limits.max_num_seqs};
  }
};

/// The `Network` of a family that is built as Qwen3 is, whose config derives from Qwen3Config and
/// is read by `load_as_qwen3`.
template <Qwen3Traits kTraits, class Elements, class Backend, class Communicator>
using NetworkAsQwen3 = Qwen3Network<shapes::qwen3_any, Elements, Backend, Communicator, kTraits>;

/// Names the Qwen3 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3Shape kShape>
struct Qwen3 {
  static constexpr Qwen3Shape shape = kShape;
  static constexpr ModelFamily kFamily{.model_type = "qwen3",
                                       .architecture = "Qwen3ForCausalLM",
                                       .others = {"Qwen3ForSequenceClassification", "Qwen3Model"}};

  using Config = Qwen3Config;

  /// In which sizes `config` is not of `kShape`; empty if it is.
  [[nodiscard]] static std::string mismatch(const Config& config) {
    return detail::shape_differences(kShape, shape_of(config)).text();
  }

  /// Throws ConfigError where `num_ranks`, at least 1, cannot divide such a model.
  static void check_ranks(const Config& config, int num_ranks) {
    static_cast<void>(Qwen3Shard(shape_of(config), 0, num_ranks));
  }

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
