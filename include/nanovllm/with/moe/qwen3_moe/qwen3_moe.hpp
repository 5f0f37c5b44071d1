#pragma once
/// The Qwen3 mixture of experts: a Qwen3 whose MLPs are chosen, token by token.
/// Source: transformers, models/qwen3_moe/modeling_qwen3_moe.py; docs/numerics.md lists the
/// departures.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/qwen3/blocks.hpp"
#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/ops/backend.hpp"
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
    : public Qwen3NetworkOf<kShape, ElementsT, Backend, Communicator,
                            Qwen3MoeLayer<typename ElementsT::Weight, Backend>, Qwen3MoeMlp> {
  static_assert(detail::check_expert_ops<Backend, ElementsT>());

 public:
  using Qwen3MoeNetwork::Qwen3NetworkOf::Qwen3NetworkOf;

  /// Adds the ExpertLoad of all steps but those that `at_start` has counted. From any thread.
  void add_statistics(Extras& to, const Extras& at_start) const {
    ExpertLoad load = this->mlp().load();
    const auto before = at_start.of<ExpertLoad>();
    for (std::size_t i = 0; i < before.tokens.size(); ++i) load.tokens[i] -= before.tokens[i];
    to.set(std::move(load));
  }
};

/// Names the Qwen3 mixtures of experts at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3MoeShape kShape>
struct Qwen3Moe : ShapedModel<kShape> {
  static constexpr ModelFamily kFamily{
      .model_type = "qwen3_moe",
      .architecture = "Qwen3MoeForCausalLM",
      .others = {"Qwen3MoeForSequenceClassification", "Qwen3MoeModel"}};

  template <class Elements, class Backend>
  static constexpr bool kRunsOn = RunsExperts<Backend, Elements>;

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
