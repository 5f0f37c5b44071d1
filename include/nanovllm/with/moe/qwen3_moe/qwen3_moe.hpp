#pragma once
/// The Qwen3 mixture of experts: a Qwen3 whose MLPs are chosen, token by token.
/// Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py; docs/numerics.md lists the
/// departures.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/decoder.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/qwen3/blocks.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/ops/backend.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/experts.hpp"
#include "nanovllm/with/moe/ops.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"
#include "nanovllm/with/moe/qwen3_moe/shapes.hpp"
#include "nanovllm/with/moe/qwen3_moe/weights.hpp"

namespace nanovllm {

/// What a layer has after attention: RMSNorm, then its experts or its MLP. Counts which experts
/// tokens go to.
template <class Context>
class Qwen3MoeMlp {
 public:
  Qwen3MoeMlp(const Context& context, const Qwen3MoeConfig& config, const StepLimits& limits,
              const DecoderSizes& sizes)
      : dense_(context, config, limits, sizes),
        experts_(
            context, limits.max_num_batched_tokens,
            routing_sizes(config, ExpertShare(config, context.comm.rank(), context.comm.size()))),
        counts_(context, num_sparse_layers(config), config.num_experts) {}

  /// A step begins. `in` has the members of a ForwardBatch.
  template <class Batch>
  void plan(const Batch& in) {
    slots_ = in.slots;
    layer_ = 0;
  }

  template <class Stream, class Layer>
  void operator()(Stream& stream, const Layer& layer) {
    if (layer.experts.empty()) return dense_(stream, layer);
    stream.norm(view_of(layer.post_norm));
    stream.add_result([&](auto out, bool accumulate) {
      experts_(stream.hidden(), layer.router, layer.experts, out, accumulate, slots_,
               counts_.of(layer_++));
    });
  }

  /// Of all steps so far. From any thread.
  [[nodiscard]] ExpertLoad load() const { return counts_.load(); }

 private:
  [[nodiscard]] static RoutingSizes routing_sizes(const Qwen3MoeConfig& config,
                                                  const ExpertShare& share) {
    return {.num_experts = config.num_experts,
            .first_expert = share.first,
            .experts_per_token = config.num_experts_per_tok,
            .in = config.hidden_size,
            .width = share.width,
            .normalise = config.norm_topk_prob};
  }

  Qwen3Mlp<Context> dense_;
  ExpertLayer<Context> experts_;
  ExpertCounts<Context> counts_;
  VectorView<const Slot> slots_;  // of the step
  std::int64_t layer_ = 0;        // the next, of those with experts
};

/// `Backend` has the ops of experts.
template <class Backend, class Elements>
concept RunsExperts = RunsOp<Backend, RouteExpertsArgs> &&
    RunsOp<Backend, ExpertMlpArgs<typename Elements::Activation,
                                  MatrixOf<Backend, typename Elements::Weight>>> &&
    RunsOp<Backend, FloatLinearArgs<typename Elements::Activation,
                                    typename Backend::template Matrix<
                                        WeightElement<typename Elements::Weight>>>>;

namespace detail {

/// True if `Backend` has the ops of experts; a compile error that names what is missing if not.
template <class Backend, class Elements>
consteval bool check_expert_ops() {
  using A = typename Elements::Activation;
  using Router = typename Backend::template Matrix<WeightElement<typename Elements::Weight>>;
  static_assert(RunsOp<Backend, RouteExpertsArgs>,
                "nanovllm: a mixture of experts needs a Backend with 'run' for 'RouteExpertsArgs'");
  static_assert(RunsOp<Backend, ExpertMlpArgs<A, MatrixOf<Backend, typename Elements::Weight>>>,
                "nanovllm: a mixture of experts needs a Backend with 'run' for 'ExpertMlpArgs'");
  static_assert(RunsOp<Backend, FloatLinearArgs<A, Router>>,
                "nanovllm: a mixture of experts needs a Backend with 'run' for 'FloatLinearArgs' "
                "with its 'Matrix', for the router");
  return true;
}

}  // namespace detail

/// One rank's share of a Qwen3 mixture of experts, see `Decoder`.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. Ranks divide
/// attention and vocabulary as in `Qwen3Network`, and every expert as a dense MLP or, expert
/// parallel, the list of experts; each has the whole router and chooses for itself, by equal bits.
template <Qwen3MoeShape kShape, class ElementsT, class Backend, class Communicator>
class Qwen3MoeNetwork
    : public Decoder<
          LayerContext<ElementsT, Backend, Communicator>,
          Qwen3MoeWeights<typename ElementsT::Weight, Backend, typename ElementsT::KvElement>,
          Qwen3Attention<LayerContext<ElementsT, Backend, Communicator>,
                         decltype(head_shape_of<kShape>())>,
          Qwen3MoeMlp<LayerContext<ElementsT, Backend, Communicator>>> {
  static_assert(check_backend<Backend, ElementsT>() &&
                detail::check_expert_ops<Backend, ElementsT>());

  using Context = typename Qwen3MoeNetwork::Decoder::Context;
  using Matrix = typename Context::Matrix;
  using Norm = InputNorm<typename Context::Weight>;
  using Heads = decltype(head_shape_of<kShape>());

 public:
  using Weights = typename Qwen3MoeNetwork::Decoder::Weights;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Qwen3MoeNetwork(const Qwen3MoeConfig& config, const StepLimits& limits, Backend& backend,
                  Communicator& comm)
      : Qwen3MoeNetwork::Decoder(config, checked_weights(config, comm),
                                 static_cast<float>(config.rms_norm_eps), limits, backend, comm) {}

  /// The weight matrices of attention and of lm_head, for backends that tune their kernels.
  [[nodiscard]] Projections<typename Context::Activation, Matrix, typename Context::Weight, Heads,
                            typename Context::Table>
  projections() const {
    using Role = ProjectionRole;
    using Layer = typename Weights::Layer;
    const StepLimits& limits = this->limits();
    const std::int64_t rows = limits.max_num_batched_tokens;
    const bool accumulates = this->stream().accumulates();  // else a norm adds, as an op of its own
    const Norm norm =
        accumulates ? this->stream().norm_of(view_of(this->weights().layer(0).input_norm)) : Norm{};
    return {.list = {{Role::qkv, this->all(&Layer::qkv), norm, false, rows},
                     {Role::output, this->all(&Layer::o), Norm{}, accumulates, rows}},
            .logits = {Role::plain, this->weights().lm_heads(), Norm{}, false, limits.max_num_seqs},
            .kv_heads = {this->num_kv_heads(), this->head_dim()},
            .max_seqs = limits.max_num_seqs};
  }

  /// Adds the ExpertLoad of all steps but those that `at_start` has counted. From any thread.
  void add_statistics(Extras& to, const Extras& at_start) const {
    ExpertLoad load = this->mlp().load();
    const auto before = at_start.of<ExpertLoad>();
    for (std::size_t i = 0; i < before.tokens.size(); ++i) load.tokens[i] -= before.tokens[i];
    to.set(std::move(load));
  }

 private:
  [[nodiscard]] static Weights checked_weights(const Qwen3MoeConfig& config,
                                               const Communicator& comm) {
    resolve<kShape>(config);
    return Weights(config, comm.rank(), comm.size());
  }
};

/// Names the Qwen3 mixtures of experts at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3MoeShape kShape>
struct Qwen3Moe {
  static constexpr Qwen3MoeShape shape = kShape;
  static constexpr ModelFamily kFamily{
      .model_type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .others = {"Qwen3MoeForSequenceClassification", "Qwen3MoeModel"}};

  using Config = Qwen3MoeConfig;

  template <class Elements, class Backend>
  static constexpr bool kRunsOn = RunsExperts<Backend, Elements>;

  /// In which sizes `config` is not of `kShape`; empty if it is.
  [[nodiscard]] static std::string mismatch(const Config& config) {
    return detail::shape_differences(kShape, shape_of(config)).text();
  }

  /// Throws ConfigError where `num_ranks`, at least 1, cannot divide such a model.
  static void check_ranks(const Config& config, int num_ranks) {
    static_cast<void>(Qwen3Shard(shape_without_experts(config), 0, num_ranks));
    static_cast<void>(ExpertShare(config, 0, num_ranks));
  }

  template <class Elements, class Backend, class Communicator>
  using Network = Qwen3MoeNetwork<kShape, Elements, Backend, Communicator>;
};

/// Sizes of a Qwen3 mixture of experts that must be the same in all processes of a group.
[[nodiscard]] inline std::vector<ModelSetting> settings_of(const Qwen3MoeConfig& config) {
  std::vector<ModelSetting> out = settings_of(static_cast<const Qwen3Config&>(config));
  out.insert(out.end(), {{"num_experts", config.num_experts},
                         {"num_experts_per_tok", config.num_experts_per_tok},
                         {"moe_intermediate_size", config.moe_intermediate_size},
                         {"norm_topk_prob", config.norm_topk_prob ? 1 : 0},
                         {"expert_parallel", config.expert_parallel ? 1 : 0},
                         {"expert_tensor_parallel", config.expert_tensor_parallel},
                         {"layers with experts", num_sparse_layers(config)}});
  return out;
}

}  // namespace nanovllm
