#pragma once
/// The models that `engine_bench` makes by name, with random weights.

#include <cstdint>
#include <map>
#include <string>

#include "nanovllm/model/qwen3/qwen3.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"

namespace engine_bench {

namespace nv = nanovllm;

/// Sizes that both kinds of models have.
template <class Config, class Shape>
[[nodiscard]] Config config_of_common(const Shape& shape) {
  Config config;
  config.hidden_size = static_cast<std::int64_t>(shape.hidden_size);
  config.num_hidden_layers = static_cast<std::int64_t>(shape.num_layers);
  config.num_attention_heads = static_cast<std::int64_t>(shape.num_heads);
  config.num_key_value_heads = static_cast<std::int64_t>(shape.num_kv_heads);
  config.head_dim = static_cast<std::int64_t>(shape.head_dim);
  config.vocab_size = static_cast<std::int64_t>(shape.vocab_size);
  config.max_position_embeddings = 40'960;
  config.rms_norm_eps = 1e-6;
  config.tie_word_embeddings = shape.tie == nv::Tie::yes;
  config.rope.theta = 1e6;
  return config;
}

/// What config.json of a Qwen3 checkpoint of this shape would say.
[[nodiscard]] inline nv::Qwen3Config config_of(const nv::Qwen3Shape& shape) {
  auto config = config_of_common<nv::Qwen3Config>(shape);
  config.intermediate_size = static_cast<std::int64_t>(shape.intermediate_size);
  return config;
}

/// The same of a mixture of experts, all of whose layers have experts.
[[nodiscard]] inline nv::Qwen3MoeConfig config_of(const nv::Qwen3MoeShape& shape) {
  auto config = config_of_common<nv::Qwen3MoeConfig>(shape);
  config.num_experts = static_cast<std::int64_t>(shape.num_experts);
  config.num_experts_per_tok = static_cast<std::int64_t>(shape.num_experts_per_tok);
  config.moe_intermediate_size = static_cast<std::int64_t>(shape.moe_intermediate_size);
  config.intermediate_size = 3 * config.hidden_size;  // of no layer
  config.norm_topk_prob = true;
  return config;
}

struct DenseModels {
  using Model = nv::Qwen3<nv::shapes::qwen3_any>;
  using Config = nv::Qwen3Config;
  [[nodiscard]] static std::map<std::string, nv::Qwen3Shape> shapes() {
    using namespace nv::shapes;
    return {{"fairytale", fairytale}, {"qwen3_0_6b", qwen3_0_6b}, {"qwen3_1_7b", qwen3_1_7b},
            {"qwen3_4b", qwen3_4b},   {"qwen3_8b", qwen3_8b},     {"qwen3_14b", qwen3_14b},
            {"qwen3_32b", qwen3_32b}};
  }
};

struct MoeModels {
  using Model = nv::Qwen3Moe<nv::shapes::qwen3_moe_any>;
  using Config = nv::Qwen3MoeConfig;
  [[nodiscard]] static std::map<std::string, nv::Qwen3MoeShape> shapes() {
    using namespace nv::shapes;
    // A tenth of the layers of 30B-A3B: for machines with little memory.
    nv::Qwen3MoeShape tenth = qwen3_30b_a3b;
    tenth.num_layers = 5;
    return {{"qwen3_30b_a3b", qwen3_30b_a3b}, {"qwen3_30b_a3b_tenth", tenth}};
  }
};

}  // namespace engine_bench
