#pragma once
/// Weights of one tensor-parallel rank of a Qwen3 mixture of experts, and how they are filled.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/qwen3_moe/config.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/expert_mlp.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

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
  std::vector<Expert<Matrix>> experts{};  // each [2 · width, hidden] and [hidden, width]
};

/// The weights of a Qwen3 mixture of experts. Ranks divide every expert as they divide an MLP.
template <WeightFormat W, class Backend, KvFormat Kv>
class Qwen3MoeWeights : public Qwen3WeightsOf<Qwen3MoeWeights<W, Backend, Kv>,
                                              Qwen3MoeLayer<W, Backend>, W, Backend, Kv> {
  using Base = typename Qwen3MoeWeights::Qwen3WeightsOf;

 public:
  using Layer = typename Base::Layer;

  /// Allocates; contents are undefined until `load` or `randomize`. Throws ConfigError where
  /// `num_ranks` does not divide "moe_intermediate_size" or a size of a dense Qwen3.
  Qwen3MoeWeights(const Qwen3MoeConfig& config, int rank, int num_ranks)
      : Base(config, shape_without_experts(config), rank, num_ranks),
        num_experts_(config.num_experts),
        expert_width_(config.moe_intermediate_size) {
    detail::RankShares shares(num_ranks);
    const std::int64_t width =
        shares.divide("moe_intermediate_size", static_cast<std::size_t>(expert_width_));
    shares.raise();
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
      Layer layer(this->shape(), this->shard());
      if (config.is_sparse(i)) {
        add_experts(layer, width);
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

  /// What the layers without experts are made by. Where all have experts, "intermediate_size" is
  /// the size of nothing, and ranks need not divide it.
  [[nodiscard]] static Qwen3Shape shape_without_experts(const Qwen3MoeConfig& config) {
    Qwen3Shape shape = shape_of(static_cast<const Qwen3Config&>(config));
    if (num_sparse_layers(config) == config.num_hidden_layers) shape.intermediate_size = 0;
    return shape;
  }

  void add_experts(Layer& layer, std::int64_t width) {
    using Matrix = typename Layer::Matrix;
    layer.router = typename Layer::Router(num_experts_, this->hidden());
    layer.experts = make_experts<Matrix>(num_experts_, this->hidden(), width);
  }

  void list_mlp(typename Base::List& out, const std::string& prefix, Layer& layer) {
    if (layer.experts.empty()) {
      const auto width = static_cast<std::int64_t>(this->shape().intermediate_size);
      return this->list_gated(out, prefix, width, layer.gate_up, layer.down);
    }
    out.add_matrix(prefix + "gate.weight", {num_experts_, this->hidden()}, {}, layer.router);
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      this->list_gated(out, concat(prefix, "experts.", e, "."), expert_width_,
                       layer.experts[e].gate_up, layer.experts[e].down);
    }
  }

  std::int64_t num_experts_;
  std::int64_t expert_width_;  // on all ranks together
};

}  // namespace nanovllm
