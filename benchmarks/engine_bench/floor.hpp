#pragma once
/// The least time that a machine needs for a step of a model.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nanovllm/model/qwen3/config.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"

namespace engine_bench {

/// What the machine can do at most, probed.
struct Ceilings {
  double bytes_per_second = 0;       ///< of memory, read
  double operations_per_second = 0;  ///< multiplications and additions, in registers
};

/// The half-way point of two probes: on a machine that others use too, ceilings move.
[[nodiscard]] inline Ceilings mean(const Ceilings& a, const Ceilings& b) {
  return {(a.bytes_per_second + b.bytes_per_second) / 2,
          (a.operations_per_second + b.operations_per_second) / 2};
}

/// What one or several steps cannot do without.
struct Work {
  double bytes = 0;
  double operations = 0;

  friend Work operator+(const Work& a, const Work& b) {
    return {a.bytes + b.bytes, a.operations + b.operations};
  }
};

/// Seconds that `work` takes where reading and computing overlap perfectly.
[[nodiscard]] inline double floor_seconds(const Work& work, const Ceilings& ceilings) {
  return std::max(work.bytes / ceilings.bytes_per_second,
                  work.operations / ceilings.operations_per_second);
}

/// Work of a Qwen3 model, dense or of experts, on all ranks together. Activations and norms are left out: the floor is
/// one that no engine gets below, unless the weights fit into a cache.
class ModelWork {
 public:
  /// A key or value of one head takes `kv_row_bytes`, an element of the vocabulary's matrices
  /// `head_bytes`, one of the layers' `layer_bytes`.
  ModelWork(const nanovllm::Qwen3Config& model, double head_bytes, double layer_bytes,
            std::int64_t kv_row_bytes)
      : head_bytes_(head_bytes), layer_bytes_(layer_bytes) {
    const auto hidden = static_cast<double>(model.hidden_size);
    const auto heads = static_cast<double>(model.num_attention_heads * model.head_dim);
    const auto kv_heads = static_cast<double>(model.num_key_value_heads * model.head_dim);
    const auto layers = static_cast<double>(model.num_hidden_layers);
    layer_weights_ = layers * hidden *
                     (2 * heads + 2 * kv_heads + 3 * static_cast<double>(model.intermediate_size));
    head_weights_ = hidden * static_cast<double>(model.vocab_size);
    attention_width_ = layers * heads;
    kv_bytes_ = layers * 2 * static_cast<double>(model.num_key_value_heads * kv_row_bytes);
  }

  /// The same of a mixture of experts, whose tokens all experts are equally likely for.
  ModelWork(const nanovllm::Qwen3MoeConfig& model, double head_bytes, double layer_bytes,
            std::int64_t kv_row_bytes)
      : ModelWork(static_cast<const nanovllm::Qwen3Config&>(model), head_bytes, layer_bytes,
                  kv_row_bytes) {
    const auto hidden = static_cast<double>(model.hidden_size);
    const auto sparse = static_cast<double>(num_sparse_layers(model));
    layer_weights_ -= sparse * 3 * hidden * static_cast<double>(model.intermediate_size);
    num_experts_ = static_cast<double>(model.num_experts);
    experts_per_token_ = static_cast<double>(model.num_experts_per_tok);
    expert_weights_ = sparse * 3 * hidden * static_cast<double>(model.moe_intermediate_size);
    router_weights_ = sparse * hidden * num_experts_;
  }

  /// The dense layers of one step of `num_tokens` tokens, `num_samples` of which need logits. The
  /// weights are read once; an untied embedding's rows do not count.
  [[nodiscard]] Work dense(double num_tokens, double num_samples) const {
    const double head = num_samples > 0 ? head_weights_ : 0;
    // Experts that some token goes to, on average.
    const double missed = std::pow(1 - experts_per_token_ / num_experts_, num_tokens);
    const double touched = num_experts_ * (1 - missed);
    const double of_a_token =
        layer_weights_ + router_weights_ + expert_weights_ * experts_per_token_;
    return {(layer_weights_ + expert_weights_ * touched) * layer_bytes_ +
                (router_weights_ + head) * head_bytes_,
            2 * (of_a_token * num_tokens + head * num_samples)};
  }

  /// Attention of `num_sequences` tokens, one of each sequence, to `context` tokens each.
  [[nodiscard]] Work decode_attention(double num_sequences, double context) const {
    return {num_sequences * context * kv_bytes_, num_sequences * context * 4 * attention_width_};
  }

  /// Causal attention of a whole prompt.
  [[nodiscard]] Work prompt_attention(double num_tokens) const {
    return {0, num_tokens * (num_tokens + 1) / 2 * 4 * attention_width_};
  }

 private:
  double head_bytes_, layer_bytes_;
  double layer_weights_ = 0;  // elements of all dense layers but lm_head and experts
  double num_experts_ = 1, experts_per_token_ = 0;
  double expert_weights_ = 0;  // elements of one expert of each layer
  double router_weights_ = 0;
  double head_weights_ = 0;     // elements of lm_head
  double attention_width_ = 0;  // heads · head_dim, over all layers
  double kv_bytes_ = 0;         // of one token
};

}  // namespace engine_bench
