#pragma once
/// How far an engine in one format is from one in another.

#include <cmath>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"

namespace nanovllm::test {

inline SamplingParams greedy(int max_tokens) {
  return {.temperature = 0.f, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
}

/// Log-probabilities of the tokens of `prompt`, but for the first.
template <class SomeEngine>
std::vector<float> of_prompt(SomeEngine& engine, const std::vector<TokenId>& prompt,
                             SamplingParams params = greedy(1)) {
  params.prompt_logprobs = 0;
  const Output output = engine.generate(prompt, params);
  REQUIRE(output.error == "");
  std::vector<float> out;
  for (const auto& entry : output.prompt_logprobs)
    if (entry) out.push_back(entry->logprob);
  return out;
}

/// The mean of |a - b|.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} - double{b[i]});
  return sum / static_cast<double>(a.size());
}

}  // namespace nanovllm::test
