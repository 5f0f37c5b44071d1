#pragma once
/// GPT-2, written once against the contracts in `ops/`.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, as
/// transformers' GPT2LMHeadModel computes it.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/family.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/decoder.hpp"
#include "nanovllm/model/model.hpp"
#include "nanovllm/model/parameter_list.hpp"
#include "nanovllm/model/shape.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/projections.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/weight_format.hpp"
#include "nanovllm/with/gpt2/config.hpp"
#include "nanovllm/with/gpt2/cpu/ops.hpp"
#include "nanovllm/with/gpt2/ops.hpp"
#include "nanovllm/with/gpt2/shapes.hpp"

namespace nanovllm {

/// What a rank has. Throws ConfigError naming every size that `num_ranks` does not divide.
[[nodiscard]] inline RankSizes divide(const Gpt2Config& config, int rank, int num_ranks) {
  return kGpt2Table.divide(sizes_of(config), rank, num_ranks);
}

/// Owner of a rank's weights.
///
/// Hugging Face's files have every dense layer of a block transposed, [in, out], with q, k and v of
/// all heads beside each other in one: what was called a convolution of width 1. Here they lie as
/// the dense layers of all models do, [out, in], and so they do in GGUF files; the shape of the
/// first layer's q, k and v tells which files these are.
template <WeightFormat W, class Backend>
class Gpt2Weights {
  using T = WeightElement<W>;
  using Matrix = MatrixOf<Backend, W>;
  using Table = MatrixOf<Backend, W, MatrixRole::vocabulary>;
  using Head = MatrixOf<Backend, W, MatrixRole::head>;
  using Vector = typename Backend::template Buffer<T>;
  using List = ParameterList<T, Backend>;

 public:
  struct Norm {
    Vector weight;  // [hidden]
    Vector bias;    // [hidden]
  };

  /// Biases of `out` and `proj`, which follow the sum over ranks, are whole on every rank.
  struct Layer {
    Norm attention_norm;
    Matrix qkv;       // [3 · heads · head_dim, hidden]
    Vector qkv_bias;  // [3 · heads · head_dim]
    Matrix out;       // [hidden, heads · head_dim]
    Vector out_bias;  // [hidden]
    Norm mlp_norm;
    Matrix fc;         // [intermediate, hidden]
    Vector fc_bias;    // [intermediate]
    Matrix proj;       // [hidden, intermediate]
    Vector proj_bias;  // [hidden]
  };

  /// Allocates; contents are undefined until `load` or `randomize`. Throws ConfigError naming every
  /// size that `num_ranks` does not divide.
  Gpt2Weights(const Gpt2Config& config, int rank, int num_ranks)
      : sizes_(divide(config, rank, num_ranks)),
        tied_(config.tie_word_embeddings),
        embedding_(sizes_.vocab_rows, hidden()),
        positions_(config.num_positions, hidden()),
        lm_head_(shares_table() ? 0 : sizes_.vocab_rows, shares_table() ? 0 : hidden()),
        final_norm_(make_norm()) {
    const std::int64_t q_rows = extents::q(sizes_.own), width = sizes_.own.intermediate_size;
    const auto vector = [](std::int64_t size) { return Vector(static_cast<std::size_t>(size)); };
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
      layers_.push_back(Layer{.attention_norm = make_norm(),
                              .qkv = Matrix(3 * q_rows, hidden()),
                              .qkv_bias = vector(3 * q_rows),
                              .out = Matrix(hidden(), q_rows),
                              .out_bias = vector(hidden()),
                              .mlp_norm = make_norm(),
                              .fc = Matrix(width, hidden()),
                              .fc_bias = vector(width),
                              .proj = Matrix(hidden(), width),
                              .proj_bias = vector(hidden())});
    }
  }

  /// Streams this rank's part of `checkpoint` in, whose tensors are named with or without
  /// "transformer." in front. A tied model's copy of lm_head is ignored, and so are the masks that
  /// old files have beside the weights. Throws one LoadError that names missing, surplus and
  /// misshapen tensors.
  void load(const Checkpoint& checkpoint, Backend& backend,
            std::function<void(std::uint64_t, std::uint64_t)> progress = {}) {
    const char* const prefix = checkpoint.find("wte.weight") != nullptr ? "" : "transformer.";
    std::vector<std::string> ignored;
    if (tied_) ignored.push_back("lm_head.weight");
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (const char* mask : {".attn.bias", ".attn.masked_bias"})
        ignored.push_back(concat(prefix, "h.", i, mask));
    }
    const CheckpointTensor* const qkv = checkpoint.find(concat(prefix, "h.0.attn.c_attn.weight"));
    const auto width = static_cast<std::uint64_t>(hidden());
    const bool is_transposed =
        qkv == nullptr || qkv->shape != std::vector<std::uint64_t>{3 * width, width};
    list_parameters(backend, prefix, is_transposed).load(checkpoint, ignored, std::move(progress));
  }

  /// See `ParameterList::randomize`.
  void randomize(std::uint64_t seed, Backend& backend, float scale = 0.02f) {
    list_parameters(backend, "", true).randomize(seed, sizes_.rank, scale);
  }

  [[nodiscard]] const DecoderSizes& sizes() const { return sizes_.own; }
  [[nodiscard]] const RankSizes& shard() const { return sizes_; }
  [[nodiscard]] const Layer& layer(std::int64_t i) const {
    return layers_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const Table& embedding() const { return embedding_; }
  [[nodiscard]] const Table& positions() const { return positions_; }
  [[nodiscard]] const Head& lm_head() const {
    if constexpr (kSharesTable) {
      if (tied_) return embedding_;
    }
    return lm_head_;
  }
  [[nodiscard]] const Norm& final_norm() const { return final_norm_; }

 private:
  static constexpr bool kSharesTable = std::same_as<Table, Head>;

  [[nodiscard]] bool shares_table() const { return tied_ && kSharesTable; }
  [[nodiscard]] std::int64_t hidden() const { return sizes_.own.hidden_size; }
  [[nodiscard]] Norm make_norm() const {
    const auto width = static_cast<std::size_t>(hidden());
    return {Vector(width), Vector(width)};
  }

  /// Every tensor of the checkpoint, the part this rank keeps, and where it goes.
  /// @param is_transposed  the dense layers are [in, out] there.
  [[nodiscard]] List list_parameters(Backend& backend, const std::string& prefix,
                                     bool is_transposed) {
    List out(backend);
    const ModulePlace model{sizes_, prefix};
    out.add_matrix(model, gpt2_modules::embedding, embedding_);
    if (tied_ && !kSharesTable) out.also_to(lm_head_);
    out.add_matrix(model, gpt2_modules::positions, positions_);
    for (std::size_t i = 0; i < layers_.size(); ++i)
      list_layer(out, {sizes_, prefix, i, 0, is_transposed}, layers_[i]);
    list_norm(out, model, gpt2_modules::final_norm, final_norm_);
    if (!tied_) out.add_matrix({sizes_}, gpt2_modules::lm_head, lm_head_);
    return out;
  }

  static void list_norm(List& out, const ModulePlace& at, const FamilyModule& module, Norm& norm) {
    out.add_vector(at, module, norm.weight);
    out.add_bias(at, module, norm.bias);
  }

  static void list_layer(List& out, const ModulePlace& at, Layer& layer) {
    namespace modules = gpt2_modules;
    const auto add = [&](const FamilyModule& module, Matrix& matrix, Vector& bias) {
      std::int64_t row = 0;  // this rank's heads of q, of k and of v are below each other
      for (std::int64_t part = 0; part < module.parts; ++part) {
        out.add_matrix(at, module, matrix, row, part);
        row = out.add_bias(at, module, bias, row, part);
      }
    };
    list_norm(out, at, modules::attention_norm, layer.attention_norm);
    add(modules::qkv, layer.qkv, layer.qkv_bias);
    add(modules::out, layer.out, layer.out_bias);
    list_norm(out, at, modules::mlp_norm, layer.mlp_norm);
    add(modules::fc, layer.fc, layer.fc_bias);
    add(modules::proj, layer.proj, layer.proj_bias);
  }

  RankSizes sizes_;
  bool tied_;
  Table embedding_;  // [vocab shard, hidden]
  Table positions_;  // [positions, hidden]
  std::vector<Layer> layers_;
  Head lm_head_;  // [vocab shard, hidden]; empty when it is the embedding
  Norm final_norm_;
};

/// x += bias, in every row.
template <class Context>
void add_bias(const Context& context, typename Context::Rows x,
              VectorView<const typename Context::Weight> bias) {
  context.backend.run(
      AddBiasArgs<typename Context::Activation, typename Context::Weight>{.x = x, .bias = bias});
}

/// (x - mean) / deviation · weight + bias: a norm as model/layers/norm.hpp says.
struct LayerNorm {
  static constexpr bool kAddsBias = true;

  template <class Context>
  struct Parameters {
    VectorView<const typename Context::Weight> weight;  ///< [width]
    VectorView<const typename Context::Weight> bias;    ///< [width]
  };

  template <class Context, class Vectors>
  [[nodiscard]] static Parameters<Context> parameters(const Vectors& norm) {
    return {view_of(norm.weight), view_of(norm.bias)};
  }

  template <class Context>
  static void run(const Context& context, typename Context::ConstRows x,
                  const Parameters<Context>& norm, float eps, typename Context::Rows out) {
    context.backend.run(LayerNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x, .weight = norm.weight, .bias = norm.bias, .eps = eps, .out = out});
  }

  template <class Context>
  static void run_add(const Context& context, typename Context::ConstRows x,
                      VectorView<const typename Context::Weight> x_bias,
                      typename Context::Rows residual, const Parameters<Context>& norm, float eps,
                      typename Context::Rows out) {
    context.backend.run(AddLayerNormArgs<typename Context::Activation, typename Context::Weight>{
        .x = x,
        .x_bias = x_bias,
        .residual = residual,
        .weight = norm.weight,
        .bias = norm.bias,
        .eps = eps,
        .out = out});
  }
};

/// gelu(fc(x)), fc with bias; all but the product that brings it back to the stream's width.
template <class Context>
class GeluMlp {
 public:
  /// `intermediate_size` is this rank's share.
  GeluMlp(const Context& context, std::int64_t max_rows, std::int64_t intermediate_size)
      : context_(context), activation_(max_rows, intermediate_size) {}

  /// [n, intermediate_size], valid until the next call.
  [[nodiscard]] typename Context::Rows operator()(typename Context::ConstRows x,
                                                  const typename Context::Matrix& fc,
                                                  VectorView<const typename Context::Weight> bias) {
    const typename Context::Rows out = activation_.rows(x.extent(0));
    project(context_, x, fc, out);
    context_.backend.run(BiasGeluArgs<typename Context::Activation, typename Context::Weight>{
        .x = out, .bias = bias, .out = out});
    return out;
  }

 private:
  Context context_;
  RowBuffer<Context> activation_;
};

/// True if `B` has the ops that GPT-2 needs in addition to those of every model; a compile error
/// that names what is missing if not.
template <class B, class E>
consteval bool check_gpt2_ops() {
  using W = WeightElement<typename E::Weight>;
  using A = typename E::Activation;
  static_assert(RunsOp<B, LayerNormArgs<A, W>> && RunsOp<B, AddLayerNormArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'LayerNormArgs' and "
                "'AddLayerNormArgs', which Gpt2 needs; see with/gpt2/ops.hpp");
  static_assert(RunsOp<B, AddBiasArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'AddBiasArgs', which Gpt2 needs; "
                "see with/gpt2/ops.hpp");
  static_assert(RunsOp<B, BiasGeluArgs<A, W>>,
                "nanovllm: the policy's Backend has no 'run' for 'BiasGeluArgs', which Gpt2 needs; "
                "see with/gpt2/ops.hpp");
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
      : Gpt2Network::Decoder(config, Weights(resolved<kShape>(config), comm.rank(), comm.size()),
                             static_cast<float>(config.layer_norm_eps), limits, backend, comm) {}

  /// All weight matrices of a step, for backends that tune their kernels.
  [[nodiscard]] Projections<typename Context::Activation, Matrix, typename Context::Weight, Heads,
                            typename Context::Head>
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
struct Gpt2 : ShapedModel<kShape> {
  static constexpr ModelFamily kFamily{.model_type = "gpt2", .architecture = "GPT2LMHeadModel"};

  template <class Elements, class Backend, class Communicator>
  using Network = Gpt2Network<kShape, Elements, Backend, Communicator>;
};

}  // namespace nanovllm
