#pragma once
/// Greedy answers of an engine, and whether two engines give the same.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"

namespace nanovllm::test {

/// Greedy tokens and their log-probabilities.
template <class Engine, class Prompts>
std::vector<Trace> traces(Engine& engine, const Prompts& prompts, std::int32_t max_tokens = 24) {
  std::vector<Trace> out;
  const SamplingParams params{
      .temperature = 0, .max_tokens = max_tokens, .ignore_eos = true, .logprobs = 0};
  for (const Output& output : engine.generate(prompts, params)) {
    REQUIRE(output.error.empty());
    out.push_back(trace_of(output));
  }
  return out;
}

/// Equal tokens, and log-probabilities up to `bound`.
inline void check_equal(const std::vector<Trace>& a, const std::vector<Trace>& b,
                        double bound = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("prompt " << i);
    CHECK(a[i].tokens == b[i].tokens);
    REQUIRE(a[i].logprobs.size() == b[i].logprobs.size());
    for (std::size_t j = 0; j < a[i].logprobs.size(); ++j)
      CHECK(std::abs(a[i].logprobs[j] - b[i].logprobs[j]) <= bound);
  }
}

}  // namespace nanovllm::test
