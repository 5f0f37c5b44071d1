// Defects of nano-vllm that could occur in an engine or a loader, each by its number in our list.
// Those of the block manager, the scheduler and the sampler are tested beside those headers.

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "catch.hpp"
#include "engine/models.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using TestEngine = Engine<Qwen3<shapes::fairytale>, FullFloat32Policy>;

EngineConfig small_config(bool overlap = false) {
  return {.model = model_directory("fairytale"),
          .num_threads = 2,
          .max_num_seqs = 16,
          .max_model_len = 128,
          .overlap = overlap};
}

std::vector<TokenId> prompt_of(std::size_t length) { return random_prompt(3, length, 4096); }

const SamplingParams kGreedy{
    .temperature = 0.f, .max_tokens = 8, .ignore_eos = true, .logprobs = 0};

}  // namespace

TEST_CASE("nano-vllm bug 5: a chunk attends to the chunk's end, not to the whole prompt",
          "[bugs]") {
  EngineConfig chunked = small_config(GENERATE(false, true));
  chunked.max_num_seqs = 4;
  chunked.max_num_batched_tokens = 7;
  TestEngine a(small_config()), b(std::move(chunked));
  const Output whole = a.generate(prompt_of(60), kGreedy),
               parts = b.generate(prompt_of(60), kGreedy);
  CHECK(whole.token_ids == parts.token_ids);
  CHECK(trace_of(whole).logprobs == trace_of(parts).logprobs);
}

TEST_CASE(
    "nano-vllm bug 7: decoding gives the same log-probabilities as prefilling the same tokens",
    "[bugs]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const Output decoded = engine.generate(prompt_of(9), kGreedy);
  std::vector<TokenId> tokens = prompt_of(9);
  for (std::size_t i = 0; i < decoded.token_ids.size(); ++i) {
    TestEngine fresh(small_config());
    const Output prefilled = fresh.generate(
        tokens, {.temperature = 0.f, .max_tokens = 1, .ignore_eos = true, .logprobs = 0});
    CHECK(prefilled.token_ids[0] == decoded.token_ids[i]);
    CHECK(prefilled.logprobs[0].logprob == decoded.logprobs[i].logprob);
    tokens.push_back(decoded.token_ids[i]);
  }
}

TEST_CASE(
    "nano-vllm bug 8: a request larger than the pool is refused, one that outgrows it ends with "
    "'length'",
    "[bugs]") {
  EngineConfig config = small_config(GENERATE(false, true));
  config.kv_size = KvSize::blocks(1);
  TestEngine engine(std::move(config));
  CHECK(engine.max_total_tokens() == 17);
  CHECK_THAT(engine.generate(prompt_of(17), kGreedy).error, Catch::Matchers::Contains("17 tokens"));
  const Output full = engine.generate(prompt_of(16), kGreedy);
  CHECK(full.finish_reason == FinishReason::length);
  CHECK(full.token_ids.size() == 1);
  const Output grown =
      engine.generate(prompt_of(10), {.temperature = 0.f, .max_tokens = 50, .ignore_eos = true});
  CHECK(grown.finish_reason == FinishReason::length);
  CHECK(grown.token_ids.size() == 7);
  // Several at once take turns.
  for (const Output& output :
       engine.generate(std::vector<Prompt>(4, Prompt(prompt_of(5))), kGreedy)) {
    CHECK(output.token_ids.size() == 8);
  }
  engine.check_invariants();
}

TEST_CASE("nano-vllm bug 10: a prompt beyond max_model_len is that request's error", "[bugs]") {
  TestEngine engine(small_config(GENERATE(false, true)));
  const auto outputs =
      engine.generate(std::vector<Prompt>{prompt_of(128), prompt_of(127), prompt_of(4)}, kGreedy);
  CHECK_THAT(outputs[0].error, Catch::Matchers::Contains("max_model_len 128"));
  CHECK(outputs[1].finish_reason == FinishReason::length);
  CHECK(outputs[1].token_ids.size() == 1);
  CHECK(outputs[2].token_ids.size() == 8);
}

TEST_CASE("nano-vllm bug 11: any max_num_seqs works", "[bugs]") {
  const bool overlap = GENERATE(false, true);
  for (int max_num_seqs : {1, 3, 17}) {
    EngineConfig config = small_config(overlap);
    config.max_num_seqs = max_num_seqs;
    TestEngine engine(std::move(config));
    for (const Output& output :
         engine.generate(std::vector<Prompt>(18, Prompt(prompt_of(5))), kGreedy)) {
      CHECK(output.token_ids.size() == 8);
    }
  }
}

TEST_CASE(
    "a checkpoint of another shape than the engine's is refused by the first size that differs",
    "[bugs]") {
  EngineConfig config = small_config();
  config.model = model_directory("group1_tied_yarn");
  config.max_model_len.reset();
  CHECK_THROWS_WITH(TestEngine(std::move(config)), Catch::Matchers::Contains("hidden_size"));
}

TEST_CASE("nano-vllm bugs 12 and 13: engines of different block sizes and ranks run side by side",
          "[bugs]") {
  std::vector<std::vector<TokenId>> tokens(3);
  std::vector<std::thread> threads;
  threads.emplace_back(
      [&] { tokens[0] = TestEngine(small_config()).generate(prompt_of(40), kGreedy).token_ids; });
  threads.emplace_back([&] {
    Engine<Qwen3<shapes::fairytale>, TestPolicy<FullFloat32Policy, 32>> engine(small_config());
    tokens[1] = engine.generate(prompt_of(40), kGreedy).token_ids;
  });
  threads.emplace_back([&] {
    EngineConfig config = small_config();
    config.tensor_parallel = 2;
    Engine<Qwen3<shapes::fairytale>, TestPolicy<FullFloat32Policy, 8>> engine(std::move(config));
    tokens[2] = engine.generate(prompt_of(40), kGreedy).token_ids;
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(tokens[0].size() == 8);
  CHECK(tokens[1] == tokens[0]);
  CHECK(tokens[2] == tokens[0]);
}

TEST_CASE(
    "nano-vllm bug 15: every end token of config.json and generation_config.json ends generation",
    "[bugs]") {
  TestEngine engine(small_config());
  CHECK(engine.model_config().eos_token_ids == std::vector<TokenId>{4091, 4093});
}

TEST_CASE("nano-vllm bug 16: biases and rope scalings we do not compute are refused, not ignored",
          "[bugs]") {
  std::ifstream stream(model_directory("fairytale") / "config.json");
  const auto config = nlohmann::json::parse(stream);
  CHECK_NOTHROW(Qwen3Config::from_json(config.dump()));
  auto biased = config;
  biased["attention_bias"] = true;
  CHECK_THROWS_WITH(Qwen3Config::from_json(biased.dump()),
                    Catch::Matchers::Contains("attention_bias"));
  for (const char* type : {"linear", "dynamic", "llama3", "longrope", "new"}) {
    auto scaled = config;
    scaled["rope_parameters"]["rope_type"] = type;
    scaled["rope_parameters"]["factor"] = 4.0;
    CHECK_THROWS_WITH(Qwen3Config::from_json(scaled.dump()), Catch::Matchers::Contains(type));
  }
}

TEST_CASE("nano-vllm bug 17: weights that are missing or left over are named, all at once",
          "[bugs]") {
  // The shape of another model: nearly every tensor of the checkpoint is wrong for it.
  const Checkpoint checkpoint(model_directory("group4_untied_sharded"));
  Qwen3Config config = Qwen3Config::load(model_directory("group4_untied_sharded"));
  config.num_hidden_layers = 3;
  config.tie_word_embeddings = true;
  CpuBackend backend({.num_threads = 1});
  Single comm = Single::make(1)[0];
  Qwen3Network<shapes::qwen3_any, Elements<float>, CpuBackend, Single> network(
      config, {.max_num_batched_tokens = 8, .max_num_seqs = 8, .max_model_len = 16}, backend, comm);
  CHECK_THROWS_WITH(network.weights().load(checkpoint, backend),
                    Catch::Matchers::Contains("model.layers.2.self_attn.q_proj.weight") &&
                        Catch::Matchers::Contains("model.layers.2.mlp.down_proj.weight"));
}

TEST_CASE("nano-vllm bug 19: engines can be made and destroyed many times, idle or busy",
          "[bugs]") {
  for (int i = 0; i < 20; ++i) {
    EngineConfig config = small_config(i % 4 < 2);
    config.tensor_parallel = 1 + i % 2;
    config.kv_size = KvSize::blocks(20);
    TestEngine engine(std::move(config));
    engine.submit(prompt_of(20), {.max_tokens = 50});
    for (int step = 0; step < i % 3; ++step) engine.step();
  }
}

TEST_CASE("nano-vllm bug 21: equal prompts that start in one step share nothing they should not",
          "[bugs]") {
  const bool overlap = GENERATE(false, true);
  TestEngine engine(small_config(overlap));
  const Output alone = engine.generate(prompt_of(50), kGreedy);
  for (const Output& output :
       engine.generate(std::vector<Prompt>(6, Prompt(prompt_of(50))), kGreedy)) {
    CHECK(output.token_ids == alone.token_ids);
    CHECK(trace_of(output).logprobs == trace_of(alone).logprobs);
  }
  EngineConfig uncached = small_config(overlap);
  uncached.prefix_caching = false;
  TestEngine cold(std::move(uncached));
  for (const Output& output :
       cold.generate(std::vector<Prompt>(6, Prompt(prompt_of(50))), kGreedy)) {
    CHECK(output.token_ids == alone.token_ids);
    CHECK(output.num_cached_tokens == 0);
  }
  engine.check_invariants();
}
