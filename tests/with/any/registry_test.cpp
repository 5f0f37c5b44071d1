#include "nanovllm/with/any/registry.hpp"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "weights_there.hpp"

using namespace nanovllm;
using namespace nanovllm::shapes;
using Catch::Matchers::Contains;

namespace {

static_assert(std::is_same_v<ModelOf<qwen3_8b>, Qwen3<qwen3_8b>>);
static_assert(std::is_same_v<ModelOf<gpt2_any>, Gpt2<gpt2_any>>);
static_assert(std::is_same_v<JoinedModels<ModelsOf<qwen3_8b>, ModelsOf<gpt2, gpt2_any>, Models<>>,
                             Models<Qwen3<qwen3_8b>, Gpt2<gpt2>, Gpt2<gpt2_any>>>);
static_assert(FoundModel<Qwen3<qwen3_any>> && FoundModel<Gpt2<gpt2>>);

/// A family that takes every config of it.
struct Plain {
  using Config = Gpt2Config;
  static constexpr ModelFamily kFamily{.model_type = "plain", .architecture = "PlainLM"};
  template <class Elements, class Backend, class Communicator>
  struct Network {};
};

/// A model without a family.
struct Nameless {
  using Config = Gpt2Config;
  template <class Elements, class Backend, class Communicator>
  struct Network {};
};
static_assert(FoundModel<Plain> && ModelLike<Nameless> && !FoundModel<Nameless>);

template <class Model>
constexpr const char* kName = "none";
template <>
constexpr const char* kName<Qwen3<fairytale>> = "fairytale";
template <>
constexpr const char* kName<Qwen3<qwen3_any>> = "any Qwen3";
template <>
constexpr const char* kName<Gpt2<tiny_gpt2>> = "tiny_gpt2";
template <>
constexpr const char* kName<Gpt2<gpt2_any>> = "any GPT-2";
template <>
constexpr const char* kName<Qwen3Moe<qwen3_30b_a3b>> = "30B-A3B";
template <>
constexpr const char* kName<Qwen3Moe<qwen3_moe_any>> = "any mixture of experts";
template <>
constexpr const char* kName<Plain> = "plain";

template <class List>
std::string chosen(const Checkpoint& checkpoint) {
  std::string out;
  with_model<List>(checkpoint, [&]<class Model>() { out += kName<Model>; });
  return out;
}

template <class List>
std::string chosen_by(const std::string& config) {
  nanovllm_test::MemoryCheckpoint files;
  files.texts["config.json"] = config;
  return chosen<List>(Checkpoint(std::move(files)));
}

const Checkpoint kFairytale = "examples/models/fairytale";
const char* const kTinyGpt2 = "examples/models/tiny_gpt2";

}  // namespace

TEST_CASE("the first model of the list that fits the checkpoint is chosen", "[registry]") {
  CHECK(chosen<AllModels>(kFairytale) == "any Qwen3");
  using Fixed = ModelsOf<tiny_gpt2, gpt2_any, fairytale, qwen3_any>;
  CHECK(chosen<Fixed>(kFairytale) == "fairytale");
  CHECK(chosen<ModelsOf<qwen3_any, fairytale>>(kFairytale) == "any Qwen3");
  CHECK(chosen<ModelsOf<qwen3_0_6b, gpt2, qwen3_any>>(kFairytale) == "any Qwen3");
  if (!test::weights_there("tiny_gpt2")) return;
  CHECK(chosen<AllModels>(kTinyGpt2) == "any GPT-2");
  CHECK(chosen<Fixed>(kTinyGpt2) == "tiny_gpt2");
}

TEST_CASE("a family is known by its architecture, and without one by its type", "[registry]") {
  using List = Models<Plain>;
  CHECK(chosen_by<List>(R"({"architectures": ["PlainLM"]})") == "plain");
  CHECK(chosen_by<List>(R"({"architectures": ["Another", "PlainLM"]})") == "plain");
  CHECK(chosen_by<List>(R"({"model_type": "plain"})") == "plain");
  CHECK(chosen_by<List>(R"({"model_type": "plain", "architectures": []})") == "plain");
  CHECK(chosen_by<List>(R"({"model_type": "plain", "architectures": null})") == "plain");
  CHECK_THROWS_AS(chosen_by<List>(R"({"model_type": "PlainLM"})"), UnsupportedModelError);
  CHECK_THROWS_WITH(
      chosen_by<List>(R"({"model_type": "plain", "architectures": ["PlainForScores"]})"),
      "memory/config.json: 'model_type' is \"plain\", 'architectures' has \"PlainForScores\", but "
      "this program was built for plain (PlainLM); docs/adding_a_model.md says how it takes "
      "others");
}

TEST_CASE("a family has architectures with another head and without one", "[registry]") {
  std::string fairytale_text = kFairytale.required_text("config.json");
  const auto with_architecture = [&](const std::string& name) {
    std::string text = fairytale_text;
    const std::string own = "Qwen3ForCausalLM";
    return text.replace(text.find(own), own.size(), name);
  };
  CHECK(chosen_by<AllModels>(with_architecture("Qwen3ForSequenceClassification")) == "any Qwen3");
  CHECK(chosen_by<AllModels>(with_architecture("Qwen3Model")) == "any Qwen3");
  CHECK_THROWS_AS(chosen_by<AllModels>(with_architecture("")), UnsupportedModelError);
  CHECK_THROWS_AS(chosen_by<AllModels>(with_architecture("Qwen3ForTokenClassification")),
                  UnsupportedModelError);
}

TEST_CASE("a mixture of experts is found by programs that name it or all models",
          "[registry][moe]") {
  const std::string head = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": )";
  using List = JoinedModels<ModelsOf<qwen3_30b_a3b>, AllModels>;
  CHECK(chosen_by<List>(head + "768}") == "30B-A3B");
  CHECK(chosen_by<List>(head + "769}") == "any mixture of experts");
  CHECK(chosen_by<AllModels>(head + "768}") == "any mixture of experts");
  CHECK(chosen<List>(kFairytale) == "any Qwen3");
  CHECK_THROWS_WITH((chosen_by<ModelsOf<qwen3_any, gpt2_any>>(head + "768}")),
                    Contains("'architectures' has \"Qwen3MoeForCausalLM\", but this program was "
                             "built for qwen3 (Qwen3ForCausalLM), gpt2"));
}

TEST_CASE("a checkpoint of another model is refused with what came and what there is",
          "[registry]") {
  const char* const llama = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})";
  CHECK_THROWS_WITH(chosen_by<PublishedModels>(llama),
                    "memory/config.json: 'model_type' is \"llama\", 'architectures' has "
                    "\"LlamaForCausalLM\", but this program was built for qwen3 "
                    "(Qwen3ForCausalLM), gpt2 (GPT2LMHeadModel), qwen3_moe (Qwen3MoeForCausalLM); "
                    "docs/adding_a_model.md says how "
                    "it takes others");
  CHECK_THROWS_WITH(chosen_by<Models<>>(llama),
                    Contains("but this program was built for no model"));
  CHECK_THROWS_AS(chosen<ModelsOf<gpt2_any>>(kFairytale), UnsupportedModelError);
  CHECK_THROWS_AS(chosen<ModelsOf<gpt2_any>>(kFairytale), ConfigError);
}

TEST_CASE("a checkpoint of other sizes is refused with the sizes of each model of its family",
          "[registry]") {
  CHECK_THROWS_WITH((chosen<ModelsOf<qwen3_0_6b, gpt2, qwen3_8b>>(kFairytale)),
                    Contains("fairytale/config.json: this program was not built for a model of "
                             "these sizes\n  - 'hidden_size' is 1024 at compile time but 256 in "
                             "config.json; 'num_hidden_layers' is 28") &&
                        Contains("\n  - 'hidden_size' is 4096 at") && !Contains("n_embd"));
  CHECK_THROWS_AS(chosen<ModelsOf<qwen3_0_6b>>(kFairytale), UnsupportedModelError);
}

TEST_CASE("a config.json that does not say what it is of is refused by name", "[registry]") {
  CHECK_THROWS_WITH(chosen_by<AllModels>("{}"),
                    Contains("memory/config.json") &&
                        Contains("there is neither 'model_type' nor 'architectures'"));
  CHECK_THROWS_AS(chosen_by<AllModels>("{}"), ConfigError);
  CHECK_THROWS_WITH(chosen_by<AllModels>("[]"), Contains("expected a JSON object, got"));
  for (const char* text : {R"({"architectures": "GPT2LMHeadModel"})", R"({"architectures": [1]})"})
    CHECK_THROWS_WITH(chosen_by<AllModels>(text), Contains("'architectures' must be a list"));
  CHECK_THROWS_WITH(chosen_by<AllModels>(R"({"architectures": ["PlainLM", 5]})"),
                    Contains("a list of strings, got 5"));
  CHECK_THROWS_WITH(chosen_by<AllModels>(R"({"model_type": 3})"), Contains("'model_type' must be"));
  CHECK_THROWS_WITH(chosen<AllModels>("/nowhere"), "there is no '/nowhere/config.json'");
  // What it is of is then read as always.
  CHECK_THROWS_WITH(chosen_by<AllModels>(R"({"architectures": ["GPT2LMHeadModel"]})"),
                    Contains("'model_type' is missing") && Contains("n_embd"));
}

TEST_CASE("an engine of a named model takes no checkpoint of another family", "[registry]") {
  const auto check_config = [](const char* config) {
    nanovllm_test::MemoryCheckpoint files;
    if (config != nullptr) files.texts["config.json"] = config;
    detail::check_family(Checkpoint(std::move(files)), Plain::kFamily);
  };
  const char* const kNothing = nullptr;
  for (const char* config : {R"({"model_type": "plain", "architectures": ["Other"]})",
                             R"({"architectures": ["PlainLM"]})", "{}", "[]", "{",
                             R"({"architectures": 3})", kNothing}) {
    CAPTURE(config == nullptr ? "no file" : config);
    CHECK_NOTHROW(check_config(config));  // what is wrong with it the model's config says
  }
  CHECK_THROWS_WITH(check_config(R"({"model_type": "llama"})"),
                    "memory/config.json: this checkpoint is a llama, but the engine was made for a "
                    "plain (PlainLM); no model here opens it");
  CHECK_THROWS_WITH(
      check_config(R"({"architectures": ["GPT2LMHeadModel"]})"),
      Contains("is a GPT2LMHeadModel") &&
          Contains("Engine<Gpt2<shapes::gpt2_any>> of nanovllm/with/gpt2.hpp opens it"));
}
