#pragma once
/// Weights of one tensor-parallel rank of a Qwen3 model, and how they are filled.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/model_head.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/model/prefixed_checkpoint.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/model/weights.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// What one rank of a group holds.
struct Qwen3Shard {
  std::int64_t rank = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_rows = 0;   ///< rows of lm_head and a tied embedding, padding included
  std::int64_t first_token = 0;  ///< id of the first of them

  /// Throws ConfigError naming every size that `num_ranks` does not divide.
  Qwen3Shard(const Qwen3Shape& shape, int rank_in, int num_ranks) : rank(rank_in) {
    detail::RankShares shares(num_ranks);
    num_heads = shares.divide("num_attention_heads", shape.num_heads);
    num_kv_heads = shares.divide("num_key_value_heads", shape.num_kv_heads);
    intermediate_size = shares.divide("intermediate_size", shape.intermediate_size);
    shares.raise();
    vocab_rows = shares.vocab_rows(shape.vocab_size);
    first_token = rank * vocab_rows;
  }
};

/// In what a family differs from Qwen3 that is built as it is.
struct Qwen3Traits {
  bool norms_heads = true;    ///< q and k have a norm by head
  bool has_qkv_bias = false;  ///< q, k and v have a bias
};

/// What a layer of any Qwen3 has on one rank: all but its MLP. q, k and v are rows of one matrix,
/// so that they are one product.
template <WeightFormat W, class Backend, Qwen3Traits kTraitsOf = Qwen3Traits{}>
struct Qwen3LayerWeights {
  static constexpr Qwen3Traits kTraits = kTraitsOf;
  using Matrix = MatrixOf<Backend, W>;
  using Vector = typename Backend::template Buffer<WeightElement<W>>;

  Qwen3LayerWeights(const Qwen3Shape& shape, const Qwen3Shard& shard)
      : input_norm(shape.hidden_size),
        qkv((shard.num_heads + 2 * shard.num_kv_heads) * static_cast<std::int64_t>(shape.head_dim),
            static_cast<std::int64_t>(shape.hidden_size)),
        qkv_bias(kTraits.has_qkv_bias ? static_cast<std::size_t>(qkv.rows()) : 0),
        q_norm(kTraits.norms_heads ? shape.head_dim : 0),
        k_norm(kTraits.norms_heads ? shape.head_dim : 0),
        o(static_cast<std::int64_t>(shape.hidden_size),
          shard.num_heads * static_cast<std::int64_t>(shape.head_dim)),
        post_norm(shape.hidden_size) {}

  Vector input_norm;  // [hidden]
  Matrix qkv;         // [(heads + 2 kv_heads) · head_dim, hidden]
  Vector qkv_bias;    // [(heads + 2 kv_heads) · head_dim], or empty
  Vector q_norm;      // [head_dim], or empty
  Vector k_norm;      // [head_dim], or empty
  Matrix o;           // [hidden, heads · head_dim]
  Vector post_norm;   // [hidden]
  KvScales kv_scales{};
};

/// Owner of a rank's weights. `LayerT` derives from `Qwen3LayerWeights`; `Derived` appends the
/// layers when it is made, and its `list_mlp(list, prefix, layer)` lists what theirs have more.
/// `Kv` is the format of the cache: one that gets its scales gets them from the checkpoint.
template <class Derived, class LayerT, WeightFormat W, class Backend, KvFormat Kv>
class Qwen3WeightsOf {
  using Table = MatrixOf<Backend, W, MatrixRole::vocabulary>;
  using Vector = typename Backend::template Buffer<WeightElement<W>>;

 public:
  using Layer = LayerT;

  /// Streams this rank's part of `checkpoint` in; names may lack `model.` (`with_model_prefix`),
  /// and `Derived::with_own_tensors(checkpoint)`, where there is one, may divide tensors. An
  /// lm_head of a tied model or of one that wants none is ignored, and so is the head of a
  /// classifier, which is the engine's (`ScoreHead`). Throws one LoadError that names missing,
  /// surplus and misshapen tensors. Scales of the cache are read first (`Kv::read_scales`), with a
  /// LoadError of their own.
  void load(const Checkpoint& checkpoint, Backend& backend,
            std::function<void(std::uint64_t, std::uint64_t)> progress = {}) {
    std::vector<std::string> ignored;
    if (!owns_lm_head()) ignored.emplace_back("lm_head.weight");
    if (head_ == ModelHead::labels) ignored.insert(ignored.end(), {"score.weight", "score.bias"});
    Checkpoint named = with_model_prefix(checkpoint);
    if constexpr (requires { Derived::with_own_tensors(named); })
      named = Derived::with_own_tensors(named);
    if constexpr (requires { &Kv::read_scales; }) load_kv_scales(named);
    list_parameters(backend).load(named, ignored, std::move(progress));
  }

  /// See `ParameterList::randomize`.
  void randomize(std::uint64_t seed, Backend& backend, float scale = 0.02f) {
    list_parameters(backend).randomize(seed, static_cast<int>(shard_.rank), scale);
  }

  [[nodiscard]] DecoderSizes sizes() const {
    return {.hidden_size = hidden(),
            .num_layers = static_cast<std::int64_t>(shape_.num_layers),
            .vocab_size = static_cast<std::int64_t>(shape_.vocab_size),
            .intermediate_size = shard_.intermediate_size,
            .heads = {shard_.num_heads, shard_.num_kv_heads, head_dim()}};
  }
  [[nodiscard]] const Qwen3Shard& shard() const { return shard_; }
  [[nodiscard]] const Layer& layer(std::int64_t i) const {
    return layers_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const Table& embedding() const { return embedding_; }
  /// Whether every rank has all rows of it: where lm_head is another matrix, for then a step has a
  /// sum over ranks less.
  [[nodiscard]] bool has_whole_embedding() const { return !tied_; }
  /// Without it there are no logits; see `Qwen3Config::head`.
  [[nodiscard]] bool has_lm_head() const { return head_ == ModelHead::tokens; }
  [[nodiscard]] const Table& lm_head() const { return tied_ ? embedding_ : lm_head_; }
  /// It, if there is one.
  [[nodiscard]] std::vector<const Table*> lm_heads() const {
    if (!has_lm_head()) return {};
    return {&lm_head()};
  }
  [[nodiscard]] const Vector& final_norm() const { return final_norm_; }

 protected:
  using List = ParameterList<WeightElement<W>, Backend>;

  /// Allocates; contents are undefined until `load` or `randomize`.
  Qwen3WeightsOf(const Qwen3Config& config, const Qwen3Shape& shape, int rank, int num_ranks)
      : shape_(shape),
        shard_(shape, rank, num_ranks),
        head_(config.head),
        tied_(config.tie_word_embeddings),
        embedding_(tied_ ? shard_.vocab_rows : static_cast<std::int64_t>(shape.vocab_size),
                   hidden()),
        lm_head_(owns_lm_head() ? shard_.vocab_rows : 0, owns_lm_head() ? hidden() : 0),
        final_norm_(shape.hidden_size) {}

  [[nodiscard]] const Qwen3Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t hidden() const {
    return static_cast<std::int64_t>(shape_.hidden_size);
  }
  void append(Layer layer) { layers_.push_back(std::move(layer)); }

  /// This rank's rows (`dim` 0) or columns (1) of a matrix, `size` on each rank.
  [[nodiscard]] Shard share(int dim, std::int64_t size) const {
    return share(dim, size, shard_.rank);
  }
  /// Part `part` of them.
  [[nodiscard]] static Shard share(int dim, std::int64_t size, int part) {
    return {dim, part * size, (part + 1) * size};
  }

  /// Lists a gated MLP whose tensors' names begin with `prefix`, of `width` in all: part `part` of
  /// its columns, or all if the matrices have so many; none for matrices without rows and columns.
  template <class Matrix>
  void list_gated(List& out, const std::string& prefix, std::int64_t width, int part,
                  Matrix& gate_up, Matrix& down) const {
    const std::int64_t own = down.cols();
    const bool whole = own == width;
    const Shard rows = whole ? Shard{} : share(0, own, part);
    const Shard columns = whole ? Shard{} : share(1, own, part);
    out.add_matrix(prefix + "gate_proj.weight", {width, hidden()}, rows, gate_up);
    out.add_matrix(prefix + "up_proj.weight", {width, hidden()}, rows, gate_up, own);
    out.add_matrix(prefix + "down_proj.weight", {hidden(), width}, columns, down);
  }

 private:
  [[nodiscard]] std::int64_t head_dim() const { return static_cast<std::int64_t>(shape_.head_dim); }
  [[nodiscard]] bool owns_lm_head() const { return has_lm_head() && !tied_; }

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
    const auto vocab = static_cast<std::int64_t>(shape_.vocab_size);
    const Shard vocab_shard{0, std::min(vocab, shard_.first_token),
                            std::min(vocab, shard_.first_token + shard_.vocab_rows)};
    out.add_matrix("model.embed_tokens.weight", {vocab, hidden()}, tied_ ? vocab_shard : Shard{},
                   embedding_);
    for (std::size_t i = 0; i < layers_.size(); ++i)
      list_layer(out, concat("model.layers.", i, "."), layers_[i]);
    out.add_vector("model.norm.weight", final_norm_);
    if (owns_lm_head()) out.add_matrix("lm_head.weight", {vocab, hidden()}, vocab_shard, lm_head_);
    return out;
  }

  void list_layer(List& out, const std::string& prefix, Layer& layer) {
    const std::int64_t d = head_dim();
    const std::int64_t q_rows = shard_.num_heads * d, kv_rows = shard_.num_kv_heads * d;
    const auto all_q_rows = static_cast<std::int64_t>(shape_.num_heads) * d;
    const auto all_kv_rows = static_cast<std::int64_t>(shape_.num_kv_heads) * d;

    out.add_vector(prefix + "input_layernorm.weight", layer.input_norm);
    out.add_matrix(prefix + "self_attn.q_proj.weight", {all_q_rows, hidden()}, share(0, q_rows),
                   layer.qkv);
    out.add_matrix(prefix + "self_attn.k_proj.weight", {all_kv_rows, hidden()}, share(0, kv_rows),
                   layer.qkv, q_rows);
    out.add_matrix(prefix + "self_attn.v_proj.weight", {all_kv_rows, hidden()}, share(0, kv_rows),
                   layer.qkv, q_rows + kv_rows);
    if constexpr (Layer::kTraits.has_qkv_bias) {
      const auto add_bias = [&](const char* name, std::int64_t size, std::int64_t own,
                                std::int64_t first) {
        out.add_bias(concat(prefix, "self_attn.", name, ".bias"), size, share(0, own),
                     layer.qkv_bias, first);
      };
      add_bias("q_proj", all_q_rows, q_rows, 0);
      add_bias("k_proj", all_kv_rows, kv_rows, q_rows);
      add_bias("v_proj", all_kv_rows, kv_rows, q_rows + kv_rows);
    }
    if constexpr (Layer::kTraits.norms_heads) {
      out.add_vector(prefix + "self_attn.q_norm.weight", layer.q_norm);
      out.add_vector(prefix + "self_attn.k_norm.weight", layer.k_norm);
    }
    out.add_matrix(prefix + "self_attn.o_proj.weight", {hidden(), all_q_rows}, share(1, q_rows),
                   layer.o);
    out.add_vector(prefix + "post_attention_layernorm.weight", layer.post_norm);
    static_cast<Derived&>(*this).list_mlp(out, prefix + "mlp.", layer);
  }

  Qwen3Shape shape_;
  Qwen3Shard shard_;
  ModelHead head_;
  bool tied_;
  Table embedding_;  // [vocab shard, hidden] when tied, else [vocab, hidden]
  std::vector<Layer> layers_;
  Table lm_head_;  // [vocab shard, hidden]; empty when tied, and without a head for tokens
  Vector final_norm_;
};

/// A layer of a dense Qwen3. gate and up are rows of one matrix.
template <WeightFormat W, class Backend, Qwen3Traits kTraits = Qwen3Traits{}>
struct Qwen3DenseLayer : Qwen3LayerWeights<W, Backend, kTraits> {
  using Matrix = MatrixOf<Backend, W>;

  Qwen3DenseLayer(const Qwen3Shape& shape, const Qwen3Shard& shard)
      : Qwen3LayerWeights<W, Backend, kTraits>(shape, shard),
        gate_up(2 * shard.intermediate_size, static_cast<std::int64_t>(shape.hidden_size)),
        down(static_cast<std::int64_t>(shape.hidden_size), shard.intermediate_size) {}

  Matrix gate_up;  // [2 · intermediate, hidden]
  Matrix down;     // [hidden, intermediate]
};

/// The weights of a dense Qwen3.
template <WeightFormat W, class Backend, KvFormat Kv, Qwen3Traits kTraits = Qwen3Traits{}>
class Qwen3Weights : public Qwen3WeightsOf<Qwen3Weights<W, Backend, Kv, kTraits>,
                                           Qwen3DenseLayer<W, Backend, kTraits>, W, Backend, Kv> {
  using Base = typename Qwen3Weights::Qwen3WeightsOf;

 public:
  using Layer = typename Base::Layer;

  /// Allocates; contents are undefined until `load` or `randomize`.
  Qwen3Weights(const Qwen3Config& config, const Qwen3Shape& shape, int rank, int num_ranks)
      : Base(config, shape, rank, num_ranks) {
    for (std::size_t i = 0; i < shape.num_layers; ++i) this->append(Layer(shape, this->shard()));
  }

 private:
  friend Base;

  void list_mlp(typename Base::List& out, const std::string& prefix, Layer& layer) {
    this->list_gated(out, prefix, static_cast<std::int64_t>(this->shape().intermediate_size),
                     this->shard().rank, layer.gate_up, layer.down);
  }
};

}  // namespace nanovllm
