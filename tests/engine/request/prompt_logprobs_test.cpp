// Log-probabilities of prompts on the CPU backend.

#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

using BackendFloat32 = nanovllm::Float32Policy;
static bool backend_present() { return true; }

#include "engine/request/prompt_logprobs_cases.hpp"

TEST_CASE("prompt_logprobs need an executor with deferred steps", "[prompt_logprobs]") {
  Inbox inbox;
  Frontend frontend(
      TextSide{},
      {.vocab_size = 10, .max_model_len = 20, .max_total_tokens = 20, .honoured = {.edits = false}},
      inbox);
  SamplingParams params;
  params.prompt_logprobs = 0;
  CHECK_THROWS_WITH(
      frontend.submit(std::vector<TokenId>{1, 2}, params, {}),
      Catch::Matchers::Contains("prompt_logprobs needs an executor with deferred steps"));
  params.prompt_logprobs.reset();
  CHECK(frontend.submit(std::vector<TokenId>{1, 2}, params, {}) != nullptr);
}
