// Policies of programs: drafters where a SpeculativeConfig is set, and nothing otherwise.

#include "nanovllm/with/speculation/drafts_on_demand.hpp"

#include <cstdint>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/full_policy.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

EngineConfig config_with(const std::optional<SpeculativeConfig>& speculation) {
  EngineConfig out{.model = model_directory("fairytale"),
                   .num_threads = 1,
                   .max_num_seqs = 4,
                   .max_model_len = 256,
                   .seed = 1};
  if (speculation) out.extras.set(*speculation);
  return out;
}

struct Run {
  std::vector<std::vector<TokenId>> tokens;
  EngineStats stats;
};

Run run(const std::optional<SpeculativeConfig>& speculation) {
  Engine<AnyModel, FullPolicy> engine(config_with(speculation));
  Run out;
  const SamplingParams greedy{.temperature = 0, .max_tokens = 40, .ignore_eos = true};
  const SamplingParams sampled{.temperature = 0.8f, .seed = 5, .max_tokens = 40};
  for (const SamplingParams& params : {greedy, sampled}) {
    const Output output =
        engine.generate("The king and the queen, the king and the queen, the", params);
    out.tokens.push_back(output.token_ids);
  }
  out.stats = engine.stats();
  return out;
}

}  // namespace

TEST_CASE("full policies draft on demand, and give the same tokens", "[speculation]") {
  const Run plain = run({});
  CHECK(plain.stats.extras.find<SpeculationStats>() == nullptr);
  const Run ngram = run(SpeculativeConfig{.num_speculative_tokens = 3,
                                          .prompt_lookup_max = 3,
                                          .prompt_lookup_min = 1,
                                          .adaptive = false});
  CHECK(ngram.tokens == plain.tokens);
  CHECK(ngram.stats.of<SpeculationStats>().num_accepted > 0);
  CHECK(ngram.stats.num_steps < plain.stats.num_steps);

  int num_made = 0;
  const Run drafted =
      run(SpeculativeConfig{.method = "draft_model",
                            .model = model_directory("fairytale"),
                            .model_kv_size = KvSize::blocks(100),
                            .num_speculative_tokens = 3,
                            .adaptive = false,
                            .make_engine = [&](const EngineConfig& config) {
                              ++num_made;
                              return make_engine<Models<AnyModel>, FullPolicy>(config);
                            }});
  CHECK(num_made == 1);
  CHECK(drafted.tokens == plain.tokens);
  // The same model: what it drafts is right.
  const auto counts = drafted.stats.of<SpeculationStats>();
  CHECK(counts.num_accepted > counts.num_drafted / 2);
}

TEST_CASE("a draft model wants somebody who makes its engine", "[speculation]") {
  CHECK_THROWS_WITH(run(SpeculativeConfig{.method = "draft_model", .model = "small"}),
                    "SpeculativeConfig::make_engine must be set for the method draft_model of a "
                    "policy with DraftsOnDemand");
}

TEST_CASE("what a draft model lacks is told of the draft model", "[speculation]") {
  const auto made = [](const EngineConfig& config) {
    return make_engine<Models<AnyModel>, FullPolicy>(config);
  };
  CHECK_THROWS_WITH(
      run(SpeculativeConfig{.method = "draft_model", .model = "/nowhere", .make_engine = made}),
      Catch::StartsWith("the draft model: ") && Catch::Contains("/nowhere"));
}

TEST_CASE("a head in the place of a draft model is told to be one", "[speculation]") {
  CHECK_THROWS_WITH(
      run(SpeculativeConfig{.method = "draft_model", .model = "tests/fixtures/eagle3/angelslim"}),
      "'tests/fixtures/eagle3/angelslim' is an EAGLE-3 head: expected the speculative method "
      "eagle3 for it, got draft_model");
}

TEST_CASE("full policies draft with an EAGLE-3 head, on each number of ranks", "[speculation]") {
  const Qwen3Config model = Qwen3Config::from_json(
      R"({"model_type": "qwen3", "hidden_size": 24, "num_hidden_layers": 6,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "intermediate_size": 40, "vocab_size": 61, "max_position_embeddings": 96,
          "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true})");
  const std::vector<TokenId> prompt = random_prompt(1, 20, 61);
  for (const int num_ranks : {1, 2}) {
    CAPTURE(num_ranks);
    std::vector<std::vector<TokenId>> tokens;
    for (const std::int32_t num_drafts : {0, 3}) {
      EngineConfig config{.tensor_parallel = num_ranks, .num_threads = 1, .max_num_seqs = 4};
      config.extras.set(SpeculativeConfig{.method = "eagle3",
                                          .model = "tests/fixtures/eagle3/angelslim",
                                          .num_speculative_tokens = num_drafts,
                                          .adaptive = false});
      Engine<AnyModel, FullPolicy> engine(model, RandomWeights{3}, config);
      tokens.push_back(
          engine.generate(prompt, {.temperature = 0.9f, .seed = 5, .max_tokens = 30}).token_ids);
      const auto counts = engine.stats().of<SpeculationStats>();
      CHECK(counts.num_failed == 0);
      CHECK((counts.num_drafted > 60) == (num_drafts > 0));
    }
    CHECK(tokens[0].size() == 30);
    CHECK(tokens[0] == tokens[1]);
  }
  CHECK_THROWS_WITH(
      run(SpeculativeConfig{.method = "eagle3", .model = "tests/fixtures/eagle3/angelslim"}),
      Catch::Contains("'hidden_size' is 24, the target's ") &&
          Catch::Contains("'vocab_size' is 61, the target's 4096"));
}
