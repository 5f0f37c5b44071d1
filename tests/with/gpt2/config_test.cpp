// config.json of GPT-2: what is read, and what is refused.

#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "nanovllm/with/gpt2/config.hpp"
#include "safetensors_writer.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

/// As the first releases of gpt2 on the hub have it.
json published() {
  return {{"activation_function", "gelu_new"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"attn_pdrop", 0.1},
          {"bos_token_id", 50256},
          {"eos_token_id", 50256},
          {"layer_norm_epsilon", 1e-05},
          {"model_type", "gpt2"},
          {"n_ctx", 1024},
          {"n_embd", 768},
          {"n_head", 12},
          {"n_layer", 12},
          {"n_positions", 1024},
          {"summary_first_dropout", 0.1},
          {"vocab_size", 50257}};
}

json with(const char* key, const json& value) {
  json out = published();
  out[key] = value;
  return out;
}

json without(const char* key) {
  json out = published();
  out.erase(key);
  return out;
}

Gpt2Config read(const json& config) { return Gpt2Config::from_json(config.dump()); }

}  // namespace

TEST_CASE("a published GPT-2's config.json is read", "[gpt2][config]") {
  const Gpt2Config config = read(published());
  CHECK(config.hidden_size == 768);
  CHECK(config.num_layers == 12);
  CHECK(config.num_heads == 12);
  CHECK(config.intermediate_size == 3072);
  CHECK(config.vocab_size == 50257);
  CHECK(config.num_positions == 1024);
  CHECK(max_context_length(config) == 1024);
  CHECK(config.layer_norm_eps == 1e-5);
  CHECK(config.tie_word_embeddings);
  CHECK(config.dtype == DType::bfloat16);
  CHECK(config.eos_token_ids == std::vector<TokenId>{50256});
  CHECK(std::abs(num_parameters(config) - 124'439'808) < 1'244'398);
}

TEST_CASE("GPT-2's fields that may be absent or null", "[gpt2][config]") {
  CHECK(read(with("n_inner", nullptr)).intermediate_size == 3072);
  CHECK(read(with("n_inner", 100)).intermediate_size == 100);
  CHECK(read(without("n_ctx")).num_positions == 1024);
  CHECK(read(without("n_positions")).num_positions == 1024);
  CHECK(read(without("layer_norm_epsilon")).layer_norm_eps == 1e-5);
  CHECK(read(without("activation_function")).hidden_size == 768);
  CHECK(read(without("eos_token_id")).eos_token_ids.empty());
  const Gpt2Config cut = read(with("eos_token_id", 50257));
  CHECK(cut.eos_token_ids.empty());
  CHECK_FALSE(cut.warnings.empty());
  CHECK_FALSE(read(with("tie_word_embeddings", false)).tie_word_embeddings);
  CHECK(read(with("torch_dtype", "float32")).dtype == DType::float32);
  CHECK(read(with("scale_attn_weights", true)).hidden_size == 768);
  CHECK(read(with("reorder_and_upcast_attn", false)).hidden_size == 768);
}

TEST_CASE("generation_config.json of GPT-2 is read beside config.json", "[gpt2][config]") {
  const nanovllm_test::TempDirectory directory;
  directory.write("config.json", published().dump());
  directory.write("generation_config.json", R"({"eos_token_id": [7, 50256], "top_k": 40})");
  const Gpt2Config config = Gpt2Config::load(directory.path());
  CHECK(config.eos_token_ids == std::vector<TokenId>{7, 50256});
  CHECK(config.generation.top_k == 40);
  CHECK_THROWS_AS(Gpt2Config::load(directory.path() / "missing"), LoadError);
}

TEST_CASE("each setting that GPT-2 does not support is named", "[gpt2][config]") {
  const auto refused = [](const json& config, const char* message) {
    INFO(message);
    CHECK_THROWS_AS(read(config), ConfigError);
    CHECK_THROWS_WITH(read(config), Contains(message));
  };
  refused(with("model_type", "qwen3"), "'model_type' must be \"gpt2\"");
  refused(without("model_type"), "'model_type' is missing");
  refused(with("activation_function", "relu"), "'activation_function' must be \"gelu_new\"");
  refused(with("scale_attn_weights", false), "'scale_attn_weights' must be true");
  refused(with("scale_attn_by_inverse_layer_idx", true), "'scale_attn_by_inverse_layer_idx'");
  refused(with("reorder_and_upcast_attn", true), "'reorder_and_upcast_attn' must be false");
  refused(with("add_cross_attention", true), "'add_cross_attention' must be false");
  refused(with("n_head", 7), "'n_embd' (768) must be a multiple of 'n_head' (7)");
  refused(with("n_ctx", 512), "'n_positions' (1024) and 'n_ctx' (512) disagree");
  refused(with("layer_norm_epsilon", 0), "'layer_norm_epsilon'");
  refused(with("n_embd", 1 << 18), "'n_embd'");
  for (const char* key : {"n_embd", "n_head", "n_layer", "vocab_size"})
    refused(without(key), (std::string("'") + key + "' is missing").c_str());
  json neither = without("n_ctx");
  neither.erase("n_positions");
  refused(neither, "'n_positions' is missing");

  json several = with("add_cross_attention", true);
  several["activation_function"] = "relu", several["n_head"] = 7;
  CHECK_THROWS_WITH(read(several), Contains("3 problems"));
}
