// Engines of GGUF files (tests/oracle/make_gguf_fixtures.py) and of directories with the same
// weights: the same configs, tokens and log-probabilities, to the bit.

#include <nlohmann/json.hpp>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/gguf/gguf_checkpoint.hpp"
#include "nanovllm/with/gpt2/gpt2.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "safetensors_writer.hpp"
#include "with/gguf/gguf_cases.hpp"
#include "with/gpt2/parity/gpt2_checkpoint.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using nanovllm_test::SafetensorsWriter;
using nanovllm_test::TempDirectory;

namespace {

struct Fp8Policy : DefaultPolicy {
  using Weight = Fp8Block128;
};

/// `values` as a type of fewer bits has them.
template <class T>
void round_to(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(T(value));
}

void check_same_config(const Qwen3Config& got, const Qwen3Config& expected) {
  CHECK(got.hidden_size == expected.hidden_size);
  CHECK(got.num_hidden_layers == expected.num_hidden_layers);
  CHECK(got.num_attention_heads == expected.num_attention_heads);
  CHECK(got.num_key_value_heads == expected.num_key_value_heads);
  CHECK(got.head_dim == expected.head_dim);
  CHECK(got.intermediate_size == expected.intermediate_size);
  CHECK(got.vocab_size == expected.vocab_size);
  CHECK(got.max_position_embeddings == expected.max_position_embeddings);
  CHECK(got.rms_norm_eps == expected.rms_norm_eps);
  CHECK(got.tie_word_embeddings == expected.tie_word_embeddings);
  CHECK(got.dtype == DType::float32);
  CHECK(got.rope.type == expected.rope.type);
  CHECK(got.rope.theta == expected.rope.theta);
  CHECK(got.rope.factor == expected.rope.factor);
  CHECK(got.rope.original_max_position_embeddings ==
        expected.rope.original_max_position_embeddings);
  CHECK(got.eos_token_ids == expected.eos_token_ids);
}

}  // namespace

TEST_CASE("a Qwen3 in a GGUF file is that of the directory", "[gguf]") {
  nlohmann::json config = {
      {"model_type", "qwen3_moe"},
      {"hidden_size", 32},
      {"intermediate_size", 48},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 16},
      {"vocab_size", 83},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 1e6},
      {"max_position_embeddings", 256},
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}}}};
  nlohmann::json dense = config;  // the names of its tensors are those of dense layers
  dense.update({{"num_experts", 1},
                {"num_experts_per_tok", 1},
                {"moe_intermediate_size", 1},
                {"mlp_only_layers", {0, 1}}});
  SafetensorsWriter file;
  for (const auto& [name, shape] : moe_tensors(dense)) {
    std::vector<float> values = moe_weight(name, shape, 7301);
    if (name.find("q_proj") != name.npos) round_to<half>(values);  // F16 in the GGUF file
    if (name.find("up_proj") != name.npos) round_to<bf16>(values);
    file.add(name, "F32", shape, values);
  }
  config["model_type"] = "qwen3";
  const TempDirectory directory;
  directory.write("config.json", config.dump());
  directory.write("model.safetensors", file.bytes());
  check_same_config(Qwen3Config::load(gguf_fixture("qwen3")), Qwen3Config::load(directory.path()));
  check_same<AnyModel>(gguf_fixture("qwen3"), directory.path(), 83);
}

TEST_CASE("a mixture of experts in a GGUF file is that of the directory", "[gguf]") {
  const nlohmann::json config = {
      {"model_type", "qwen3_moe"},   {"hidden_size", 40},      {"intermediate_size", 56},
      {"moe_intermediate_size", 33}, {"num_experts", 5},       {"num_experts_per_tok", 1},
      {"norm_topk_prob", false},     {"num_hidden_layers", 3}, {"num_attention_heads", 3},
      {"num_key_value_heads", 1},    {"head_dim", 24},         {"vocab_size", 71},
      {"rms_norm_eps", 1e-6},        {"rope_theta", 1e6},      {"max_position_embeddings", 128},
      {"tie_word_embeddings", true}};
  const MoeFiles files(config, 6102);
  const Qwen3MoeConfig got = Qwen3MoeConfig::load(gguf_fixture("qwen3_moe"));
  const Qwen3MoeConfig expected = Qwen3MoeConfig::load(files.path());
  check_same_config(got, expected);
  CHECK(got.num_experts == expected.num_experts);
  CHECK(got.num_experts_per_tok == expected.num_experts_per_tok);
  CHECK(got.moe_intermediate_size == expected.moe_intermediate_size);
  CHECK(got.norm_topk_prob == expected.norm_topk_prob);
  CHECK(got.mlp_only_layers.empty());
  check_same<Qwen3Moe<shapes::qwen3_moe_any>>(gguf_fixture("qwen3_moe"), files.path(), 71);
}

TEST_CASE("a GPT-2 in a GGUF file is that of the directory", "[gguf]") {
  const nlohmann::json config = {{"model_type", "gpt2"}, {"n_embd", 24},      {"n_head", 3},
                                 {"n_layer", 2},         {"n_positions", 40}, {"vocab_size", 61},
                                 {"n_inner", 96}};
  const Gpt2Files files(config, 7302);
  const Gpt2Config got = Gpt2Config::load(gguf_fixture("gpt2"));
  CHECK(got.hidden_size == 24);
  CHECK(got.num_layers == 2);
  CHECK(got.num_heads == 3);
  CHECK(got.num_positions == 40);
  CHECK(got.intermediate_size == 96);
  CHECK(got.vocab_size == 61);
  CHECK(got.layer_norm_eps == 1e-5);
  CHECK(got.tie_word_embeddings);
  check_same<Gpt2<shapes::gpt2_any>>(gguf_fixture("gpt2"), files.path(), 61);
}

TEST_CASE("a GGUF file of quantised blocks is one of their values", "[gguf]") {
  const Checkpoint gguf = gguf_fixture("mixed");
  const Checkpoint expected(dequantised(gguf));
  CHECK(gguf.total_bytes() < expected.total_bytes() / 4);
  check_same<AnyModel>(gguf_fixture("mixed"), expected, 64);
  check_same<AnyModel, DefaultPolicy>(gguf_fixture("mixed"), expected, 64);
  check_same<AnyModel, Fp8Policy>(gguf_fixture("mixed"), expected, 64);
}

TEST_CASE("a GGUF file of the types for narrow rows is one of their values", "[gguf]") {
  const Checkpoint gguf = gguf_fixture("fallback");
  const Checkpoint expected(dequantised(gguf));
  check_same<AnyModel>(gguf_fixture("fallback"), expected, 64);
}
