#pragma once
/// What the benchmark asks of the engine.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/engine/request/prompt.hpp"
#include "nanovllm/sampling/sampling_params.hpp"
#include "python_random.hpp"

namespace engine_bench {

/// Prompts, and how many tokens each is to be continued by.
struct Workload {
  std::vector<nanovllm::Prompt> prompts;
  std::vector<nanovllm::SamplingParams> params;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
};

/// Exactly `max_tokens` tokens, at nano-vllm's temperature and without filters, whatever the
/// checkpoint's generation_config.json says.
[[nodiscard]] inline nanovllm::SamplingParams sampling(std::int64_t max_tokens) {
  return {.temperature = 0.6f,
          .top_k = 0,
          .top_p = 1.f,
          .min_p = 0.f,
          .max_tokens = static_cast<std::int32_t>(max_tokens),
          .ignore_eos = true};
}

/// `length` tokens of [0, 10000]. The remainder keeps the draws the same for a small vocabulary.
[[nodiscard]] inline std::vector<nanovllm::TokenId> random_prompt(PythonRandom& random,
                                                                  std::int64_t length,
                                                                  std::int64_t vocab_size) {
  std::vector<nanovllm::TokenId> tokens;
  for (std::int64_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<nanovllm::TokenId>(random.randint(0, 10'000) % vocab_size));
  return tokens;
}

/// The workload of nano-vllm's bench.py, which by default is 256 prompts of 142,827 tokens together
/// and 133,966 tokens to generate. The seed and the order of the draws are those of bench.py: for
/// every prompt its length in [100, max_input] and its tokens, then all output lengths in
/// [100, max_output].
[[nodiscard]] inline Workload make_workload(std::int64_t num_seqs, std::int64_t max_input,
                                            std::int64_t max_output, std::int64_t vocab_size) {
  Workload out;
  PythonRandom random(0);
  for (std::int64_t i = 0; i < num_seqs; ++i) {
    const std::int64_t length = random.randint(100, max_input);
    out.prompts.emplace_back(random_prompt(random, length, vocab_size));
    out.num_prompt_tokens += length;
  }
  for (std::int64_t i = 0; i < num_seqs; ++i) {
    out.params.push_back(sampling(random.randint(100, max_output)));
    out.num_output_tokens += out.params.back().max_tokens;
  }
  return out;
}

}  // namespace engine_bench
