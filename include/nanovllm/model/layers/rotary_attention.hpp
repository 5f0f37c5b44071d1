#pragma once
/// Attention with rotary positions and without norms of heads, as most decoders have it.

#include "nanovllm/core/limits.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/model/layers/attention.hpp"
#include "nanovllm/model/layers/context.hpp"
#include "nanovllm/model/rope_scaling.hpp"
#include "nanovllm/ops/kv_store.hpp"
#include "nanovllm/ops/rope.hpp"

namespace nanovllm {

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

}  // namespace nanovllm
