// Streams a continuation of a prompt with weights in integers of 8 or 4 bits, on the CPU. With
// SAVE_DIR the integers are kept there, as a checkpoint that later runs open in less time.
// Usage: quantized int8|int4 [MODEL_DIR] ["prompt"] [SAVE_DIR]
#include <nanovllm/cpu/quantized/linear.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/model/save_quantized.hpp>

#include <cstdio>
#include <string_view>

namespace nvllm = nanovllm;

template <class Format>
struct QuantizedPolicy : nvllm::DefaultPolicy {
  using Weight = Format;
};

template <class Format>
void write(const char* model, const char* prompt, const char* save_dir) {
  if (save_dir != nullptr) {
    nvllm::save_quantized<QuantizedPolicy<Format>>(model, save_dir);
    model = save_dir;
  }
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, QuantizedPolicy<Format>> engine(
      {.model = model});
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
}

int main(int argc, char** argv) try {
  const std::string_view format = argc > 1 ? argv[1] : "";
  const char* model = argc > 2 ? argv[2] : "examples/models/fairytale";
  const char* prompt = argc > 3 ? argv[3] : "Once upon a time there was a king who had";
  const char* save_dir = argc > 4 ? argv[4] : nullptr;
  if (format == "int8") {
    write<nvllm::Int8Group32>(model, prompt, save_dir);
  } else if (format == "int4") {
    write<nvllm::Int4Group32>(model, prompt, save_dir);
  } else {
    std::fprintf(stderr, "usage: quantized int8|int4 [MODEL_DIR] [\"prompt\"] [SAVE_DIR]\n");
    return 2;
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "quantized: %s\n", error.what());
  return 1;
}
