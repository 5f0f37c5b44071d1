#include "nanovllm/with/any/make_engine.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/full_policy.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/with/any/all_models.hpp"
#include "nanovllm/with/sessions.hpp"
#include "weights_there.hpp"
#include "with/gpt2/parity/gpt2_checkpoint.hpp"
#include "with/moe/parity/qwen3_moe_checkpoint.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using nanovllm_test::MemoryCheckpoint;

namespace {

const SamplingParams kGreedy{.temperature = 0, .max_tokens = 12, .ignore_eos = true};

EngineConfig config_of(const std::filesystem::path& model) {
  return {.model = model, .num_threads = 1};
}

std::vector<TokenId> tokens(AnyEngine& engine, const Prompt& prompt) {
  std::vector<TokenId> out;
  engine.submit(prompt, kGreedy, [&](const TokenEvent& event) {
    if (event.output != nullptr) out = event.output->token_ids;
  });
  while (engine.step()) {
  }
  return out;
}

/// The same of the engine whose model is named.
template <class Model>
std::vector<TokenId> direct_tokens(const std::filesystem::path& model, const Prompt& prompt) {
  Engine<Model, Float32Policy> engine(config_of(model));
  return engine.generate({prompt}, kGreedy)[0].token_ids;
}

}  // namespace

TEST_CASE("the engine of a checkpoint is that of its model", "[registry]") {
  if (!weights_there("tiny_gpt2")) return;
  const Prompt prompt = "Once upon a time";
  const auto qwen3 = make_engine<AllModels, Float32Policy>(config_of("examples/models/fairytale"));
  const auto gpt2 = make_engine<AllModels, Float32Policy>(config_of("examples/models/tiny_gpt2"));
  const std::vector<TokenId> by_qwen3 = tokens(*qwen3, prompt), by_gpt2 = tokens(*gpt2, prompt);
  CHECK(by_qwen3.size() == 12);
  CHECK(by_qwen3 == direct_tokens<Qwen3<shapes::qwen3_any>>("examples/models/fairytale", prompt));
  CHECK(by_gpt2.size() == 12);
  CHECK(by_gpt2 == direct_tokens<Gpt2<shapes::gpt2_any>>("examples/models/tiny_gpt2", prompt));
  CHECK(qwen3->vocab_size() == 4096);
  CHECK(gpt2->vocab_size() == 3072);

  // It has sessions, as the engine of a named model.
  Session session(*gpt2);
  CHECK(session.generate(prompt, kGreedy).token_ids == by_gpt2);
  const nanovllm_test::TempDirectory directory;
  session.save(directory.path() / "session");
  CHECK(Session::load(*gpt2, directory.path() / "session").tokens() == session.tokens());
}

TEST_CASE("an engine without a type takes what one with a type takes", "[registry]") {
  const auto any = make_engine<AllModels, Float32Policy>(config_of("examples/models/fairytale"));
  const std::vector<TokenId> once = any->generate("Once upon a time", kGreedy).token_ids;
  CHECK(once.size() == 12);
  const std::vector<TokenId> fox = any->generate(std::string("The fox"), kGreedy).token_ids;
  const auto check_both = [&](const std::vector<Output>& outputs) {
    REQUIRE(outputs.size() == 2);
    CHECK(outputs[0].token_ids == once);
    CHECK(outputs[1].token_ids == fox);
  };
  check_both(any->generate({"Once upon a time", "The fox"}, kGreedy));
  check_both(any->generate(std::vector<std::string>{"Once upon a time", "The fox"}, kGreedy));
  const std::vector<Prompt> prompts{"Once upon a time", "The fox"};
  check_both(any->generate(prompts, kGreedy));
  check_both(any->generate(std::span(prompts), kGreedy));
  SamplingParams three = kGreedy;
  three.max_tokens = 3;
  const std::vector<Output> each = any->generate(prompts, std::vector{three, kGreedy});
  CHECK(each[0].token_ids.size() == 3);
  CHECK(each[1].token_ids == fox);
  CHECK_THROWS_AS(any->generate(prompts, std::vector{three}), RequestError);
}

TEST_CASE("a checkpoint in memory gives the tokens of its files", "[registry][checkpoint]") {
  const auto check_model = [](const std::filesystem::path& model, const Prompt& prompt,
                              int max_ranks) {
    const Checkpoint memory(MemoryCheckpoint::copy_of(Checkpoint(model)));
    const auto expected = tokens(*make_engine<AllModels, Float32Policy>(config_of(model)), prompt);
    CHECK(expected.size() == 12);
    for (int num_ranks = 1; num_ranks <= max_ranks; ++num_ranks) {  // which read it at once
      const auto engine = make_engine<AllModels, FullFloat32Policy>(
          {.checkpoint = memory, .tensor_parallel = num_ranks, .num_threads = 2});
      CHECK(engine->text().tokenizer.has_value());
      CHECK(tokens(*engine, prompt) == expected);
    }
  };
  check_model("examples/models/fairytale", "Once upon a time", 2);
  if (weights_there("tiny_gpt2"))
    check_model("examples/models/tiny_gpt2", "Once upon a time", 1);  // has three heads
}

TEST_CASE("a GPT-2 with weights of a formula runs without a tokeniser", "[registry][gpt2]") {
  const Gpt2Files files({{"model_type", "gpt2"},
                         {"n_embd", 64},
                         {"n_head", 2},
                         {"n_layer", 2},
                         {"n_positions", 64},
                         {"vocab_size", 83}},
                        9);
  const auto engine = make_engine<AllModels, Float32Policy>(config_of(files.path()));
  const Prompt prompt = random_prompt(1, 10, 83);
  CHECK(tokens(*engine, prompt) == direct_tokens<Gpt2<shapes::gpt2_any>>(files.path(), prompt));
  CHECK(engine->max_total_tokens() == 64);
  CHECK_THROWS_WITH(engine->submit("text", {}, {}),
                    Catch::Matchers::Contains("the checkpoint has no tokenizer.json"));
}

TEST_CASE("all models have the mixtures of experts", "[registry][moe]") {
  const MoeFiles files({{"architectures", {"Qwen3MoeForCausalLM"}},
                        {"model_type", "qwen3_moe"},
                        {"hidden_size", 32},
                        {"num_hidden_layers", 2},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 16},
                        {"intermediate_size", 48},
                        {"moe_intermediate_size", 24},
                        {"num_experts", 8},
                        {"num_experts_per_tok", 2},
                        {"vocab_size", 83},
                        {"max_position_embeddings", 64},
                        {"rms_norm_eps", 1e-6},
                        {"rope_theta", 1e4}},
                       5);
  const auto engine = make_engine<AllModels, Float32Policy>(config_of(files.path()));
  const Prompt prompt = random_prompt(1, 10, 83);
  CHECK(tokens(*engine, prompt) ==
        direct_tokens<Qwen3Moe<shapes::qwen3_moe_any>>(files.path(), prompt));
  const auto gives_text = engine->generate(std::vector<Prompt>{prompt}, kGreedy);
  CHECK(gives_text.at(0).token_ids.size() == 12);
  CHECK(embed(*engine, prompt).size() == 32);
  CHECK(engine->hidden_size() == 32);
  CHECK_THROWS_WITH(engine->tokenizer(), "the checkpoint has no tokenizer.json");
}

TEST_CASE("a GPT-2's engine names a checkpoint of another model", "[registry][gpt2]") {
  using Gpt2Engine = Engine<Gpt2<shapes::gpt2_any>, Float32Policy>;
  CHECK_THROWS_WITH(
      Gpt2Engine({.model = "examples/models/fairytale"}),
      Catch::Matchers::Contains("this checkpoint is a qwen3, but the engine was made for a gpt2"));
}

TEST_CASE("weights that a checkpoint in memory lacks are named with its name", "[checkpoint]") {
  MemoryCheckpoint files;
  files.texts["config.json"] = MappedFile("examples/models/tiny_gpt2/config.json").text();
  files.add("wte.weight", FileDType::f32, {3072, 192}, std::string(4 * 3072 * 192, '\0'));
  files.add("wpe.weight", FileDType::f32, {1024, 192}, std::string(4 * 1024 * 192, '\0'));
  files.add("more", FileDType::f32, {1 << 21}, std::string(4 << 21, '\0'));
  CHECK_THROWS_WITH((make_engine<AllModels, Float32Policy>(
                        {.checkpoint = Checkpoint(std::move(files)), .num_threads = 1})),
                    Catch::Matchers::Contains("'memory' does not hold this model's weights") &&
                        Catch::Matchers::Contains("'wpe.weight' must have shape [512, 192]") &&
                        Catch::Matchers::Contains("'more' [2097152] is in the checkpoint"));
}
