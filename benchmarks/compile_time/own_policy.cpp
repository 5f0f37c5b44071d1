// README's program with a policy of its own, which plans and caches in another way.
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>

#include <cstdio>

namespace nvllm = nanovllm;

struct OwnPolicy : nvllm::DefaultPolicy {
  using Scheduling = nvllm::PrefillFirst;
  static constexpr nvllm::KvConfig kv{.block_size = 32};
};

#if defined(OWN_SHAPE)
inline constexpr nvllm::Qwen3Shape kShape{.hidden_size = 256, .head_dim = 128};
#else
inline constexpr nvllm::Qwen3Shape kShape = nvllm::shapes::fairytale;
#endif

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  nvllm::Engine<nvllm::Qwen3<kShape>, OwnPolicy> engine({.model = argv[1]});
  for (const nvllm::Output& output :
       engine.generate({"The capital of France is", "Once upon a time"},
                       {.temperature = 0.6f, .max_tokens = 64})) {
    std::printf("%s\n", output.error.empty() ? output.text.c_str() : output.error.c_str());
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
