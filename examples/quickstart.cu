// Streams a continuation of a prompt on a GPU; `quickstart_cuda --help`.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <string>

#include "tale.hpp"

int main(int argc, char** argv) try {
  namespace nvllm = nanovllm;
  namespace ex = nanovllm::examples;
  const std::string usage = nvllm::concat(
      "usage: quickstart_cuda [MODEL_DIR] [\"prompt\"] [options]\n"
      "Streams a continuation of the prompt on a GPU, up to a sentence's end.\n",
      ex::kTaleOptions);
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv, {.text = usage, .most = 2, .settings = ex::sampling_options()});
  if (line.status) return *line.status;
  const std::string prompt = line.argument(1, ex::kOpening);
  const nvllm::SamplingParams params = ex::tale_params(line);

  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, nvllm::CudaPolicy> engine(
      {.model = line.argument(0, ex::kFairytale),
       .on_load = nvllm::load_progress_line(),
       .on_warning = nvllm::warning_lines()});
  std::printf("%s", prompt.c_str());
  engine.submit(prompt, params, [](const nvllm::TokenEvent& event) {
    std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
    std::fflush(stdout);
  });
  while (engine.step()) {
  }
  ex::print_summary(engine.stats(), params, engine.model_config().generation);
} catch (const nanovllm::Error& error) {
  std::fprintf(stderr, "quickstart: %s\n", error.what());
  return 1;
}
