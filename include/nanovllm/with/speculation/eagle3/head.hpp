#pragma once
/// The forward pass of an EAGLE-3 draft head, written once against the contracts in `ops/`.
/// Source: Li et al., "EAGLE-3", 2025, arXiv:2503.01840, as speculators' models/eagle3 and vLLM's
/// llama_eagle3.py compute it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/embedding.hpp"
#include "nanovllm/model/layers/mlp.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/ops/backend_check.hpp"
#include "nanovllm/ops/elements.hpp"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/project_qkv.hpp"
#include "nanovllm/ops/rms_norm.hpp"
#include "nanovllm/ops/rope.hpp"
#include "nanovllm/ops/sampler.hpp"
#include "nanovllm/parallel/communicator.hpp"
#include "nanovllm/with/speculation/eagle3/config.hpp"
#include "nanovllm/with/speculation/eagle3/cpu/ops.hpp"
#include "nanovllm/with/speculation/eagle3/ops.hpp"
#include "nanovllm/with/speculation/eagle3/weights.hpp"

namespace nanovllm {

/// Drafts tokens from a target's residual streams. H is the hidden size, s the number of streams
/// that `stream_layers` lists, n the rows of a call, m its rows with logits, V the draft's
/// vocabulary.
///
/// A row is a *pair*: the streams of the token at position t, and the token at t + 1. It has
/// position t, and its keys and values go to the slot of the token at t, so that the head's KV
/// cache, of one layer, has blocks of the same ids as the target's. The logits of a pair are of the
/// token at t + 2.
///
///     g = fc(streams)                                        `forward`
///     g = output of the pair before, ahead of the final norm   `step`
///     x = [norm(embedding of the token), norm(g)]            2H wide
///     h = g + attention(x);  output = h + mlp(norm(h));  logits = lm_head(norm(output))
///
/// After a prompt of L tokens come L pairs, the last of them with the token just drawn, and then
/// steps. What steps store stands for streams that are not known yet: when the target has accepted
/// tokens, `forward` with their streams stores these pairs again.
///
/// Each rank has the whole head and computes the same drafts. The head's backend is its target's,
/// if that is reserved for the head's shape too, or another one on the same device: then the caller
/// sees to it that neither reads what the other has not finished, and a target that divides its
/// embedding among ranks cannot be asked for it.
template <class ElementsT, class Backend>
class Eagle3Head {
  static_assert(check_backend<Backend, ElementsT>());
  static_assert(RunsOp<Backend, MapTokensArgs>,
                "nanovllm: the policy's Backend has no 'run' for 'MapTokensArgs', which Eagle3Head "
                "needs; see with/speculation/eagle3/ops.hpp");

  using Context = LayerContext<ElementsT, Backend, Single>;
  using A = typename Context::Activation;
  using Rows = typename Context::Rows;
  using ConstRows = typename Context::ConstRows;
  using Weight = typename Context::Weight;
  using Kv = typename Context::KvElement;
  template <class T>
  using Buffer = typename Context::template Buffer<T>;

 public:
  using Weights = Eagle3Weights<typename ElementsT::Weight, Backend>;

  /// Allocates weights and activations. `backend` must outlive the head, and be reserved for
  /// `reserve_args()` or more. Throws ConfigError if the head is of another target.
  Eagle3Head(const Eagle3Config& config, const Eagle3Target& target, const StepLimits& limits,
             Backend& backend)
      : config_(config),
        layers_(nanovllm::stream_layers(config, target)),
        limits_(limits),
        sizes_(sizes_of(config.layer)),
        context_{backend, comm_},
        weights_(config, static_cast<std::int64_t>(layers_.size())),
        stream_(context_, limits.max_num_batched_tokens, sizes_.hidden_size, eps()),
        attention_(context_, limits.max_num_batched_tokens, sizes_.heads),
        rope_(context_, limits.max_model_len, sizes_.heads.head_dim, eps(),
              [&](MatrixView<float> table) {
                fill_rope_table(config.layer.rope, sizes_.heads.head_dim, table);
              }),
        mlp_(context_, limits.max_num_batched_tokens, sizes_.intermediate_size),
        lm_head_(context_, limits.max_num_seqs, config.draft_vocab_size, config.draft_vocab_size),
        normed_streams_(has_stream_norms() ? limits.max_num_batched_tokens : 0, streams_width()),
        combined_(limits.max_num_batched_tokens, sizes_.hidden_size),
        pairs_(limits.max_num_batched_tokens, 2 * sizes_.hidden_size),
        outputs_(limits.max_num_seqs, sizes_.hidden_size),
        every_row_(uploaded(counted(std::max(limits.max_num_batched_tokens, limits.max_num_seqs)))),
        zeros_(uploaded(std::vector<std::int32_t>(static_cast<std::size_t>(
            std::max(limits.max_num_batched_tokens, limits.max_num_seqs) + 1)))),
        greedy_(uploaded(std::vector<SamplingRow>(static_cast<std::size_t>(limits.max_num_seqs),
                                                  SamplingRow{.temperature = 0.f}))),
        logprobs_(static_cast<std::size_t>(limits.max_num_seqs)),
        target_ids_(uploaded(config.target_ids)) {}
  Eagle3Head(const Eagle3Head&) = delete;
  Eagle3Head& operator=(const Eagle3Head&) = delete;

  [[nodiscard]] Weights& weights() { return weights_; }
  [[nodiscard]] const Eagle3Config& config() const { return config_; }
  /// What `StreamTaps::open` of the target is to be asked for.
  [[nodiscard]] const std::vector<std::int64_t>& stream_layers() const { return layers_; }
  /// s · H.
  [[nodiscard]] std::int64_t streams_width() const {
    return static_cast<std::int64_t>(layers_.size()) * sizes_.hidden_size;
  }
  [[nodiscard]] std::int64_t vocab_size() const { return config_.draft_vocab_size; }
  /// Of the head's own KV pool, which has as many blocks as the target's.
  [[nodiscard]] KvShape kv_shape(std::int64_t block_size) const {
    return {.num_layers = 1,
            .num_kv_heads = sizes_.heads.num_kv_heads,
            .head_dim = sizes_.heads.head_dim,
            .block_size = block_size,
            .element_bytes = sizeof(KvStored<Kv>),
            .scale_bytes = kKvScaleBytes<Kv>};
  }
  [[nodiscard]] ReserveArgs reserve_args() const {
    return {.limits = limits_,
            .vocab_size = config_.draft_vocab_size,
            .num_heads = sizes_.heads.num_heads,
            .num_kv_heads = sizes_.heads.num_kv_heads,
            .head_dim = sizes_.heads.head_dim};
  }

  /// Computes the pairs of `streams`, [n, s · H], and `in.tokens`, stores their K and V in `kv`,
  /// and writes the logits of `in.logit_rows`, [m, V], whose outputs are kept for `step`. `in` has
  /// the members of a `ForwardBatch`; `hidden_rows` are not read. `target`, a `Decoder`, has the
  /// embedding where the head has none; then all ranks of the target call this together.
  template <class Target>
  void forward(ConstRows streams, const auto& in, Target& target, const KvView<Kv>& kv,
               MatrixView<float> logits) {
    const std::int64_t n = in.tokens.extent(0);
    check_shape("EAGLE-3 head", "streams", streams, {n, streams_width()});
    stream_.start(n);
    const Rows combined = combined_.rows(n);
    project(context_, normed(streams), weights_.fc, combined);
    run(combined, in, target, kv, logits);
  }

  /// The same for the pairs of the first n outputs that the last call kept and `in.tokens`.
  template <class Target>
  void step(const auto& in, Target& target, const KvView<Kv>& kv, MatrixView<float> logits) {
    const std::int64_t n = in.tokens.extent(0);
    check<ShapeError>(n <= num_outputs_, "EAGLE-3 head: the last call kept ", num_outputs_,
                      " outputs, a step wants ", n);
    stream_.start(n);
    const Rows combined = combined_.rows(n);
    copy(outputs_.rows(n), combined);
    run(combined, in, target, kv, logits);
  }

  /// tokens[i] = the likeliest token of row i of `logits`, [m, V], which are destroyed: its id in
  /// the target's vocabulary, the lowest of the draft's among equals. `tokens`, [m], are in the
  /// backend's memory.
  void likeliest(MatrixView<float> logits, VectorView<TokenId> tokens) {
    const std::int64_t m = logits.extent(0);
    check<ShapeError>(m <= limits_.max_num_seqs, "EAGLE-3 head: at most ", limits_.max_num_seqs,
                      " rows of logits, got ", m);
    SampleArgs args{};
    args.logits = logits;
    args.batch.rows = {greedy_.data(), {m}};
    args.batch.banned.starts = {zeros_.data(), {m + 1}};
    args.tokens = tokens;
    args.logprobs = {logprobs_.data(), {m}};
    args.top_tokens = {nullptr, {m, 0}};
    args.top_logprobs = {nullptr, {m, 0}};
    args.plain = true;
    context_.backend.run(args);
    if (target_ids_.size() > 0)
      context_.backend.run(MapTokensArgs{.tokens = tokens, .map = view_of(target_ids_)});
  }

 private:
  [[nodiscard]] float eps() const { return static_cast<float>(config_.layer.rms_norm_eps); }
  [[nodiscard]] bool has_stream_norms() const { return config_.norm_before_fc || config_.fc_norm; }

  [[nodiscard]] static std::vector<std::int32_t> counted(std::int64_t n) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(n));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  template <class T>
  [[nodiscard]] Buffer<T> uploaded(const std::vector<T>& values) const {
    Buffer<T> out(values.size());
    context_.backend.upload(values.data(), out.data(), values.size());
    return out;
  }

  /// `width` columns of `rows` from column `first` on.
  template <class T>
  [[nodiscard]] static MatrixView<T> columns(MatrixView<T> rows, std::int64_t first,
                                             std::int64_t width) {
    return {rows.data + first, {rows.extent(0), width}, {rows.strides[0], 1}};
  }

  void norm(ConstRows x, const auto& weight, Rows out) const {
    context_.backend.run(
        RmsNormArgs<A, Weight>{.x = x, .weight = view_of(weight), .eps = eps(), .out = out});
  }
  void copy(ConstRows from, Rows to) const {
    context_.backend.run(
        GatherRowsArgs<A>{.x = from, .rows = {every_row_.data(), {from.extent(0)}}, .out = to});
  }

  /// What fc reads.
  [[nodiscard]] ConstRows normed(ConstRows streams) {
    if (!has_stream_norms()) return streams;
    const Rows out = normed_streams_.rows(streams.extent(0));
    if (config_.norm_before_fc) norm(streams, weights_.streams_norm, out);
    const std::int64_t width = sizes_.hidden_size;
    for (std::size_t i = 0; i < weights_.fc_norms.size(); ++i) {
      const std::int64_t first = static_cast<std::int64_t>(i) * width;
      norm(columns(streams, first, width), weights_.fc_norms[i], columns(out, first, width));
    }
    return out;
  }

  template <class Target>
  void embed(VectorView<const TokenId> tokens, Target& target, Rows out) {
    if (config_.has_embedding) return look_up(context_, tokens, weights_.embedding, out);
    auto& weights = target.weights();
    using Table = std::remove_cvref_t<decltype(weights.embedding())>;
    bool whole = false;
    if constexpr (requires { weights.has_whole_embedding(); })
      whole = weights.has_whole_embedding();
    context_.backend.run(EmbeddingArgs<A, Table>{
        .tokens = tokens,
        .table = &weights.embedding(),
        .first_token = whole ? 0 : static_cast<TokenId>(weights.shard().first_token),
        .out = out});
    if (!whole) target.lm_head().communicator().all_reduce(out);
  }

  /// Everything after g.
  template <class Target>
  void run(ConstRows g, const auto& in, Target& target, const KvView<Kv>& kv,
           MatrixView<float> logits) {
    const std::int64_t n = in.tokens.extent(0), width = sizes_.hidden_size;
    const Rows pairs = pairs_.rows(n), right = columns(pairs, width, width);
    attention_.plan(in);  // ahead of a norm, behind which GPUs begin to read keys early
    embed(in.tokens, target, stream_.hidden());
    norm(stream_.hidden(), weights_.input_norm, columns(pairs, 0, width));
    norm(g, weights_.hidden_norm, right);
    copy(config_.norm_before_residual ? ConstRows(right) : g, stream_.residual());
    attend(pairs, in, kv);
    stream_.add_rows(view_of(weights_.post_norm), weights_.down,
                     [&](const auto& rows) { return mlp_(rows, weights_.gate_up); });
    stream_.norm(view_of(weights_.norm));
    num_outputs_ = in.logit_rows.extent(0);
    if (num_outputs_ == 0) return;
    const VectorView<const std::int32_t> list =
        in.logit_rows.data == nullptr
            ? VectorView<const std::int32_t>(every_row_.data(), {num_outputs_})
            : in.logit_rows;
    check<ShapeError>(num_outputs_ <= limits_.max_num_seqs, "EAGLE-3 head: at most ",
                      limits_.max_num_seqs, " rows of logits, got ", num_outputs_);
    context_.backend.run(
        GatherRowsArgs<A>{.x = config_.norm_output ? stream_.hidden() : stream_.residual(),
                          .rows = list,
                          .out = outputs_.rows(num_outputs_)});
    lm_head_(stream_.take_rows(list), weights_.lm_head, logits);
  }

  /// Adds attention over the pairs to the stream.
  void attend(ConstRows pairs, const auto& in, const KvView<Kv>& kv) {
    const Qkv<A> qkv = attention_.qkv(pairs.extent(0));
    const Rows all(qkv.q.data, {pairs.extent(0), sizes_.heads.qkv_width()});
    std::int64_t first = 0;
    for (const auto& bias : weights_.qkv_bias) {
      if (config_.has_qkv_bias) spread(bias, columns(all, first, bias.cols()));
      first += bias.cols();
    }
    multiply(pairs, weights_.qkv, all, config_.has_qkv_bias);
    const QkNormRope<Weight> heads =
        rope_.of(view_of(weights_.q_norm), view_of(weights_.k_norm), in);
    if (config_.norms_heads) {
      context_.backend.run(QkNormRopeStoreArgs<A, Kv, Weight>{.q = qkv.q,
                                                              .k = qkv.k,
                                                              .v = qkv.v,
                                                              .q_norm = heads.q_norm,
                                                              .k_norm = heads.k_norm,
                                                              .eps = heads.eps,
                                                              .positions = heads.positions,
                                                              .cos_sin = heads.cos_sin,
                                                              .slots = heads.slots,
                                                              .kv = kv});
    } else {
      RopeArgs<A> rope{.x = qkv.q, .positions = in.positions, .cos_sin = heads.cos_sin};
      context_.backend.run(rope);
      rope.x = qkv.k;
      context_.backend.run(rope);
      context_.backend.run(KvStoreArgs<A, Kv>{.k = qkv.k, .v = qkv.v, .slots = in.slots, .kv = kv});
    }
    const Rows seen = attention_.attend(qkv, in, kv);
    if (!config_.has_output_bias) return stream_.add(seen, weights_.o);
    const Rows sum = stream_.summand();
    spread(weights_.o_bias, sum);
    multiply(seen, weights_.o, sum, true);
  }

  /// out[i] = the one row of `table`.
  void spread(const typename Context::Table& table, Rows out) const {
    look_up(context_, VectorView<const TokenId>(zeros_.data(), {out.extent(0)}), table, out);
  }
  /// y = x · weightᵀ, or y += it.
  void multiply(ConstRows x, const typename Context::Matrix& weight, Rows y, bool adds) const {
    context_.backend.run(LinearArgs<A, typename Context::Matrix>{
        .x = x, .weight = &weight, .y = y, .accumulate = adds});
  }

  Eagle3Config config_;
  std::vector<std::int64_t> layers_;
  StepLimits limits_;
  DecoderSizes sizes_;
  Single comm_;
  Context context_;
  Weights weights_;
  ResidualStream<Context> stream_;
  PagedAttention<Context> attention_;
  NormRope<Context> rope_;
  GatedMlp<Context> mlp_;
  LmHead<Context> lm_head_;
  RowBuffer<Context> normed_streams_;  // [rows, s · H], if there are norms ahead of fc
  RowBuffer<Context> combined_;        // [rows, H]: g
  RowBuffer<Context> pairs_;           // [rows, 2H]: x
  RowBuffer<Context> outputs_;         // [sequences, H], of the last call's rows with logits
  std::int64_t num_outputs_ = 0;
  Buffer<std::int32_t> every_row_;  // 0, 1, … of a step
  Buffer<std::int32_t> zeros_;
  Buffer<SamplingRow> greedy_;
  Buffer<float> logprobs_;
  Buffer<TokenId> target_ids_;  // [V], or empty
};

}  // namespace nanovllm
