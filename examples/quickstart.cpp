// Streams a continuation of a prompt; `quickstart --help`. quickstart.cu is the same on a GPU.
#include <nanovllm/engine.hpp>

#include <cstdio>
#include <string>

#include "tale.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

using Model = nvllm::Qwen3<nvllm::shapes::qwen3_any>;
#if defined(__CUDACC__)
using Engine = nvllm::Engine<Model, nvllm::CudaPolicy>;
#else
using Engine = nvllm::Engine<Model>;
#endif

int main(int argc, char** argv) try {
  const std::string usage = nvllm::concat(
      "usage: quickstart [MODEL_DIR] [\"prompt\"] [options]\n"
      "Streams a continuation of the prompt until the model ends it.\n",
      ex::kTaleOptions);
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv, {.text = usage, .most = 2, .settings = ex::sampling_options()});
  if (line.status) return *line.status;
  const std::string prompt = line.argument(1, ex::kOpening);
  const nvllm::SamplingParams params = ex::tale_params(line);

  Engine engine({.model = line.argument(0, ex::kFairytale),
                 .on_load = nvllm::load_progress_line(),
                 .on_warning = nvllm::warning_lines()});
  std::printf("%s", prompt.c_str());
  ex::TaleWriter tale(params.max_tokens);
  engine.submit(prompt, params, [&](const nvllm::TokenEvent& event) { tale.write(event); });
  while (engine.step()) {
  }
  ex::print_summary(engine.stats(), params, engine.model_config().generation);
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "quickstart: %s\n", error.what());
  return 1;
}
