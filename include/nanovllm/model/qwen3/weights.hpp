#pragma once
/// Weights of one tensor-parallel rank of a Qwen3 model, and how they are filled.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/model/prefixed_checkpoint.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// In what a family differs from Qwen3 that is built as it is.
struct Qwen3Traits {
  bool norms_heads = true;    ///< q and k have a norm by head
  bool has_qkv_bias = false;  ///< q, k and v have a bias
};

/// What a rank has. Throws ConfigError naming every size that `num_ranks` does not divide.
[[nodiscard]] inline RankSizes divide(const Qwen3Config& config, int rank, int num_ranks) {
  return kQwen3Table.divide(sizes_of(config), rank, num_ranks);
}

/// What a layer of any Qwen3 has on one rank: all but its MLP. q, k and v are rows of one matrix,
/// so that they are one product.
template <WeightFormat W, class Backend, Qwen3Traits kTraitsOf = Qwen3Traits{}>
struct Qwen3LayerWeights {
  static constexpr Qwen3Traits kTraits = kTraitsOf;
  static constexpr bool kIsDense = true;  // all layers have an MLP, of matrices gate_up and down
  using Matrix = MatrixOf<Backend, W>;
  using Vector = typename Backend::template Buffer<WeightElement<W>>;

  /// Of one rank.
  explicit Qwen3LayerWeights(const DecoderSizes& own)
      : input_norm(std::size_t(own.hidden_size)),
        qkv(own.heads.qkv_width(), own.hidden_size),
        qkv_bias(kTraits.has_qkv_bias ? std::size_t(qkv.rows()) : 0),
        q_norm(kTraits.norms_heads ? std::size_t(own.heads.head_dim) : 0),
        k_norm(q_norm.size()),
        o(own.hidden_size, own.heads.num_heads * own.heads.head_dim),
        post_norm(input_norm.size()) {}

  Vector input_norm;  // [hidden]
  Matrix qkv;         // [(heads + 2 kv_heads) · head_dim, hidden]
  Vector qkv_bias;    // [(heads + 2 kv_heads) · head_dim], or empty
  Vector q_norm;      // [head_dim], or empty
  Vector k_norm;      // [head_dim], or empty
  Matrix o;           // [hidden, heads · head_dim]
  Vector post_norm;   // [hidden]
  KvScales kv_scales{};

 protected:
  /// Lists the gate, the up and the down projection of a gated MLP, in this order.
  static void list_gated(auto& out, const ModulePlace& at, std::span<const FamilyModule, 3> mlp,
                         auto& gate_up, auto& down) {
    out.add_matrix(at, mlp[1], gate_up, out.add_matrix(at, mlp[0], gate_up));
    out.add_matrix(at, mlp[2], down);
  }
};

/// A layer of a dense Qwen3. gate and up are rows of one matrix.
template <WeightFormat W, class Backend, Qwen3Traits kTraits = Qwen3Traits{}>
struct Qwen3DenseLayer : Qwen3LayerWeights<W, Backend, kTraits> {
  using Config = Qwen3Config;
  using Matrix = MatrixOf<Backend, W>;

  Qwen3DenseLayer(const Config& config, const RankSizes& sizes, std::int64_t /*layer*/)
      : Qwen3LayerWeights<W, Backend, kTraits>(sizes.own),
        gate_up(2 * sizes.own.intermediate_size, config.hidden_size),
        down(config.hidden_size, sizes.own.intermediate_size) {}

  void list_mlp(auto& out, const ModulePlace& at) {
    this->list_gated(out, at, qwen3_modules::mlp, gate_up, down);
  }

  Matrix gate_up;  // [2 · intermediate, hidden]
  Matrix down;     // [hidden, intermediate]
};

/// Owner of a rank's weights. `LayerT` derives from `Qwen3LayerWeights`; it is made from its
/// Config, the sizes of the rank and its number, and `list_mlp(list, place)` lists what it has
/// more. `Kv` is the format of the cache: one that gets its scales gets them from the checkpoint.
template <class LayerT, WeightFormat W, class Backend, KvFormat Kv>
class Qwen3WeightsOf {
  using Table = MatrixOf<Backend, W, MatrixRole::vocabulary>;
  using Head = MatrixOf<Backend, W, MatrixRole::head>;
  using Vector = typename Backend::template Buffer<WeightElement<W>>;

 public:
  using Layer = LayerT;

  /// Allocates; contents are undefined until `load` or `randomize`. Throws ConfigError where
  /// `num_ranks` does not divide the model.
  Qwen3WeightsOf(const typename Layer::Config& config, int rank, int num_ranks)
      : sizes_(divide(config, rank, num_ranks)),
        head_(config.head),
        tied_(config.tie_word_embeddings),
        embedding_(tied_ ? sizes_.vocab_rows : config.vocab_size, config.hidden_size),
        lm_head_(owns_lm_head() ? sizes_.vocab_rows : 0, owns_lm_head() ? config.hidden_size : 0),
        final_norm_(std::size_t(config.hidden_size)) {
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
      layers_.emplace_back(config, sizes_, i);
  }

  /// Streams this rank's part of `checkpoint` in; names may lack `model.` (`with_model_prefix`),
  /// and `Layer::with_own_tensors(checkpoint)`, where there is one, may divide tensors. An
  /// lm_head of a tied model or of one that wants none is ignored, and so is the head of a
  /// classifier, which is the engine's (`ScoreHead`). Throws one LoadError that names missing,
  /// surplus and misshapen tensors. Scales of the cache are read first (`Kv::read_scales`), with a
  /// LoadError of their own.
  void load(const Checkpoint& checkpoint, Backend& backend,
            std::function<void(std::uint64_t, std::uint64_t)> progress = {}) {
    std::vector<std::string> ignored;
    if (!reads_lm_head()) ignored.emplace_back("lm_head.weight");
    if (head_ == ModelHead::labels) ignored.insert(ignored.end(), {"score.weight", "score.bias"});
    Checkpoint named = with_model_prefix(checkpoint);
    if constexpr (requires { Layer::with_own_tensors(named); })
      named = Layer::with_own_tensors(named);
    if constexpr (requires { &Kv::read_scales; }) load_kv_scales(named);
    list_parameters(backend).load(named, ignored, std::move(progress));
  }

  /// See `ParameterList::randomize`.
  void randomize(std::uint64_t seed, Backend& backend, float scale = 0.02f) {
    list_parameters(backend).randomize(seed, sizes_.rank, scale);
  }

  [[nodiscard]] const DecoderSizes& sizes() const { return sizes_.own; }
  [[nodiscard]] const RankSizes& shard() const { return sizes_; }
  [[nodiscard]] const Layer& layer(std::int64_t i) const {
    return layers_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const Table& embedding() const { return embedding_; }
  /// Whether every rank has all rows of it: where lm_head is another matrix, for then a step has a
  /// sum over ranks less.
  [[nodiscard]] bool has_whole_embedding() const { return !tied_; }
  /// Without it there are no logits; see `Qwen3Config::head`.
  [[nodiscard]] bool has_lm_head() const { return head_ == ModelHead::tokens; }
  [[nodiscard]] const Head& lm_head() const {
    if constexpr (kSharesTable) {
      if (tied_) return embedding_;
    }
    return lm_head_;
  }
  /// It, if there is one.
  [[nodiscard]] std::vector<const Head*> lm_heads() const {
    if (!has_lm_head()) return {};
    return {&lm_head()};
  }
  [[nodiscard]] const Vector& final_norm() const { return final_norm_; }

 private:
  using List = ParameterList<WeightElement<W>, Backend>;

  /// Whether lm_head is the embedding in a tied model; else it is a copy in another format.
  static constexpr bool kSharesTable = std::same_as<Table, Head>;

  [[nodiscard]] bool reads_lm_head() const { return has_lm_head() && !tied_; }
  [[nodiscard]] bool owns_lm_head() const { return has_lm_head() && !(tied_ && kSharesTable); }

  /// The same on all ranks.
  void load_kv_scales(const Checkpoint& checkpoint) {
    std::vector<std::string> modules;
    for (std::size_t i = 0; i < layers_.size(); ++i)
      modules.push_back(concat("model.layers.", i, ".self_attn"));
    const std::vector<KvScales> scales = Kv::read_scales(checkpoint, modules);
    for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].kv_scales = scales[i];
  }

  /// Every tensor of the checkpoint, the part this rank keeps, and where it goes.
  [[nodiscard]] List list_parameters(Backend& backend) {
    List out(backend);
    RankSizes whole = sizes_;
    if (!tied_) whole.rank = 0, whole.vocab_rows = whole.all.vocab_size;
    out.add_matrix({whole}, qwen3_modules::embedding, embedding_);
    if (owns_lm_head() && tied_) out.also_to(lm_head_);
    for (std::size_t i = 0; i < layers_.size(); ++i)
      list_layer(out, {.sizes = sizes_, .layer = i}, layers_[i]);
    out.add_vector({sizes_}, qwen3_modules::final_norm, final_norm_);
    if (reads_lm_head()) out.add_matrix({sizes_}, qwen3_modules::lm_head, lm_head_);
    return out;
  }

  void list_layer(List& out, const ModulePlace& at, Layer& layer) {
    namespace modules = qwen3_modules;
    out.add_vector(at, modules::input_norm, layer.input_norm);
    std::int64_t row = 0;
    for (const auto& module : modules::qkv) row = out.add_matrix(at, module, layer.qkv, row);
    if constexpr (Layer::kTraits.has_qkv_bias) {
      row = 0;
      for (const auto& module : modules::qkv) row = out.add_bias(at, module, layer.qkv_bias, row);
    }
    if constexpr (Layer::kTraits.norms_heads) {
      out.add_vector(at, modules::q_norm, layer.q_norm);
      out.add_vector(at, modules::k_norm, layer.k_norm);
    }
    out.add_matrix(at, modules::o_proj, layer.o);
    out.add_vector(at, modules::post_norm, layer.post_norm);
    layer.list_mlp(out, at);
  }

  RankSizes sizes_;
  ModelHead head_;
  bool tied_;
  Table embedding_;  // [vocab shard, hidden] when tied, else [vocab, hidden]
  std::vector<Layer> layers_;
  Head lm_head_;  // [vocab shard, hidden]; empty when it is the embedding, or there is no head
  Vector final_norm_;
};

/// The weights of a dense Qwen3.
template <WeightFormat W, class Backend, KvFormat Kv, Qwen3Traits kTraits = Qwen3Traits{}>
using Qwen3Weights = Qwen3WeightsOf<Qwen3DenseLayer<W, Backend, kTraits>, W, Backend, Kv>;

}  // namespace nanovllm
