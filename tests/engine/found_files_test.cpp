// Checkpoints as fine-tuning leaves them: what is ignored, with which warning, and that the result
// is that of clean files.

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "engine/parity/greedy_traces.hpp"
#include "memory_checkpoint.hpp"
#include "weights_there.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;
using nlohmann::json;

namespace {

using Warnings = std::vector<std::string>;

constexpr const char* kTable = "model.embed_tokens.weight";

MemoryCheckpoint fairytale() {
  return MemoryCheckpoint::copy_of(Checkpoint(model_directory("fairytale")));
}

/// Changes fields of `file`.
void change(MemoryCheckpoint& files, const char* file, const json& fields) {
  json all = json::parse(files.texts.at(file));
  all.update(fields);
  files.texts[file] = all.dump();
}

/// What an engine of these files says and writes.
template <class Model = AnyModel>
struct Served {
  explicit Served(MemoryCheckpoint files) : Served(Checkpoint(std::move(files))) {}
  explicit Served(Checkpoint checkpoint) {
    Engine<Model, Float32Policy> engine(
        {.checkpoint = std::move(checkpoint),
         .num_threads = 1,
         .max_num_seqs = 4,
         .kv_size = KvSize::blocks(32),
         .on_warning = [this](std::string_view text) { warnings.emplace_back(text); }});
    const std::int64_t vocab = engine.model_config().vocab_size;
    trace = traces(engine, std::vector{random_prompt(1, 9, vocab), random_prompt(2, 17, vocab)}, 6);
    ends = engine.model_config().eos_token_ids;
  }

  Warnings warnings;
  std::vector<Trace> trace;
  std::vector<TokenId> ends;
};

/// The embedding of the fairytale, with its rows in the opposite order.
std::string turned_rows(const CheckpointTensor& table) {
  const auto rows = static_cast<std::size_t>(table.shape[0]);
  const std::size_t size = table.data.size() / rows;
  std::string out;
  for (std::size_t i = 0; i < rows; ++i)
    out.append(reinterpret_cast<const char*>(table.data.data()) + (rows - 1 - i) * size, size);
  return out;
}

}  // namespace

TEST_CASE("a tied model that has a head of its own uses it, as transformers does", "[files]") {
  const Checkpoint clean = Checkpoint(model_directory("fairytale"));
  const CheckpointTensor& table = *clean.find(kTable);
  const Served tied(clean);
  CHECK(tied.warnings.empty());

  MemoryCheckpoint same = fairytale();
  same.add("lm_head.weight", table.dtype, table.shape,
           std::string(reinterpret_cast<const char*>(table.data.data()), table.data.size()));
  const Served with_copy(std::move(same));
  check_equal(with_copy.trace, tied.trace, 0);
  CHECK(with_copy.warnings.empty());

  MemoryCheckpoint own = fairytale(), untied = fairytale();
  for (MemoryCheckpoint* files : {&own, &untied})
    files->add("lm_head.weight", table.dtype, table.shape, turned_rows(table));
  change(untied, "config.json", {{"tie_word_embeddings", false}});
  const Served with_own(std::move(own)), expected(std::move(untied));
  check_equal(with_own.trace, expected.trace, 0);
  CHECK(with_own.trace[0].tokens != tied.trace[0].tokens);
  REQUIRE(with_own.warnings.size() == 1);
  CHECK_THAT(with_own.warnings[0], Contains("'tie_word_embeddings' (true) is ignored"));
  CHECK(expected.warnings.empty());
}

TEST_CASE("what training leaves in the files changes nothing, and is said", "[files]") {
  const Served clean(fairytale());
  MemoryCheckpoint files = fairytale();
  change(files, "config.json",
         {{"torch_dtype", "float16"},
          {"quantization_config", {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}},
          {"eos_token_id", {4093, 151643}}});
  change(files, "generation_config.json", {{"do_sample", false}, {"top_p", 0.0}});
  files.add("v_head.summary.weight", FileDType::f32, {1, 256}, std::string(1024, 'x'));
  files.add("v_head.summary.bias", FileDType::f32, {1}, std::string(4, 'x'));
  files.add("model.layers.0.self_attn.rotary_emb.inv_freq", FileDType::f32, {64},
            std::string(256, 'x'));
  files.add("model.rotary_emb.inv_freq", FileDType::f32, {64}, std::string(256, 'x'));
  const Served found(std::move(files));
  check_equal(found.trace, clean.trace, 0);
  CHECK(found.ends == clean.ends);
  REQUIRE(found.warnings.size() == 4);
  CHECK(found.warnings[0] ==
        "memory/config.json: 'torch_dtype' (float16) is ignored: 'dtype' is bfloat16");
  CHECK_THAT(found.warnings[1], Contains("'eos_token_id' (151643) is ignored"));
  CHECK_THAT(found.warnings[2], Contains("'quantization_config' of \"bitsandbytes\" is ignored"));
  CHECK_THAT(found.warnings[3], Contains("the tensors 'v_head.*' are ignored"));
}

TEST_CASE("what would change the result is refused by name", "[files]") {
  const auto error_of = [](MemoryCheckpoint files) -> std::string {
    try {
      const Served served(std::move(files));
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  MemoryCheckpoint adapter = fairytale();
  adapter.add("model.layers.0.self_attn.q_proj.lora_A.weight", FileDType::f32, {1, 256},
              std::string(1024, 'x'));
  CHECK_THAT(error_of(std::move(adapter)), Contains("it is of a LoRA adapter"));
  MemoryCheckpoint more = fairytale();
  more.add("model.layers.6.mlp.up_proj.weight", FileDType::f32, {1, 256}, std::string(1024, 'x'));
  change(more, "config.json", {{"torch_dtype", "float32"}});
  CHECK_THAT(error_of(std::move(more)),
             Contains("'model.layers.6.mlp.up_proj.weight' [1, 256] is in the checkpoint") &&
                 Contains("(memory/config.json: 'torch_dtype' (float32) is ignored"));
  // Matrices that are really quantised need what is said of them.
  MemoryCheckpoint packed = fairytale();
  packed.add("model.layers.6.mlp.up_proj.weight", FileDType::u8, {64, 1}, std::string(64, 'x'));
  change(packed, "config.json", {{"quantization_config", {{"quant_method", "bitsandbytes"}}}});
  CHECK_THAT(error_of(std::move(packed)),
             Contains("'quantization_config.quant_method' must be") && Contains("bitsandbytes"));
}

TEST_CASE("fused experts are the experts", "[files][experts]") {
  using Moe = Qwen3Moe<shapes::qwen3_moe_any>;
  const json config = {{"model_type", "qwen3_moe"},  {"hidden_size", 48},
                       {"intermediate_size", 64},    {"moe_intermediate_size", 20},
                       {"num_experts", 5},           {"num_experts_per_tok", 2},
                       {"num_hidden_layers", 2},     {"num_attention_heads", 2},
                       {"num_key_value_heads", 1},   {"head_dim", 24},
                       {"vocab_size", 79},           {"rms_norm_eps", 1e-6},
                       {"rope_theta", 1e6},          {"max_position_embeddings", 128},
                       {"tie_word_embeddings", true}};
  const MoeFiles files(config, 6105);
  const Checkpoint separate = files.path();
  MemoryCheckpoint fused;
  fused.texts["config.json"] = separate.required_text("config.json");
  std::vector<std::pair<std::string, std::string>> stacked;  // gate and up of an expert, or down
  for (const CheckpointTensor& tensor : separate.tensors()) {
    if (tensor.name.find(".experts.") == tensor.name.npos)
      fused.add(tensor.name, tensor.dtype, tensor.shape,
                {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()});
  }
  const FileDType dtype = separate.find("model.layers.0.mlp.experts.0.up_proj.weight")->dtype;
  for (const std::string layer : {"model.layers.0.mlp.experts.", "model.layers.1.mlp.experts."}) {
    const auto stack = [&](const std::vector<const char*>& matrices) {
      std::string out;
      for (int e = 0; e < 5; ++e) {
        for (const char* matrix : matrices) {
          const auto* tensor = separate.find(concat(layer, e, ".", matrix, ".weight"));
          out.append(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size());
        }
      }
      return out;
    };
    fused.add(layer + "gate_up_proj", dtype, {5, 40, 48}, stack({"gate_proj", "up_proj"}));
    fused.add(layer + "down_proj", dtype, {5, 48, 20}, stack({"down_proj"}));
  }
  check_equal(Served<Moe>(std::move(fused)).trace, Served<Moe>(separate).trace, 0);
}

TEST_CASE("a checkpoint of another kind of model is named before anything else", "[files]") {
  const auto error_of = [](const char* directory) -> std::string {
    try {
      const Engine<AnyModel, Float32Policy> engine({.model = directory});
      return {};
    } catch (const UnsupportedModelError& error) {
      return error.what();
    }
  };
  CHECK_THAT(error_of("tests/fixtures/gguf/gpt2.gguf"),
             Contains("config.json of tests/fixtures/gguf/gpt2.gguf: this checkpoint is a gpt2"));
  if (!weights_there("tiny_gpt2") || !weights_there("fairytale_moe")) return;
  CHECK_THAT(error_of("examples/models/tiny_gpt2"),
             Contains("tiny_gpt2/config.json: this checkpoint is a gpt2, but the engine was made "
                      "for a qwen3 (Qwen3ForCausalLM); Engine<Gpt2<shapes::gpt2_any>> of "
                      "nanovllm/with/gpt2.hpp opens it, and so does make_engine<AllModels> "
                      "of nanovllm/with/any.hpp"));
  CHECK_THAT(error_of("examples/models/fairytale_moe"),
             Contains("this checkpoint is a qwen3_moe") && Contains("Qwen3Moe<shapes::"));
}
