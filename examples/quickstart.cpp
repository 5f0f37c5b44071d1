// Streams a continuation of a prompt. Usage: quickstart MODEL_DIR ["prompt"]
#include <nanovllm/engine.hpp>

#include <cstdio>

namespace nvllm = nanovllm;

int main(int argc, char** argv) try {
  const char* model = argc > 1 ? argv[1] : "examples/models/fairytale";
  const char* prompt = argc > 2 ? argv[2] : "Once upon a time there was a king who had";

  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>> engine({.model = model});
  std::printf("%s", prompt);
  engine.submit(prompt, {.max_tokens = 400}, [](const nvllm::TokenEvent& event) {
    std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
    std::fflush(stdout);
  });
  while (engine.step()) {
  }

  const nvllm::EngineStats stats = engine.stats();
  std::printf(
      "\n\n%lld tokens, %.0f tokens per second\n", static_cast<long long>(stats.num_decode_tokens),
      static_cast<double>(stats.num_decode_tokens) / (stats.decode_seconds + stats.host_seconds));
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "quickstart: %s\n", error.what());
  return 1;
}
