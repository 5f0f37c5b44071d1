#pragma once
/// Checkpoints in 8-bit floats that transformers and compressed-tensors have written
/// (tests/oracle/make_fp8_fixtures.py), against transformers with their dequantised weights.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/with/moe/expert_parallel.hpp"

namespace nanovllm::test {

/// How far the log-probabilities of a prompt are from transformers': of the tokens that the prompt
/// has and of the eight likeliest at each place.
struct Distance {
  double largest = 0, mean = 0;
  bool same_tokens = false;  ///< of the greedy continuation
};

template <class Policy, class Model = AnyModel>
Distance distance_from_transformers(const std::string& name,
                                    const std::string& folder = "tests/fixtures/fp8/",
                                    int ranks = 1, bool expert_parallel = false) {
  std::ifstream stream(folder + name + ".json");
  const auto expected = nlohmann::json::parse(stream);
  const std::vector<TokenId> prompt = expected["prompt"], greedy = expected["greedy_ids"];
  Engine<Model, Policy> engine({.model = folder + name,
                                .tensor_parallel = ranks,
                                .extras = {ExpertParallel{.on = expert_parallel}},
                                .num_threads = 2,
                                .max_model_len = 64,
                                .kv_size = KvSize::blocks(16)});
  const Output output = engine.generate(prompt, {.temperature = 0.f,
                                                 .max_tokens = static_cast<int>(greedy.size()),
                                                 .ignore_eos = true,
                                                 .prompt_logprobs = 8});
  REQUIRE(output.error == "");
  REQUIRE(output.prompt_logprobs.size() == prompt.size());
  Distance out;
  double sum = 0, count = 0;
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    REQUIRE(output.prompt_logprobs[i].has_value());
    const TokenLogprobs& got = *output.prompt_logprobs[i];
    CHECK(got.token_id == prompt[i]);
    const std::vector<double> row = expected["log_probs"][i - 1];
    const auto add = [&](TokenId token, float logprob) {
      const double error = std::abs(double{logprob} - row[static_cast<std::size_t>(token)]);
      out.largest = std::max(out.largest, std::isnan(error) ? 1e9 : error);
      sum += error, ++count;
    };
    add(got.token_id, got.logprob);
    REQUIRE(got.top.size() == 8);
    for (const auto& [token, logprob] : got.top) add(token, logprob);
  }
  out.mean = sum / count;
  out.same_tokens = output.token_ids == greedy;
  return out;
}

inline constexpr const char* kFp8Checkpoints[] = {"block", "ue8m0", "dynamic", "static",
                                                  "ct_block"};
/// Those whose layers have no matrix in 16 bits: nothing is rounded while they are loaded.
[[nodiscard]] inline bool is_all_of_8_bits(const std::string& name) {
  return name != "block" && name != "ue8m0";
}

}  // namespace nanovllm::test
