// README's program, with the model of 7 million parameters.
#include <nanovllm/engine.hpp>

#include <cstdio>

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::fairytale>> engine({.model = argv[1]});
  for (const nvllm::Output& output :
       engine.generate({"The capital of France is", "Once upon a time"},
                       {.temperature = 0.6f, .max_tokens = 64})) {
    std::printf("%s\n", output.error.empty() ? output.text.c_str() : output.error.c_str());
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
