#pragma once
/// `Decoder`: the forward pass of a decoder-only transformer, put together from its parts.

#include <cstdint>
#include <utility>
#include <vector>

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/embedding.hpp"
#include "nanovllm/model/layers/norm.hpp"
#include "nanovllm/model/layers/residual_stream.hpp"

namespace nanovllm {

/// One rank's share of a model: its weights, its activations and the forward pass. The network of a
/// model family derives from it and adds `projections()`.
///
/// - `Weights` has `sizes()`, `embedding()`, `layer(i)`, `final_norm()`, `lm_head()` and `shard()`,
///   with this rank's `first_token` and `vocab_rows`; it may have `has_whole_embedding()`, true if
///   every rank has all rows, and with learned positions has `positions()`.
/// - `Attention` and `Mlp`, the blocks of a layer, are made from the context, the model's config,
///   the limits of a step and `sizes()`. Each reads the stream through a norm of its own (`normed`,
///   or `norm` and `hidden`) and adds to it (`add`): `attention(stream, layer, in, kv)` and
///   `mlp(stream, layer)`. `plan(in)` of both, if an Mlp has one, comes once a step, ahead of them.
/// - `Norm` is one of model/layers/norm.hpp. A `Batch` has the members of a `ForwardBatch`.
template <class ContextT, class WeightsT, class Attention, class Mlp, class Norm = RmsNorm>
class Decoder {
 public:
  using Context = ContextT;
  using Weights = WeightsT;
  using Activation = typename Context::Activation;

  [[nodiscard]] Weights& weights() { return weights_; }
  [[nodiscard]] LmHead<Context>& lm_head() { return lm_head_; }
  /// Residual streams as they enter layers, for who asks: model/layers/stream_taps.hpp.
  [[nodiscard]] auto& taps() { return stream_.taps(); }

  /// Heads of this rank, for its KV pool.
  [[nodiscard]] std::int64_t num_kv_heads() const { return sizes_.heads.num_kv_heads; }
  [[nodiscard]] std::int64_t head_dim() const { return sizes_.heads.head_dim; }
  [[nodiscard]] std::int64_t num_layers() const { return sizes_.num_layers; }
  [[nodiscard]] std::int64_t vocab_size() const { return sizes_.vocab_size; }
  [[nodiscard]] std::int64_t hidden_size() const { return sizes_.hidden_size; }

  /// Columns that the logits matrix must have: the vocabulary, rounded up to equal shards.
  [[nodiscard]] std::int64_t padded_vocab_size() const { return lm_head_.width(); }

  /// Computes the tokens of `in`, stores their K and V in the layers of `kv`, and writes the logits
  /// of `in.logit_rows`, [m, padded_vocab_size()], of which the first vocab_size() columns count,
  /// and the hidden states of `in.hidden_rows`, [h, hidden_size()]. All ranks call this together
  /// and all get the same, but where logits have `part_width()` columns of `lm_head()`.
  void forward(const auto& in, auto& kv, MatrixView<float> logits,
               typename Context::Rows hidden = {}) {
    stream_.start(in.tokens.extent(0));
    embed(context_, in.tokens, weights_, stream_.residual());
    if constexpr (requires { weights_.positions(); })
      look_up(context_, in.positions, weights_.positions(), stream_.summand());
    attention_.plan(in);
    if constexpr (requires { mlp_.plan(in); }) mlp_.plan(in);
    for (std::int64_t i = 0; i < num_layers(); ++i) {
      stream_.enter(i);
      attention_(stream_, weights_.layer(i), in, kv.layer(i));
      mlp_(stream_, weights_.layer(i));
    }
    stream_.enter(num_layers());
    stream_.norm(Norm::template parameters<Context>(weights_.final_norm()));
    if (in.hidden_rows.extent(0) > 0) stream_.copy_rows(in.hidden_rows, hidden);
    if (in.logit_rows.extent(0) > 0)
      lm_head_(stream_.take_rows(in.logit_rows), weights_.lm_head(), logits);
  }

 protected:
  /// Takes the weights and allocates activations and the backend's scratch memory for steps within
  /// `limits`. `backend` and `comm` must outlive the decoder.
  template <class Config>
  Decoder(const Config& config, Weights weights, float norm_eps, const StepLimits& limits,
          typename Context::Backend& backend, typename Context::Communicator& comm)
      : context_{backend, comm},
        weights_(std::move(weights)),
        sizes_(weights_.sizes()),
        limits_(limits),
        stream_(context_, limits.max_num_batched_tokens, sizes_.hidden_size, norm_eps),
        attention_(context_, config, limits, sizes_),
        mlp_(context_, config, limits, sizes_),
        lm_head_(context_, limits.max_num_seqs, sizes_.vocab_size, weights_.shard().vocab_rows) {
    backend.reserve({.limits = limits,
                     .vocab_size = sizes_.vocab_size,
                     .num_heads = sizes_.heads.num_heads,
                     .num_kv_heads = sizes_.heads.num_kv_heads,
                     .head_dim = sizes_.heads.head_dim});
  }

  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const StepLimits& limits() const { return limits_; }
  [[nodiscard]] const Mlp& mlp() const { return mlp_; }
  [[nodiscard]] const ResidualStream<Context, Norm>& stream() const { return stream_; }

  /// One matrix of every layer, e.g. `&Layer::qkv`.
  template <class Layer>
  [[nodiscard]] std::vector<const typename Context::Matrix*> all(
      typename Context::Matrix Layer::*matrix) const {
    std::vector<const typename Context::Matrix*> list;
    for (std::int64_t i = 0; i < num_layers(); ++i) list.push_back(&(weights_.layer(i).*matrix));
    return list;
  }

 private:
  Context context_;
  Weights weights_;
  DecoderSizes sizes_;
  StepLimits limits_;
  ResidualStream<Context, Norm> stream_;
  Attention attention_;
  Mlp mlp_;
  LmHead<Context> lm_head_;
};

}  // namespace nanovllm
