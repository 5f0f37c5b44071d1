// config.json of Qwen3 mixtures of experts, and the shapes of the published ones.

#include "nanovllm/with/moe/qwen3_moe/config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/with/moe/qwen3_moe/shapes.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

/// Qwen3-30B-A3B's config.json, in the spelling of transformers 4.x.
json qwen3_30b() {
  return json::parse(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936})");
}

/// `changes` replace fields; null removes one.
Qwen3MoeConfig parse(const json& changes = json::object()) {
  json base = qwen3_30b();
  base.merge_patch(changes);
  return Qwen3MoeConfig::from_json(base.dump());
}

void check_refused(const json& changes, const std::string& text) {
  CAPTURE(changes.dump());
  CHECK_THROWS_WITH(parse(changes), Contains(text));
}

}  // namespace

TEST_CASE("the config of Qwen3-30B-A3B is read", "[moe][config]") {
  const Qwen3MoeConfig config = parse();
  CHECK(config.hidden_size == 2048);
  CHECK(config.num_experts == 128);
  CHECK(config.num_experts_per_tok == 8);
  CHECK(config.moe_intermediate_size == 768);
  CHECK(config.norm_topk_prob);
  CHECK(config.head_dim == 128);
  for (const std::int64_t layer : {0, 1, 47}) CHECK(config.is_sparse(layer));
  CHECK(std::abs(static_cast<double>(num_parameters(config)) / 30532122624.0 - 1) < 0.01);
  CHECK(shape_of(config) == shapes::qwen3_30b_a3b);
  CHECK_NOTHROW(resolve<shapes::qwen3_30b_a3b>(config));
  CHECK_THROWS_WITH(resolve<shapes::qwen3_235b_a22b>(config),
                    Contains("'moe_intermediate_size' is 1536 at compile time but 768"));

  const Qwen3MoeConfig large = parse({{"hidden_size", 4096},
                                      {"num_hidden_layers", 94},
                                      {"num_attention_heads", 64},
                                      {"moe_intermediate_size", 1536}});
  CHECK(shape_of(large) == shapes::qwen3_235b_a22b);
  CHECK(std::abs(static_cast<double>(num_parameters(large)) / 235093634560.0 - 1) < 0.01);
}

TEST_CASE("the number of experts has two spellings, which must agree", "[moe][config]") {
  CHECK(parse({{"num_experts", nullptr}, {"num_local_experts", 60}}).num_experts == 60);
  CHECK(parse({{"num_local_experts", 128}}).num_experts == 128);
  check_refused({{"num_local_experts", 60}},
                "'num_experts' (128) and 'num_local_experts' (60) disagree");
  check_refused({{"num_experts", nullptr}},
                "there is neither 'num_experts' nor 'num_local_experts'");
}

TEST_CASE("what a config.json does not have is as in transformers", "[moe][config]") {
  const Qwen3MoeConfig config = parse({{"norm_topk_prob", nullptr},
                                       {"head_dim", nullptr},
                                       {"decoder_sparse_step", nullptr},
                                       {"mlp_only_layers", nullptr}});
  CHECK_FALSE(config.norm_topk_prob);
  CHECK(config.head_dim == 64);
  CHECK(config.decoder_sparse_step == 1);
  CHECK(config.mlp_only_layers.empty());
}

TEST_CASE("layers with experts follow from the step and the list", "[moe][config]") {
  const Qwen3MoeConfig config = parse({{"decoder_sparse_step", 3}, {"mlp_only_layers", {5, 0}}});
  std::vector<std::int64_t> sparse;
  for (std::int64_t i = 0; i < 12; ++i) {
    if (config.is_sparse(i)) sparse.push_back(i);
  }
  CHECK(sparse == std::vector<std::int64_t>{2, 8, 11});
  const std::int64_t saved = num_parameters(parse()) - num_parameters(config);
  CHECK(saved > std::int64_t{33} * 2048 * 3 * (128 * 768 - 6144));  // 15 of 48 are sparse
}

TEST_CASE("configs that ask for other models are refused, with what came", "[moe][config]") {
  check_refused({{"num_experts", 0}}, "'num_experts' must be an integer in [1, 4096], got 0");
  check_refused({{"num_experts", 6}},
                "'num_experts_per_tok' (8) must be at most the number of experts (6)");
  check_refused({{"num_experts_per_tok", nullptr}}, "'num_experts_per_tok' is missing");
  check_refused({{"moe_intermediate_size", 0}}, "'moe_intermediate_size' must be an integer");
  check_refused({{"decoder_sparse_step", 0}}, "'decoder_sparse_step' must be an integer in [1, ");
  check_refused({{"mlp_only_layers", 3}},
                "'mlp_only_layers' must be a list of at most 1024 layers, got 3");
  check_refused({{"mlp_only_layers", std::vector<int>(1025)}}, "got an array of 1025");
  check_refused({{"mlp_only_layers", {1, 48}}}, "must list layers, in [0, 48), got 48");
  check_refused({{"mlp_only_layers", {"one"}}}, "must list layers, in [0, 48), got \"one\"");
  check_refused({{"norm_topk_prob", 1}}, "'norm_topk_prob'");
  check_refused({{"shared_expert_intermediate_size", 512}},
                "'shared_expert_intermediate_size' must be 0: shared experts are not");
  check_refused({{"qkv_bias", true}}, "'qkv_bias' must be false");
  check_refused({{"use_qk_norm", false}}, "'use_qk_norm' must be true");
  check_refused({{"model_type", "qwen3"}}, "\"qwen3_moe\"");
  check_refused({{"head_dim", nullptr}, {"num_attention_heads", 2048}, {"num_key_value_heads", 1}},
                "must be an integer in [1, 1024], got 2048");
  check_refused({{"head_dim", nullptr}, {"num_attention_heads", 1}, {"num_key_value_heads", 1}},
                "must be even and in [2, 1024] where 'head_dim' is absent, got 2048");
  check_refused({{"head_dim", nullptr},
                 {"hidden_size", 66},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1}},
                "where 'head_dim' is absent, got 33");
  check_refused({{"num_experts", 2048}},
                "the experts of all layers must be at most 65536, got 98304");
  for (const auto& [key, value] : {std::pair{"max_window_layers", 48}, {"any", 0}})
    check_refused({{"use_sliding_window", true}, {"sliding_window", 4096}, {key, value}},
                  "'use_sliding_window' must be false");
  check_refused({{"num_experts", 4096},
                 {"hidden_size", 131072},
                 {"moe_intermediate_size", 1048576},
                 {"num_hidden_layers", 1024}},
                "weights; at most");
  // Keys of Qwen3-Coder-480B-A35B.
  CHECK_NOTHROW(
      parse({{"qkv_bias", false}, {"use_qk_norm", true}, {"shared_expert_intermediate_size", 0}}));
}
