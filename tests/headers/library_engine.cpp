// The engine inside a shared library. See library_user.cpp.
#include "library_engine.hpp"

#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>

#include <algorithm>
#include <vector>

namespace nvllm = nanovllm;

void generate(const char* model, int count, int* tokens) {
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, nvllm::Float32Policy> engine(
      {.model = model, .max_num_seqs = 4, .max_model_len = 64});
  const std::vector<nvllm::Prompt> prompts{std::vector<nvllm::TokenId>{1, 2, 3}};
  const auto outputs =
      engine.generate(prompts, {.temperature = 0.f, .max_tokens = count, .ignore_eos = true});
  std::ranges::copy(outputs.at(0).token_ids, tokens);
}
