#pragma once
/// Weights of one tensor-parallel rank of a Qwen3 mixture of experts, and how they are filled.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/moe/expert_load.hpp"
#include "nanovllm/with/moe/expert_mlp.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"
#include "nanovllm/with/moe/qwen3_moe/separate_experts.hpp"

namespace nanovllm {

/// What one rank has of a layer's experts.
struct ExpertShare {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t width = 0;  ///< of each
  int part = 0;            ///< of the columns of each: which one

  /// The same columns of all experts or, if `config.expert_parallel`, of experts that follow each
  /// other; two ranks differ by one expert at the most. Throws ConfigError where
  /// "moe_intermediate_size" or the ranks cannot be divided, or there are fewer experts than parts.
  ExpertShare(const Qwen3MoeConfig& config, int rank, int num_ranks) {
    // A mesh (with/moe/mesh.hpp): ranks of a group follow each other and have the same experts.
    const int columns = config.expert_parallel ? config.expert_tensor_parallel : num_ranks;
    check<ConfigError>(columns >= 1 && num_ranks % columns == 0,
                       "expert_tensor_parallel must divide tensor_parallel = ", num_ranks, ", got ",
                       columns);
    const int group = rank / columns, num_groups = num_ranks / columns;
    const std::int64_t all = config.num_experts;
    check<ConfigError>(all >= num_groups, "expert_parallel: each of the ", num_groups,
                       columns == 1 ? " ranks" : " groups of ranks",
                       " must have an expert, but num_experts = ", all);
    detail::RankShares shares(
        columns, config.expert_parallel ? "expert_tensor_parallel" : "tensor_parallel");
    width = shares.divide("moe_intermediate_size",
                          static_cast<std::size_t>(config.moe_intermediate_size));
    shares.raise();
    part = rank % columns;
    first = first_expert_of(group, num_groups, all);
    count = first_expert_of(group + 1, num_groups, all) - first;
  }
};

/// What the layers without experts are made by. Where all have experts, "intermediate_size" is the
/// size of nothing, and ranks need not divide it.
[[nodiscard]] inline Qwen3Shape shape_without_experts(const Qwen3MoeConfig& config) {
  Qwen3Shape shape = shape_of(static_cast<const Qwen3Config&>(config));
  if (num_sparse_layers(config) == config.num_hidden_layers) shape.intermediate_size = 0;
  return shape;
}

/// A layer: with a router and experts, or, where `experts` is empty, with the MLP of a dense Qwen3.
/// The router is not quantised: it has the elements of vectors, and all ranks have it whole.
template <WeightFormat W, class Backend>
struct Qwen3MoeLayer : Qwen3LayerWeights<W, Backend> {
  using Matrix = MatrixOf<Backend, W>;
  using Router = typename Backend::template Matrix<WeightElement<W>>;

  using Qwen3LayerWeights<W, Backend>::Qwen3LayerWeights;

  Matrix gate_up = Matrix(0, 0);          // [2 · intermediate, hidden]; empty if sparse
  Matrix down = Matrix(0, 0);             // [hidden, intermediate]; empty if sparse
  Router router = Router(0, 0);           // [experts, hidden]; empty if dense
  std::vector<Expert<Matrix>> experts{};  // each [2 · width, hidden] and [hidden, width]; own ones
};

/// The weights of a Qwen3 mixture of experts. Ranks divide every expert as they divide an MLP, or
/// have whole ones (`ExpertShare`), and read no others.
template <WeightFormat W, class Backend, KvFormat Kv>
class Qwen3MoeWeights : public Qwen3WeightsOf<Qwen3MoeWeights<W, Backend, Kv>,
                                              Qwen3MoeLayer<W, Backend>, W, Backend, Kv> {
  using Base = typename Qwen3MoeWeights::Qwen3WeightsOf;

 public:
  using Layer = typename Base::Layer;

  /// Allocates; contents are undefined until `load` or `randomize`. Throws ConfigError where
  /// `num_ranks` does not divide the experts or a size of a dense Qwen3.
  Qwen3MoeWeights(const Qwen3MoeConfig& config, int rank, int num_ranks)
      : Base(config, shape_without_experts(config), rank, num_ranks),
        num_experts_(config.num_experts),
        expert_width_(config.moe_intermediate_size),
        share_(config, rank, num_ranks) {
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      Layer layer(this->shape(), this->shard());
      if (config.is_sparse(i)) {
        add_experts(layer);
      } else {
        const std::int64_t own = this->shard().intermediate_size;
        layer.gate_up = typename Layer::Matrix(2 * own, this->hidden());
        layer.down = typename Layer::Matrix(this->hidden(), own);
      }
      this->append(std::move(layer));
    }
  }

 private:
  friend Base;

  static Checkpoint with_own_tensors(const Checkpoint& checkpoint) {
    return with_separate_experts(checkpoint);
  }

  void add_experts(Layer& layer) {
    using Matrix = typename Layer::Matrix;
    layer.router = typename Layer::Router(num_experts_, this->hidden());
    layer.experts = make_experts<Matrix>(share_.count, this->hidden(), share_.width);
  }

  void list_mlp(typename Base::List& out, const std::string& prefix, Layer& layer) {
    if (layer.experts.empty()) {
      const auto width = static_cast<std::int64_t>(this->shape().intermediate_size);
      return this->list_gated(out, prefix, width, this->shard().rank, layer.gate_up, layer.down);
    }
    out.add_matrix(prefix + "gate.weight", {num_experts_, this->hidden()}, {}, layer.router);
    for (std::int64_t e = 0; e < num_experts_; ++e) {
      const std::int64_t own = e - share_.first;
      const bool is_here = own >= 0 && own < share_.count;
      // Of another rank's there are no rows and no columns here; its tensors must be there.
      auto* const expert = is_here ? &layer.experts[static_cast<std::size_t>(own)] : nullptr;
      this->list_gated(out, concat(prefix, "experts.", e, "."), expert_width_, share_.part,
                       is_here ? expert->gate_up : layer.gate_up,
                       is_here ? expert->down : layer.down);
    }
  }

  std::int64_t num_experts_;
  std::int64_t expert_width_;  // on all ranks together
  ExpertShare share_;
};

}  // namespace nanovllm
