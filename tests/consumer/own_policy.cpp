// A policy of the program's own.
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>

#include "consumer.hpp"

struct OwnPolicy : nanovllm::DefaultPolicy {
  using Scheduling = nanovllm::PrefillFirst;
  static constexpr nanovllm::KvConfig kv{.block_size = 32};
};

std::string consumer::text_of_own_policy(const std::string& model) {
  nanovllm::Engine<nanovllm::Qwen3<nanovllm::shapes::fairytale>, OwnPolicy> engine(
      {.model = model});
  return engine.generate(kPrompt, {.temperature = 0.f, .max_tokens = 12}).text;
}
