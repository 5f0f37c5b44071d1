#pragma once
/// The blocks of a Qwen3 layer, and of one without norms of heads, as most decoders have it.
/// Source: transformers, models/qwen3/modeling_qwen3.py; docs/numerics.md lists the departures.

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/layers/mlp.hpp"
#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/rope.hpp"

namespace nanovllm {

/// Attention of a Qwen3 layer: RMSNorm, q, k and v, norm of their heads, rotation.
template <class Context, class Heads>
class Qwen3Attention {
 public:
  Qwen3Attention(const Context& context, const Qwen3Config& config, const StepLimits& limits,
                 const DecoderSizes& sizes)
      : attention_(context, limits.max_num_batched_tokens, sizes.heads),
        norm_rope_(context, limits.max_model_len, sizes.heads.head_dim,
                   static_cast<float>(config.rms_norm_eps), [&](MatrixView<float> table) {
                     fill_rope_table(config.rope, config.head_dim, table);
                   }) {}

  void plan(const auto& in) { attention_.plan(in); }

  template <class Stream, class Layer, class Batch, class Kv>
  void operator()(Stream& stream, const Layer& layer, const Batch& in, const Kv& kv) {
    const auto heads = norm_rope_.of(view_of(layer.q_norm), view_of(layer.k_norm), in);
    stream.read_rows(view_of(layer.input_norm), [&](const auto& rows, auto begin) {
      attention_.project_qkv(rows, begin, layer.qkv, heads, kv.with(layer.kv_scales));
    });
    stream.add(attention_.attend(attention_.qkv(in.tokens.extent(0)), in, kv), layer.o);
  }

 private:
  PagedAttention<Context, Heads> attention_;
  NormRope<Context> norm_rope_;
};

/// RMSNorm, q, k and v, with a bias where the layer's `qkv_bias` is not empty, rotation.
template <class Context, class Heads>
class RotaryAttention {
  using A = typename Context::Activation;

 public:
  template <class Config>
  RotaryAttention(const Context& context, const Config& config, const StepLimits& limits,
                  const DecoderSizes& sizes)
      : context_(context),
        attention_(context, limits.max_num_batched_tokens, sizes.heads),
        rope_(context, limits.max_model_len, sizes.heads.head_dim, 0.f,
              [&](MatrixView<float> table) {
                fill_rope_table(config.rope, sizes.heads.head_dim, table);
              }) {}

  void plan(const auto& in) { attention_.plan(in); }

  template <class Stream, class Layer, class Batch, class Kv>
  void operator()(Stream& stream, const Layer& layer, const Batch& in, const Kv& kv) {
    stream.norm(view_of(layer.input_norm));
    const auto qkv = attention_.project_qkv(stream.hidden(), layer.qkv, view_of(layer.qkv_bias));
    const auto cos_sin = rope_.of({}, {}, in).cos_sin;
    RopeArgs<A> rope{.x = qkv.q, .positions = in.positions, .cos_sin = cos_sin};
    context_.backend.run(rope);
    rope.x = qkv.k;
    context_.backend.run(rope);
    context_.backend.run(KvStoreArgs<A, typename Context::KvElement>{
        .k = qkv.k, .v = qkv.v, .slots = in.slots, .kv = kv.with(layer.kv_scales)});
    stream.add(attention_.attend(qkv, in, kv), layer.o);
  }

 private:
  Context context_;
  PagedAttention<Context, Heads> attention_;
  NormRope<Context> rope_;
};

/// The MLP of a dense Qwen3 layer: RMSNorm, then down(silu(gate) · up).
template <class Context>
class Qwen3Mlp {
 public:
  Qwen3Mlp(const Context& context, const Qwen3Config&, const StepLimits& limits,
           const DecoderSizes& sizes)
      : mlp_(context, limits.max_num_batched_tokens, sizes.intermediate_size) {}

  template <class Stream, class Layer>
  void operator()(Stream& stream, const Layer& layer) {
    stream.add_rows(view_of(layer.post_norm), layer.down,
                    [&](const auto& rows) { return mlp_(rows, layer.gate_up); });
  }

 private:
  GatedMlp<Context> mlp_;
};

}  // namespace nanovllm
