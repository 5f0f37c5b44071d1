// The files of EAGLE-3 heads: the forms of config.json, which streams a head reads, the map of its
// vocabulary, and clear errors for what does not fit.

#include "nanovllm/with/speculation/eagle3/config.hpp"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/speculation/eagle3/weights.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;

namespace {

nlohmann::json config_of(const std::string& head) {
  std::ifstream file("tests/fixtures/eagle3/" + head + "/config.json");
  return nlohmann::json::parse(file);
}

Eagle3Config changed(const std::string& head, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = config_of(head);
  change(json);
  return Eagle3Config::from_json(json.dump());
}

/// The head of a fixture with other tensors: `rename` gives a tensor's new name, or none.
Checkpoint with_tensors(const std::string& head,
                        const std::function<std::string(const std::string&)>& rename,
                        const std::function<void(MemoryCheckpoint&)>& add = {}) {
  const Checkpoint files("tests/fixtures/eagle3/" + head);
  MemoryCheckpoint out;
  out.texts["config.json"] = files.required_text("config.json");
  for (const CheckpointTensor& tensor : files.tensors()) {
    const std::string name = rename(tensor.name);
    const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
    if (!name.empty()) out.add(name, tensor.dtype, tensor.shape, {bytes, tensor.data.size()});
  }
  if (add) add(out);
  return Checkpoint(std::move(out));
}

Checkpoint without(const std::string& head, const std::string& tensor) {
  return with_tensors(head, [&](const std::string& name) { return name == tensor ? "" : name; });
}

void load_weights(const Checkpoint& checkpoint) {
  CpuBackend backend(BackendConfig{.num_threads = 1});
  const Eagle3Config config = Eagle3Config::load(checkpoint);
  const Eagle3Target target{config.layer.hidden_size, 9, config.layer.vocab_size};
  Eagle3Weights<float, CpuBackend> weights(
      config, static_cast<std::int64_t>(stream_layers(config, target).size()));
  weights.load(checkpoint, backend);
}

std::string bytes_of(const std::vector<std::int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]};
}

}  // namespace

TEST_CASE("config.json of a head is read in every form", "[eagle3][config]") {
  const auto load = [](const char* head) {
    return Eagle3Config::load(Checkpoint(std::string("tests/fixtures/eagle3/") + head));
  };
  const Eagle3Config redhat = load("speculators_llama");
  CHECK(redhat.layer.hidden_size == 24);
  CHECK(redhat.layer.num_key_value_heads == 2);
  CHECK(redhat.layer.intermediate_size == 40);
  CHECK(redhat.layer.rope.theta == 5e4);
  CHECK(redhat.layer.rms_norm_eps == 1e-5);
  CHECK(redhat.layer.vocab_size == 61);
  CHECK(redhat.draft_vocab_size == 40);
  CHECK(redhat.norm_before_residual);
  CHECK(redhat.num_speculative_tokens == 5);
  CHECK(redhat.prefix == "layers.0.");
  CHECK(redhat.has_embedding);
  CHECK_FALSE(redhat.norms_heads);
  CHECK_FALSE(redhat.stream_layers.has_value());
  CHECK(redhat.target_ids.size() == 40);

  const Eagle3Config qwen3 = load("speculators_qwen3");
  CHECK(qwen3.norms_heads);
  CHECK(qwen3.has_qkv_bias);
  CHECK(qwen3.has_output_bias);
  CHECK(qwen3.fc_norm);
  CHECK(qwen3.norm_output);
  CHECK_FALSE(qwen3.norm_before_residual);
  CHECK(qwen3.stream_layers == std::vector<std::int64_t>{1, 3, 2, 6});
  CHECK(qwen3.target_ids.empty());

  const Eagle3Config angelslim = load("angelslim");
  CHECK(angelslim.prefix == "midlayer.");
  CHECK_FALSE(angelslim.has_embedding);
  CHECK_FALSE(angelslim.norm_before_fc);
  CHECK(angelslim.draft_vocab_size == 33);

  const Eagle3Config safeailab = load("safeailab");
  CHECK(safeailab.has_qkv_bias);
  CHECK_FALSE(safeailab.has_output_bias);
  CHECK(safeailab.norm_before_fc);
  CHECK(safeailab.stream_layers == std::vector<std::int64_t>{2, 4, 5});

  // As transformers: without head_dim it is 128 of qwen3, and follows from the others of llama.
  const auto shrink = [](auto& layer) { layer.erase("head_dim"); };
  CHECK(changed("angelslim", shrink).layer.head_dim == 6);
  CHECK(changed("speculators_qwen3", [&](auto& json) {
          shrink(json["transformer_layer_config"]);
        }).layer.head_dim == 128);

  // Old heads say LlamaForCausalLM, and no draft vocabulary means that of the target.
  CHECK(changed("angelslim", [](auto& json) {
          json["architectures"] = {"LlamaForCausalLM"};
        }).draft_vocab_size == 33);
  CHECK(changed("angelslim", [](auto& json) { json.erase("draft_vocab_size"); }).draft_vocab_size ==
        61);
}

TEST_CASE("a directory is known to be that of a head, or not", "[eagle3][config]") {
  for (const char* head : {"speculators_llama", "speculators_qwen3", "angelslim", "safeailab"})
    CHECK(is_eagle3_head(std::string("tests/fixtures/eagle3/") + head));
  CHECK(is_eagle3_head("examples/models/fairytale_eagle3"));
  for (const char* other : {"examples/models/fairytale", "tests/fixtures", "/nowhere", "",
                            "tests/fixtures/eagle3/angelslim/config.json"})
    CHECK_FALSE(is_eagle3_head(other));
}

TEST_CASE("the streams of a head are those entering 2, L / 2 and L - 3, or its own",
          "[eagle3][config]") {
  const Eagle3Config usual = changed("angelslim", [](auto&) {});
  CHECK(stream_layers(usual, {24, 36, 61}) == std::vector<std::int64_t>{2, 18, 33});
  CHECK(stream_layers(usual, {24, 28, 61}) == std::vector<std::int64_t>{2, 14, 25});
  const Eagle3Config own = changed("safeailab", [](auto&) {});
  CHECK(stream_layers(own, {24, 36, 61}) == std::vector<std::int64_t>{2, 4, 5});
  CHECK(stream_layers(own, {24, 5, 61}) == std::vector<std::int64_t>{2, 4, 5});  // 5: the last

  CHECK_THROWS_WITH(stream_layers(own, {24, 4, 61}),
                    Contains("enters layer 5 of the target, which has 4"));
  CHECK_THROWS_WITH(stream_layers(usual, {24, 2, 61}), Contains("enters layer -1"));
  CHECK_THROWS_WITH(stream_layers(usual, {32, 36, 60}),
                    Contains("'hidden_size' is 24, the target's 32") &&
                        Contains("'vocab_size' is 61, the target's 60"));
}

TEST_CASE("a config.json that is not of a head, or not supported, is refused",
          "[eagle3][config][errors]") {
  const auto refuses = [](const char* head, const char* message,
                          const std::function<void(nlohmann::json&)>& change) {
    CHECK_THROWS_WITH(changed(head, change), Contains(message));
    CHECK_THROWS_AS(changed(head, change), ConfigError);
  };
  refuses("angelslim", "this is no EAGLE-3 head",
          [](auto& json) { json["architectures"] = {"Qwen3ForCausalLM"}; });
  refuses("angelslim", "got \"LlamaForCausalLM\"", [](auto& json) {
    json["architectures"] = {"LlamaForCausalLM"};
    json.erase("draft_vocab_size");
  });
  refuses("angelslim", "no 'architectures'", [](auto& json) { json.erase("architectures"); });
  refuses("speculators_llama", "'speculators_model_type' must be \"eagle3\", got \"dflash\"",
          [](auto& json) { json["speculators_model_type"] = "dflash"; });
  refuses("speculators_llama", "'transformer_layer_config' must be an object",
          [](auto& json) { json.erase("transformer_layer_config"); });
  refuses("angelslim", "'rope_theta' is missing", [](auto& json) { json.erase("rope_theta"); });
  refuses("angelslim", "'hidden_size' is missing", [](auto& json) { json.erase("hidden_size"); });
  refuses("angelslim", "'num_hidden_layers' must be 1",
          [](auto& json) { json["num_hidden_layers"] = 2; });
  refuses("angelslim", "'draft_vocab_size' (62) must be at most 'vocab_size' (61)",
          [](auto& json) { json["draft_vocab_size"] = 62; });
  refuses("angelslim", "'target_hidden_size' (48) must be 'hidden_size' (24)",
          [](auto& json) { json["target_hidden_size"] = 48; });
  refuses("angelslim", "'model_type' must be \"llama\" or \"qwen3\", got \"gpt_oss\"",
          [](auto& json) { json["model_type"] = "gpt_oss"; });
  refuses("angelslim", "'mlp_bias' must be false", [](auto& json) { json["mlp_bias"] = true; });
  refuses("angelslim", "exclude each other", [](auto& json) {
    json["fc_norm"] = true;
    json["norm_before_fc"] = true;
  });
  refuses("safeailab", "use_aux_hidden_state' must be true",
          [](auto& json) { json["eagle_config"]["use_aux_hidden_state"] = false; });
  const auto refuses_layers = [&](const char* got, const nlohmann::json& list) {
    refuses("safeailab", got,
            [&](auto& json) { json["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list; });
  };
  refuses_layers("must be a list of 1 to 16 numbers of layers, counted from 0, got -1", {2, -1, 3});
  refuses_layers("counted from 0, got 1025", {2, 1025, -1});
  refuses_layers("counted from 0, got 2.5", {2, 2.5, 3});
  refuses_layers("counted from 0, got \"3\"", {2, "3"});
  refuses_layers("counted from 0, got 7", 7);
  refuses_layers("counted from 0, got an array of 0", nlohmann::json::array());
  refuses_layers("counted from 0, got an array of 17", std::vector<int>(17));
  refuses("safeailab", "two values for 'eagle_aux_hidden_state_layer_ids'", [](auto& json) {
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
  });
}

TEST_CASE("tensors of a head that are missing or wrong are named", "[eagle3][errors]") {
  for (const char* name :
       {"fc.weight", "norm.weight", "lm_head.weight", "midlayer.input_layernorm.weight",
        "midlayer.self_attn.k_proj.weight", "midlayer.mlp.down_proj.weight"}) {
    INFO(name);
    CHECK_THROWS_WITH(load_weights(without("angelslim", name)),
                      Contains(std::string("'") + name + "' is missing"));
  }
  CHECK_THROWS_WITH(load_weights(without("angelslim", "midlayer.hidden_norm.weight")),
                    Contains("it is no EAGLE-3 head"));
  for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
    const std::string bias = std::string("midlayer.self_attn.") + name;
    CHECK_THROWS_WITH(load_weights(without("safeailab", bias)),
                      Contains("'" + bias + "' is missing"));
  }
  for (const char* name : {"q_norm.weight", "k_norm.weight"}) {
    const std::string norm = std::string("layers.0.self_attn.") + name;
    CHECK_THROWS_WITH(load_weights(without("speculators_qwen3", norm)),
                      Contains("'" + norm + "' is missing"));
  }
  CHECK_THROWS_WITH(load_weights(without("safeailab", "input_norm.weight")),
                    Contains("'input_norm.weight' is missing"));
  CHECK_THROWS_WITH(load_weights(without("speculators_qwen3", "fc_norm.3.weight")),
                    Contains("'fc_norm.3.weight' is missing"));
  // config.json says nothing of what these are for.
  CHECK_THROWS_WITH(
      load_weights(with_tensors("angelslim",
                                [](const std::string& name) {
                                  return name == "norm.weight" ? "input_norm.weight" : name;
                                })),
      Contains("'input_norm.weight' [24] is in the checkpoint, but not in the model"));
  // Streams of four layers, and fc for three.
  const Checkpoint head("tests/fixtures/eagle3/speculators_llama");
  const Eagle3Config config = Eagle3Config::load(head);
  CpuBackend backend(BackendConfig{.num_threads = 1});
  Eagle3Weights<float, CpuBackend> weights(config, 4);
  CHECK_THROWS_WITH(weights.load(head, backend),
                    Contains("'fc.weight' must have shape [24, 96], got [24, 72]"));
  // What training leaves behind is not read.
  CHECK_NOTHROW(load_weights(with_tensors(
      "speculators_llama", [](const std::string& name) { return name; },
      [](MemoryCheckpoint& out) {
        out.add("verifier_norm.weight", FileDType::f32, {1}, std::string(4, '\0'));
      })));
}

TEST_CASE("d2t has offsets, and is refused where it maps out of the vocabulary",
          "[eagle3][errors]") {
  const auto same = [](const std::string& name) { return name == "d2t" ? "" : name; };
  const auto with_offsets = [&](const std::vector<std::int64_t>& offsets) {
    return Eagle3Config::load(with_tensors("angelslim", same, [&](MemoryCheckpoint& out) {
      out.add("d2t", FileDType::i64, {offsets.size()}, bytes_of(offsets));
    }));
  };
  std::vector<std::int64_t> offsets(33, 28);
  offsets[0] = 0, offsets[5] = -5;
  const std::vector<TokenId> ids = with_offsets(offsets).target_ids;
  CHECK(ids[0] == 0);
  CHECK(ids[1] == 29);
  CHECK(ids[5] == 0);
  CHECK(ids[32] == 60);
  offsets[32] = 29;
  CHECK_THROWS_WITH(with_offsets(offsets), Contains("'d2t' has 29 for token 32 of the draft, which "
                                                    "is not in [0, 61) of the target"));
  offsets[32] = -33;
  CHECK_THROWS_AS(with_offsets(offsets), LoadError);
  CHECK_THROWS_WITH(with_offsets(std::vector<std::int64_t>(32)),
                    Contains("'d2t' must be I64 of shape [33], got I64 [32]"));
  CHECK_THROWS_WITH(Eagle3Config::load(without("angelslim", "d2t")),
                    Contains("'d2t' is missing; 'vocab_size' 61 and 'draft_vocab_size' 33 differ"));
}
