// GPT-2 on the CPU backend: against Hugging Face transformers, and what ranks and text do.

#include "nanovllm/full_policy.hpp"
#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
using BackendBfloat16 = nanovllm::DefaultPolicy;
static bool backend_present() { return true; }

#include "with/gpt2/parity/gpt2_cases.hpp"

TEST_CASE("GPT-2 on two ranks is GPT-2 on one", "[gpt2][laws]") {
  nlohmann::json config = two_heads();
  config["n_inner"] = 90;
  const Gpt2Files files(config, 10);
  std::vector<std::vector<TokenId>> prompts;
  for (std::uint64_t i = 0; i < 4; ++i) prompts.push_back(random_prompt(i, 1 + 20 * i, 83));
  Engine<AnyGpt2, FullFloat32Policy> one({.model = files.path(), .num_threads = 2});
  Engine<AnyGpt2, FullFloat32Policy> two(
      {.model = files.path(), .tensor_parallel = 2, .num_threads = 2});
  check_equal(traces(two, prompts), traces(one, prompts));

  config["n_head"] = 1, config["n_inner"] = 91;
  const Gpt2Files odd(config, 10);
  using Gpt2Engine = Engine<AnyGpt2, FullFloat32Policy>;
  CHECK_THROWS_WITH(Gpt2Engine({.model = odd.path(), .tensor_parallel = 2}),
                    Catch::Matchers::Contains("does not divide n_head = 1, n_inner = 91"));
}

TEST_CASE("tiny_gpt2's tokeniser is that of Hugging Face, and it tells stories", "[gpt2][text]") {
  if (!weights_there("tiny_gpt2")) return;
  const Reference reference("tiny_gpt2", "float32");
  Engine<AnyGpt2, DefaultPolicy> engine({.model = "examples/models/tiny_gpt2", .num_threads = 2});
  for (const auto& entry : reference.texts()) {
    const std::string text = entry[0];
    INFO(text);
    CHECK(engine.tokenizer().encode(text) == entry[1].get<std::vector<TokenId>>());
  }
  const Output output = engine.generate("Once upon a time", {.seed = 1, .max_tokens = 60});
  CHECK(output.error.empty());
  CHECK(output.text.find(' ') != std::string::npos);

  // It ends where its checkpoint says, at <|endoftext|>, and does not chat.
  CHECK(engine.tokenizer().encode("<|endoftext|>") == engine.model_config().eos_token_ids);
  CHECK_THROWS_WITH(engine.submit(ChatPrompt{.messages = {{"user", "Who are you?"}}}),
                    Catch::Matchers::Contains("messages need a chat template"));
}
