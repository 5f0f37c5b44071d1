#include "nanovllm/with/gguf/gguf_checkpoint.hpp"

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/gguf/gguf_blocks.hpp"
#include "nanovllm/with/gpt2/config.hpp"
#include "nanovllm/with/moe/qwen3_moe/config.hpp"
#include "safetensors_writer.hpp"
#include "with/gguf/gguf_writer.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::GgufWriter;
using nanovllm_test::TempDirectory;

namespace {

constexpr std::uint32_t kF32 = 0, kF16 = 1, kQ8_0 = 8, kQ2_K = 10, kBf16 = 30;

/// A checkpoint of what `writer` has written.
struct Written {
  explicit Written(const GgufWriter& writer)
      : bytes(writer.bytes()),
        checkpoint(GgufFile::parse(std::as_bytes(std::span(bytes)), "some.gguf")) {}

  std::string bytes;
  GgufCheckpoint checkpoint;
};

nlohmann::json json_of(const GgufWriter& writer, const char* file) {
  return nlohmann::json::parse(Written(writer).checkpoint.text(file).value());
}

/// The sizes of a Qwen3, with a table of 5 embeddings.
GgufWriter qwen3(const std::string& architecture = "qwen3") {
  GgufWriter out;
  out.add("general.architecture", std::string_view(architecture));
  const auto key = [&](const char* name) { return architecture + "." + name; };
  out.add(key("context_length"), 4096u).add(key("embedding_length"), 8u);
  out.add(key("block_count"), 2u).add(key("feed_forward_length"), 12u);
  out.add(key("attention.head_count"), 4u).add(key("attention.head_count_kv"), 2u);
  out.add(key("attention.layer_norm_rms_epsilon"), 1e-6f).add(key("rope.freq_base"), 1e6f);
  out.add_tensor("token_embd.weight", kF32, {5, 8}, std::string(160, '\0'));
  return out;
}

GgufWriter with_heads(GgufWriter out) {
  out.add("qwen3.attention.key_length", 16u).add("qwen3.attention.value_length", 16u);
  return out;
}

}  // namespace

TEST_CASE("the config of a Qwen3 is made of a GGUF's metadata", "[gguf]") {
  const nlohmann::json expected = {{"architectures", {"Qwen3ForCausalLM"}},
                                   {"model_type", "qwen3"},
                                   {"vocab_size", 5},
                                   {"tie_word_embeddings", true},
                                   {"hidden_size", 8},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2},
                                   {"max_position_embeddings", 4096},
                                   {"rms_norm_eps", 1e-6},
                                   {"head_dim", 16},
                                   {"rope_theta", 1e6},
                                   {"intermediate_size", 12}};
  CHECK(json_of(with_heads(qwen3()), "config.json") == expected);
  // Without a size of heads they divide the stream.
  CHECK(json_of(qwen3(), "config.json").at("head_dim") == 2);

  GgufWriter untied = with_heads(qwen3());
  untied.add_tensor("output.weight", kF32, {5, 8}, std::string(160, '\0'));
  untied.add("general.file_type", 0u);
  CHECK(json_of(untied, "config.json").at("tie_word_embeddings") == false);
  CHECK(json_of(untied, "config.json").at("dtype") == "float32");

  GgufWriter yarn = with_heads(qwen3());
  yarn.add("qwen3.rope.scaling.type", "yarn").add("qwen3.rope.scaling.factor", 4.f);
  yarn.add("qwen3.rope.scaling.original_context_length", 1024u);
  yarn.add("qwen3.rope.scaling.yarn_attn_factor", 1.f);
  const nlohmann::json scaling = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  CHECK(json_of(yarn, "config.json").at("rope_scaling") == scaling);
  yarn.add("qwen3.rope.scaling.yarn_beta_fast", 24.f);
  CHECK(json_of(yarn, "config.json").at("rope_scaling").at("beta_fast") == 24.0);
  // Linear, which the config refuses, with or without a type; but for a factor that does nothing.
  GgufWriter linear = qwen3();
  linear.add("qwen3.rope.scaling.factor", 2.f);
  CHECK(json_of(linear, "config.json").at("rope_scaling").at("rope_type") == "linear");
  GgufWriter one = qwen3();
  one.add("qwen3.rope.scaling.factor", 1.f).add("qwen3.rope.scaling.type", "linear");
  CHECK_FALSE(json_of(one, "config.json").contains("rope_scaling"));
}

TEST_CASE("a GGUF with cls.output.weight is a classifier, tied or not", "[gguf]") {
  for (const bool untied : {false, true}) {
    GgufWriter file = with_heads(qwen3());
    file.add("qwen3.pooling_type", 4u);
    file.add_strings("qwen3.classifier.output_labels", {"yes", "no"});
    file.add_tensor("cls.output.weight", kF32, {2, 8}, std::string(64, '\1'));
    file.add_tensor("cls.output.bias", kF32, {2}, std::string(8, '\0'));
    if (untied) file.add_tensor("output.weight", kF32, {5, 8}, std::string(160, '\0'));
    const nlohmann::json config = json_of(file, "config.json");
    CHECK(config.at("architectures") == nlohmann::json::array({"Qwen3ForSequenceClassification"}));
    CHECK(config.at("id2label") == nlohmann::json{{"0", "yes"}, {"1", "no"}});
    CHECK(config.at("tie_word_embeddings") == !untied);
    Written written(file);  // has the bytes
    const Checkpoint checkpoint(std::move(written.checkpoint));
    REQUIRE(checkpoint.find("score.weight") != nullptr);
    CHECK(checkpoint.find("score.weight")->shape == std::vector<std::uint64_t>{2, 8});
    CHECK(checkpoint.find("score.bias") != nullptr);
  }
  CHECK_FALSE(json_of(with_heads(qwen3()), "config.json").contains("id2label"));
}

TEST_CASE("sizes that a GGUF states for each layer must be equal", "[gguf]") {
  const auto with_sizes = [](std::vector<std::uint32_t> sizes) {
    GgufWriter out;
    out.add("general.architecture", "gpt2").add("gpt2.context_length", 16u);
    out.add("gpt2.embedding_length", 8u).add("gpt2.block_count", 2u);
    out.add("gpt2.attention.head_count", 2u).add("gpt2.attention.layer_norm_epsilon", 1e-5f);
    out.add_array("gpt2.feed_forward_length", GgufValueType::u32, sizes);
    return out.add_tensor("token_embd.weight", kF32, {5, 8}, std::string(160, '\0'));
  };
  const nlohmann::json expected = {{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", 5},
                                   {"tie_word_embeddings", true},
                                   {"n_embd", 8},
                                   {"n_layer", 2},
                                   {"n_head", 2},
                                   {"n_positions", 16},
                                   {"n_inner", 12},
                                   {"layer_norm_epsilon", 1e-5}};
  CHECK(json_of(with_sizes({12, 12}), "config.json") == expected);
  CHECK_THROWS_WITH(json_of(with_sizes({12, 13}), "config.json"),
                    Contains("'gpt2.feed_forward_length' must be the same in all layers"));
  CHECK_THROWS_AS(json_of(with_sizes({}), "config.json"), LoadError);
}

TEST_CASE("layers without a router are dense in the config of a mixture of experts", "[gguf]") {
  GgufWriter writer = qwen3("qwen3moe");
  writer.add("qwen3moe.expert_count", 3u).add("qwen3moe.expert_used_count", 2u);
  writer.add("qwen3moe.expert_feed_forward_length", 6u);
  writer.add_tensor("blk.1.ffn_gate_inp.weight", kF32, {3, 8}, std::string(96, '\0'));
  const nlohmann::json config = json_of(writer, "config.json");
  CHECK(config.at("model_type") == "qwen3_moe");
  CHECK(config.at("architectures") == nlohmann::json{"Qwen3MoeForCausalLM"});
  CHECK(config.at("num_experts") == 3);
  CHECK(config.at("num_experts_per_tok") == 2);
  CHECK(config.at("moe_intermediate_size") == 6);
  CHECK(config.at("intermediate_size") == 12);
  CHECK(config.at("mlp_only_layers") == nlohmann::json{0});
  CHECK(config.at("norm_topk_prob") == true);
  writer.add("qwen3moe.expert_weights_norm", false);
  CHECK(json_of(writer, "config.json").at("norm_topk_prob") == false);
}

TEST_CASE("all keys that a GGUF lacks, and all that are not supported, are named", "[gguf]") {
  const auto error = [](const GgufWriter& writer) {
    try {
      static_cast<void>(Written(writer).checkpoint.text("config.json"));
      return std::string();
    } catch (const LoadError& thrown) {
      return std::string(thrown.what());
    }
  };
  CHECK_THAT(error(GgufWriter()), Contains("'some.gguf': 'general.architecture' is missing"));
  const std::string empty = error(GgufWriter().add("general.architecture", "qwen3"));
  for (const char* part :
       {"'some.gguf': 7 problems", "there is no matrix 'token_embd.weight'",
        "'qwen3.embedding_length' is missing", "'qwen3.block_count' is missing",
        "'qwen3.attention.head_count' is missing", "'qwen3.context_length' is missing",
        "'qwen3.feed_forward_length' is missing",
        "'qwen3.attention.layer_norm_rms_epsilon' is missing"})
    CHECK_THAT(empty, Contains(part));
  GgufWriter other = qwen3();
  other.add("qwen3.attention.sliding_window", 128u).add("qwen3.attention.causal", false);
  other.add("qwen3.rope.scaling.yarn_attn_factor", 0.5f).add("qwen3.rope.dimension_count", 1u);
  other.add("qwen3.rope.scale_linear", 2.f);
  const std::string refused = error(other);
  for (const char* part :
       {"'some.gguf': 5 problems", "'qwen3.attention.sliding_window' must be 0.0, got 128.0",
        "'qwen3.attention.causal' must be true", "'qwen3.rope.scale_linear' must be 1.0, got 2.0",
        "'qwen3.rope.scaling.yarn_attn_factor' must be 1.0, got 0.5",
        "'qwen3.rope.dimension_count' must be the size of a head, 2, got 1"})
    CHECK_THAT(refused, Contains(part));
  CHECK_THAT(error(qwen3().add("qwen3.block_count2", 1u).add("qwen3.expert_shared_count", "one")),
             Contains("'qwen3.expert_shared_count' must be a number, got string"));
  // Another architecture: whoever looks for a model names it.
  CHECK(json_of(GgufWriter().add("general.architecture", "llama"), "config.json") ==
        nlohmann::json{{"model_type", "llama"}});
}

TEST_CASE("a GGUF's end tokens and sampling are those of generation_config.json", "[gguf]") {
  CHECK(json_of(GgufWriter(), "generation_config.json") == nlohmann::json::object());
  GgufWriter writer;
  writer.add_strings("tokenizer.ggml.tokens", {"a", "<|im_end|>", "<|endoftext|>"});
  writer.add_array("tokenizer.ggml.token_type", GgufValueType::i32,
                   std::vector<std::int32_t>{1, 3, 3});
  writer.add("tokenizer.ggml.eos_token_id", 1u);
  CHECK(json_of(writer, "generation_config.json") == nlohmann::json{{"eos_token_id", {1, 2}}});
  writer.add("tokenizer.ggml.eot_token_id", 0u).add("general.sampling.temp", 0.6f);
  writer.add("general.sampling.top_k", GgufValueType::i32, std::int32_t{20});
  writer.add("general.sampling.top_p", 0.95f).add("general.sampling.min_p", 0.f);
  writer.add("general.sampling.penalty_repeat", 1.05f);
  CHECK(json_of(writer, "generation_config.json") == nlohmann::json{{"eos_token_id", {0, 1, 2}},
                                                                    {"temperature", 0.6},
                                                                    {"top_k", 20},
                                                                    {"top_p", 0.95},
                                                                    {"min_p", 0.0},
                                                                    {"repetition_penalty", 1.05}});
  GgufWriter odd;
  odd.add("general.sampling.temp", std::numeric_limits<float>::quiet_NaN());
  CHECK_THROWS_WITH(json_of(odd, "generation_config.json"),
                    Contains("'general.sampling.temp' must be finite, got nan"));
}

TEST_CASE("tensors of a GGUF have Hugging Face's names", "[gguf]") {
  const auto name = [](const char* architecture, const char* tensor) {
    const GgufTensorName out = gguf_tensor_name(architecture, tensor);
    return out.name + out.rest.value_or("");
  };
  CHECK(name("qwen3", "blk.12.attn_q.weight") == "model.layers.12.self_attn.q_proj.weight");
  CHECK(name("qwen3", "blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight");
  CHECK(name("qwen3", "output.weight") == "lm_head.weight");
  CHECK(name("qwen3", "blk.0.attn_q.bias") == "model.layers.0.self_attn.q_proj.bias");
  CHECK(name("qwen3moe", "blk.3.ffn_gate_inp.weight") == "model.layers.3.mlp.gate.weight");
  CHECK(gguf_tensor_name("qwen3moe", "blk.3.ffn_up_exps.weight").name ==
        "model.layers.3.mlp.experts.");
  CHECK(gguf_tensor_name("qwen3moe", "blk.3.ffn_up_exps.weight").rest == ".up_proj.weight");
  CHECK(name("gpt2", "blk.1.attn_qkv.bias") == "h.1.attn.c_attn.bias");
  CHECK(name("gpt2", "position_embd.weight") == "wpe.weight");
  // What is not known stays.
  for (const char* kept : {"rope_freqs.weight", "blk.", "blk.1", "blk.1.other.weight", "output", "",
                           "blk.1.ffn_up_exps.weight"})
    CHECK(name("qwen3", kept) == kept);
  CHECK(name("llama", "output.weight") == "output.weight");
}

TEST_CASE("tensors of a GGUF are views of the file, and experts are apart", "[gguf]") {
  GgufWriter writer;
  writer.add("general.architecture", "qwen3moe");
  std::string stacked;
  for (const char expert : {'x', 'y', 'z'}) stacked += std::string(2 * 34, expert);
  writer.add_tensor("blk.0.ffn_down_exps.weight", kQ8_0, {3, 2, 32}, stacked);
  writer.add_tensor("output_norm.weight", kF32, {2}, "12345678");
  writer.add_tensor("token_embd.weight", kBf16, {2, 1}, "1234");
  writer.add_tensor("output.weight", kF16, {2, 1}, "1234");
  Written written(writer);
  const Checkpoint checkpoint(std::move(written.checkpoint));
  CHECK(checkpoint.name() == "some.gguf");
  REQUIRE(checkpoint.tensors().size() == 6);
  for (const int e : {0, 1, 2}) {
    const CheckpointTensor* const expert =
        checkpoint.find("model.layers.0.mlp.experts." + std::to_string(e) + ".down_proj.weight");
    REQUIRE(expert != nullptr);
    CHECK(expert->blocks == &kGgufQ8_0);
    CHECK(expert->type_name() == "Q8_0");
    CHECK(expert->shape == std::vector<std::uint64_t>{2, 32});
    REQUIRE(expert->data.size() == 68);
    CHECK(static_cast<char>(expert->data.front()) == "xyz"[e]);
    CHECK(static_cast<char>(expert->data.back()) == "xyz"[e]);
  }
  CHECK(checkpoint.find("model.norm.weight")->dtype == FileDType::f32);
  CHECK(checkpoint.find("model.norm.weight")->blocks == nullptr);
  CHECK(checkpoint.find("model.embed_tokens.weight")->dtype == FileDType::bf16);
  CHECK(checkpoint.find("lm_head.weight")->dtype == FileDType::f16);
}

TEST_CASE("tensors that cannot be read are refused by name", "[gguf]") {
  GgufWriter writer;
  writer.add("general.architecture", "qwen3");
  writer.add_tensor("output.weight", kQ2_K, {1, 256}, std::string(84, '\0'));
  CHECK_THROWS_WITH(Written(writer).checkpoint.read_tensors(),
                    "'some.gguf': the tensor 'output.weight' is Q2_K; supported: F32, F16, BF16, "
                    "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS");
  GgufWriter experts;
  experts.add("general.architecture", "qwen3moe");
  experts.add_tensor("blk.0.ffn_up_exps.weight", kF32, {2, 1}, std::string(8, '\0'));
  CHECK_THROWS_WITH(Written(experts).checkpoint.read_tensors(),
                    Contains("must be [experts, rows, columns]") && Contains("got [2, 1]"));
  GgufWriter many;
  many.add("general.architecture", "qwen3moe");
  many.add_tensor("blk.0.ffn_up_exps.weight", kF32, {1u << 30, 0, 1}, "");
  CHECK_THROWS_WITH(Written(many).checkpoint.read_tensors(),
                    Contains("none of them 0 and at most 4096 experts, got"));
  GgufWriter small;
  small.add("general.architecture", "qwen3moe");
  small.add_tensor("blk.0.ffn_up_exps.weight", kF32, {4097, 1, 1}, std::string(4 * 4097, '\0'));
  CHECK_THROWS_WITH(Written(small).checkpoint.read_tensors(), Contains("got [4097, 1, 1]"));
}

TEST_CASE("a path to a GGUF file is a checkpoint", "[gguf][checkpoint]") {
  TempDirectory directory;
  const auto path = directory.write("model.gguf", with_heads(qwen3()).bytes());
  const Checkpoint checkpoint(path);
  CHECK(checkpoint.name() == path);
  CHECK(checkpoint.path_of("config.json") == "config.json of " + path.string());
  CHECK(checkpoint.text("config.json").has_value());
  CHECK_FALSE(checkpoint.text("tokenizer.json").has_value());
  CHECK_FALSE(checkpoint.text("tokenizer_config.json").has_value());
  CHECK_FALSE(checkpoint.text("chat_template.jinja").has_value());
  CHECK_FALSE(checkpoint.text("README.md").has_value());
  CHECK(checkpoint.find("model.embed_tokens.weight")->mapping != nullptr);
  CHECK(checkpoint.total_bytes() == 160);

  CHECK_THROWS_WITH(Checkpoint(directory.path() / "none.gguf"), Contains("none.gguf"));
  CHECK_THROWS_AS(Checkpoint(directory.write("broken.gguf", "GGUF")), LoadError);
  const auto part = directory.write(
      "part.gguf", qwen3().add("split.count", GgufValueType::u16, std::uint16_t{3}).bytes());
  CHECK_THROWS_WITH(Checkpoint(part), Contains("'split.count' is 3: the checkpoint is in several"));
  // A file and a directory may have any name.
  const auto blob = directory.write("sha256-0123", with_heads(qwen3()).bytes());
  CHECK(Checkpoint(blob).text("config.json") == checkpoint.text("config.json"));
  CHECK_THROWS_WITH(
      Checkpoint(directory.write("model.bin", "PK34 and more")),
      Contains("model.bin', byte 4: the file must begin with \"GGUF\"; a checkpoint is "
               "a directory or a GGUF file"));
  CHECK(Checkpoint(blob).path_of("config.json") == "config.json of " + blob.string());
  std::filesystem::create_directory(directory.path() / "folder.gguf");
  CHECK_FALSE(Checkpoint(directory.path() / "folder.gguf").text("config.json").has_value());
}
