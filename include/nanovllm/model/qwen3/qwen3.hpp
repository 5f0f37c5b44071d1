#pragma once
/// The Qwen3 dense transformer, written once against the contracts in `ops/`.
/// Source: transformers, models/qwen3/modeling_qwen3.py; docs/numerics.md lists the departures.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/config.hpp"
#include "nanovllm/model/forward_batch.hpp"
#include "nanovllm/model/qwen3/shapes.hpp"
#include "nanovllm/model/qwen3/weights.hpp"
#include "nanovllm/model/rope_table.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm {

/// What the steps of a network need at the most.
struct NetworkLimits {
  std::int64_t max_tokens = 0;   ///< a step
  std::int64_t max_context = 0;  ///< tokens of a sequence
  std::int64_t max_samples = 0;  ///< sequences of a step, and rows whose logits are wanted
};

/// One rank's share of a Qwen3 model: its weights, its activations and the forward pass.
///
/// `kShape` fixes sizes at compile time; fields left dynamic come from config.json. `Communicator`
/// joins the ranks of a tensor-parallel group: q, k, v, gate and up are split by output rows
/// (whole heads), o and down by input columns, the embedding and lm_head by vocabulary.
template <Qwen3Shape kShape, Element T, class Backend, class Communicator>
class Qwen3Network {
  static_assert(BackendLike<Backend, T>,
                "nanovllm: the policy's Backend lacks an op for its Element; see ops/backend.hpp");

  template <class U>
  using Buffer = typename Backend::template Buffer<U>;

 public:
  using Weights = Qwen3Weights<T, Backend>;

  /// Allocates weights, activations and the backend's scratch memory for steps within `limits`.
  /// `backend` and `comm` must outlive the network.
  Qwen3Network(const ModelConfig& config, const NetworkLimits& limits, Backend& backend,
               Communicator& comm)
      : backend_(backend),
        comm_(comm),
        weights_(config, resolve<kShape>(config), comm.rank(), comm.size()),
        eps_(static_cast<float>(config.rms_norm_eps)),
        limits_(limits),
        rope_table_(static_cast<std::size_t>(limits.max_context * head_dim())),
        residual_(elements(hidden_size())),
        hidden_(elements(hidden_size())),
        qkv_(elements((num_heads() + 2 * num_kv_heads()) * head_dim())),
        attention_(elements(num_heads() * head_dim())),
        gate_up_(elements(2 * intermediate_size())),
        activation_(elements(intermediate_size())),
        logits_shard_(comm.size() == 1 ? 0
                                       : static_cast<std::size_t>(limits.max_samples *
                                                                  weights_.shard().vocab_rows)) {
    std::vector<float> table(static_cast<std::size_t>(limits.max_context * head_dim()));
    fill_rope_table(config, {table.data(), {limits.max_context, head_dim()}});
    backend_.upload(table.data(), rope_table_.data(), table.size());
    backend_.reserve({.max_tokens = limits.max_tokens,
                      .max_sequences = limits.max_samples,
                      .vocab_size = vocab_size(),
                      .num_heads = num_heads(),
                      .num_kv_heads = num_kv_heads(),
                      .head_dim = head_dim()});
  }

  [[nodiscard]] Weights& weights() { return weights_; }

  /// Lets a backend that can choose its dense kernels choose them, by trying; the weights must be
  /// there. Call it once.
  void tune() {
    if constexpr (requires(std::span<const Matrix* const> list) {
                    backend_.template tune_linear<T>(list, true, std::int64_t{});
                  }) {
      const auto tune_all = [&](auto member, bool accumulate) {
        std::vector<const Matrix*> list;
        for (std::int64_t i = 0; i < num_layers(); ++i)
          list.push_back(&(weights_.layer(i).*member));
        backend_.template tune_linear<T>(std::span<const Matrix* const>(list), accumulate,
                                         limits_.max_tokens);
      };
      tune_all(&Layer::qkv, false);
      tune_all(&Layer::o, accumulates_residual());
      tune_all(&Layer::gate_up, false);
      tune_all(&Layer::down, accumulates_residual());
      const Matrix* head[] = {&weights_.lm_head()};
      backend_.template tune_linear<float>(std::span<const Matrix* const>(head), false,
                                           limits_.max_samples);
    }
  }

  /// Heads of this rank, for its KV pool.
  [[nodiscard]] std::int64_t num_kv_heads() const { return weights_.shard().num_kv_heads; }
  [[nodiscard]] std::int64_t head_dim() const {
    return fixed_or(kShape.head_dim, weights_.shape().head_dim);
  }
  [[nodiscard]] std::int64_t num_layers() const {
    return fixed_or(kShape.num_layers, weights_.shape().num_layers);
  }
  [[nodiscard]] std::int64_t vocab_size() const {
    return fixed_or(kShape.vocab_size, weights_.shape().vocab_size);
  }

  /// Columns that the logits matrix must have: the vocabulary, rounded up to equal shards.
  [[nodiscard]] std::int64_t padded_vocab_size() const {
    return weights_.shard().vocab_rows * comm_.size();
  }

  /// Computes the tokens of `in`, stores their K and V in the layers of `kv`, and writes the logits
  /// of `in.logit_rows`, [m, padded_vocab_size()], of which the first vocab_size() columns count.
  /// All ranks call this together and all get the same logits.
  template <class KvCache>
  void forward(const ForwardBatch& in, KvCache& kv, MatrixView<float> logits) {
    const std::int64_t n = in.tokens.extent(0);
    check<ShapeError>(n <= limits_.max_tokens, "forward: at most ", limits_.max_tokens,
                      " tokens a step, got ", n);
    const MatrixView<T> residual = rows(residual_, n, hidden_size());
    const MatrixView<T> hidden = rows(hidden_, n, hidden_size());

    backend_.run(
        EmbeddingArgs<T, Matrix>{.tokens = in.tokens,
                                 .table = &weights_.embedding(),
                                 .first_token = static_cast<TokenId>(weights_.shard().first_token),
                                 .out = residual});
    comm_.all_reduce(residual);
    backend_.run(PlanAttentionArgs{.num_decodes = in.num_decodes,
                                   .num_tokens = n,
                                   .query_starts = in.query_starts,
                                   .kv_lens = in.kv_lens,
                                   .num_heads = num_heads(),
                                   .num_kv_heads = num_kv_heads(),
                                   .head_dim = head_dim()});
    backend_.run(RmsNormArgs<T>{
        .x = residual, .weight = weights_.layer(0).input_norm_view(), .eps = eps_, .out = hidden});

    for (std::int64_t i = 0; i < num_layers(); ++i) {
      const auto& layer = weights_.layer(i);
      attention_block(layer, in, kv.layer(i), hidden, residual);
      add_norm(hidden, residual, layer.post_norm_view());
      mlp_block(layer, hidden, residual);
      const bool last = i + 1 == num_layers();
      add_norm(hidden, residual,
               last ? weights_.final_norm_view() : weights_.layer(i + 1).input_norm_view());
    }
    lm_head(in.logit_rows, hidden, logits);
  }

 private:
  using Matrix = typename Backend::template Matrix<T>;
  using Layer = typename Weights::Layer;

  [[nodiscard]] static constexpr std::int64_t fixed_or(std::size_t fixed, std::size_t given) {
    return static_cast<std::int64_t>(fixed != std::dynamic_extent ? fixed : given);
  }
  [[nodiscard]] std::int64_t hidden_size() const {
    return fixed_or(kShape.hidden_size, weights_.shape().hidden_size);
  }
  [[nodiscard]] std::int64_t num_heads() const { return weights_.shard().num_heads; }
  [[nodiscard]] std::int64_t intermediate_size() const {
    return weights_.shard().intermediate_size;
  }

  [[nodiscard]] std::size_t elements(std::int64_t width) const {
    return static_cast<std::size_t>(limits_.max_tokens * width);
  }
  [[nodiscard]] static MatrixView<T> rows(Buffer<T>& buffer, std::int64_t n, std::int64_t width) {
    return {buffer.data(), {n, width}};
  }

  /// Whether o and down add to the residual themselves. With several ranks the sum over ranks comes
  /// first.
  [[nodiscard]] bool accumulates_residual() const {
    return Backend::kAccumulatesResidual && comm_.size() == 1;
  }

  /// What a block computed at last, through `weight`: into the residual, or into `hidden` as the
  /// sum over all ranks, for `add_norm` to add.
  void project(MatrixView<const T> x, const Matrix& weight, MatrixView<T> hidden,
               MatrixView<T> residual) {
    const bool accumulate = accumulates_residual();
    backend_.run(LinearArgs<T, Matrix>{
        .x = x, .weight = &weight, .y = accumulate ? residual : hidden, .accumulate = accumulate});
    if (!accumulate) comm_.all_reduce(hidden);
  }

  /// hidden = rms_norm(residual + hidden), the sum being the new residual; `project` may have made
  /// it already.
  void add_norm(MatrixView<T> hidden, MatrixView<T> residual, VectorView<const T> weight) {
    if (accumulates_residual()) {
      backend_.run(RmsNormArgs<T>{.x = residual, .weight = weight, .eps = eps_, .out = hidden});
      return;
    }
    backend_.run(AddRmsNormArgs<T>{
        .x = hidden, .residual = residual, .weight = weight, .eps = eps_, .out = hidden});
  }

  /// o_proj(attention(qkv_proj(hidden))), [n, hidden_size], to where `project` puts it.
  void attention_block(const Layer& layer, const ForwardBatch& in, KvView<T> kv,
                       MatrixView<T> hidden, MatrixView<T> residual) {
    const std::int64_t n = hidden.extent(0), d = head_dim();
    const std::int64_t width = (num_heads() + 2 * num_kv_heads()) * d;
    const MatrixView<T> qkv = rows(qkv_, n, width);
    backend_.run(LinearArgs<T, Matrix>{.x = hidden, .weight = &layer.qkv, .y = qkv});

    const auto heads = [&](std::int64_t first, std::int64_t count) {
      return TensorView<T, 3>(qkv.data + first * d, {n, count, d}, {width, d, 1});
    };
    const TensorView<T, 3> q = heads(0, num_heads());
    const TensorView<T, 3> k = heads(num_heads(), num_kv_heads());
    const TensorView<T, 3> v = heads(num_heads() + num_kv_heads(), num_kv_heads());
    backend_.run(QkNormRopeStoreArgs<T>{
        .q = q,
        .k = k,
        .v = v,
        .q_norm = layer.q_norm_view(),
        .k_norm = layer.k_norm_view(),
        .eps = eps_,
        .positions = in.positions,
        .cos_sin = {rope_table_.data(), {static_cast<std::int64_t>(rope_table_.size()) / d, d}},
        .slots = in.slots,
        .kv = kv});

    const TensorView<T, 3> out(attention_.data(), {n, num_heads(), d});
    attend(in, q, k, v, kv, out);
    project({out.data, {n, num_heads() * d}}, layer.o, hidden, residual);
  }

  /// Decodes in rows [0, num_decodes), prompt chunks behind them.
  void attend(const ForwardBatch& in, TensorView<const T, 3> q, TensorView<const T, 3> k,
              TensorView<const T, 3> v, KvView<T> kv, TensorView<T, 3> out) {
    const float scale = 1.f / std::sqrt(static_cast<float>(head_dim()));
    const std::int64_t n = q.extent(0), num_decodes = in.num_decodes;
    if (num_decodes > 0) {
      backend_.run(DecodeAttentionArgs<T>{.q = q.slice(0, num_decodes),
                                          .kv = kv,
                                          .kv_lens = in.kv_lens.slice(0, num_decodes),
                                          .block_tables = in.block_tables.slice(0, num_decodes),
                                          .scale = scale,
                                          .out = out.slice(0, num_decodes)});
    }
    if (n > num_decodes) {
      backend_.run(VarlenAttentionArgs<T>{
          .q = q.slice(num_decodes, n),
          .k = k.slice(num_decodes, n),
          .v = v.slice(num_decodes, n),
          .kv = kv,
          .query_starts = in.query_starts,
          .kv_lens = in.kv_lens.slice(num_decodes, in.kv_lens.extent(0)),
          .block_tables = in.block_tables.slice(num_decodes, in.block_tables.extent(0)),
          .has_prefix = in.has_prefix,
          .scale = scale,
          .out = out.slice(num_decodes, n)});
    }
  }

  /// down_proj(silu(gate_proj(hidden)) · up_proj(hidden)), [n, hidden_size], to where `project`
  /// puts it.
  void mlp_block(const Layer& layer, MatrixView<T> hidden, MatrixView<T> residual) {
    const std::int64_t n = hidden.extent(0);
    const MatrixView<T> gate_up = rows(gate_up_, n, 2 * intermediate_size());
    const MatrixView<T> activation = rows(activation_, n, intermediate_size());
    backend_.run(LinearArgs<T, Matrix>{.x = hidden, .weight = &layer.gate_up, .y = gate_up});
    backend_.run(SiluMulArgs<T>{.gate_up = gate_up, .out = activation});
    project(activation, layer.down, hidden, residual);
  }

  /// Logits of the wanted rows; every rank computes its vocabulary shard and gathers the others'.
  void lm_head(VectorView<const std::int32_t> logit_rows, MatrixView<T> hidden,
               MatrixView<float> logits) {
    const std::int64_t m = logit_rows.extent(0);
    if (m == 0) return;
    check_shape("forward", "logits", logits, {m, padded_vocab_size()});
    MatrixView<T> wanted = hidden;
    if (logit_rows.data != nullptr) {
      wanted = rows(residual_, m, hidden_size());  // the residual is done with
      backend_.run(GatherRowsArgs<T>{.x = hidden, .rows = logit_rows, .out = wanted});
    }
    if (comm_.size() == 1) {
      backend_.run(
          LinearArgs<T, Matrix, float>{.x = wanted, .weight = &weights_.lm_head(), .y = logits});
      return;
    }
    const std::int64_t width = weights_.shard().vocab_rows;
    check<ShapeError>(m <= limits_.max_samples, "forward: at most ", limits_.max_samples,
                      " rows of logits a step, got ", m);
    const MatrixView<float> part(logits_shard_.data(), {m, width});
    backend_.run(
        LinearArgs<T, Matrix, float>{.x = wanted, .weight = &weights_.lm_head(), .y = part});
    comm_.all_gather_columns(MatrixView<const float>(part), logits);
  }

  Backend& backend_;
  Communicator& comm_;
  Weights weights_;
  float eps_;
  NetworkLimits limits_;
  Buffer<float> rope_table_;  // [max_context, head_dim]
  // Activations, each [max tokens, width]:
  Buffer<T> residual_;
  Buffer<T> hidden_;
  Buffer<T> qkv_;
  Buffer<T> attention_;
  Buffer<T> gate_up_;
  Buffer<T> activation_;
  Buffer<float> logits_shard_;  // [max_samples, vocab shard]; tensor parallel only
};

/// Names the Qwen3 family at shape `kShape`: the `Model` of `Engine<Model, Policy>`.
template <Qwen3Shape kShape>
struct Qwen3 {
  static constexpr Qwen3Shape shape = kShape;

  template <Element T, class Backend, class Communicator>
  using Network = Qwen3Network<kShape, T, Backend, Communicator>;
};

}  // namespace nanovllm
