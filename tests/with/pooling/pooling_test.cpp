// Requests whose outcome is a vector, on the CPU backend.

#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static bool backend_present() { return true; }

#include "with/pooling/pooling_cases.hpp"

TEST_CASE("two ranks give the vectors of one", "[pooling][laws]") {
  const PooledWork work = pooled_work(12);
  std::vector<std::vector<Output>> outputs;
  for (const int ranks : {1, 2}) {
    EngineConfig config = pooling_config();
    config.tensor_parallel = ranks;
    Engine<AnyModel, FullFloat32Policy> engine(std::move(config));
    outputs.push_back(engine.generate(work.prompts, work.params));
  }
  for (std::size_t i = 0; i < work.prompts.size(); ++i) {
    CAPTURE(i);
    CHECK(outputs[1][i].error == "");
    CHECK(outputs[0][i].token_ids == outputs[1][i].token_ids);
    CHECK(largest_difference(outputs[0][i].pooled, outputs[1][i].pooled) <= 5e-5f);
  }
}

TEST_CASE("pooling needs a network that gives hidden states", "[pooling]") {
  Inbox inbox;
  Frontend frontend(TextSide{},
                    {.vocab_size = 10,
                     .max_model_len = 20,
                     .max_total_tokens = 20,
                     .honoured = {.pooler = false}},
                    inbox);
  SamplingParams params = pooled(std::make_shared<LastTokenPooler>());
  CHECK_THROWS_WITH(
      frontend.submit(std::vector<TokenId>{1, 2}, params, {}),
      Catch::Matchers::Contains("pooler needs a network and an executor that give hidden states"));
  params.pooler.reset();
  CHECK(frontend.submit(std::vector<TokenId>{1, 2}, params, {}) != nullptr);
}
