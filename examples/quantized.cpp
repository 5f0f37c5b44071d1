// Streams a continuation of a prompt with weights in integers of 8 or 4 bits, on the CPU. With
// SAVE_DIR the integers are kept there, as a checkpoint that later runs open in less time.
// `quantized --help`.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/eight_bits/checkpoint/save_quantized.hpp>
#include <nanovllm/with/eight_bits/cpu/linear.hpp>

#include <cstdio>
#include <string>

#include "tale.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

template <class Format>
struct QuantizedPolicy : nvllm::DefaultPolicy {
  using Weight = Format;
};

template <class Format>
void write(const ex::PlainCommandLine& line) {
  std::string model = line.argument(1, ex::kFairytale);
  const std::string prompt = line.argument(2, ex::kOpening), save_dir = line.argument(3);
  const nvllm::SamplingParams params = ex::tale_params(line);
  if (!save_dir.empty()) {
    nvllm::save_quantized<QuantizedPolicy<Format>>(model, save_dir);
    model = save_dir;
  }
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, QuantizedPolicy<Format>> engine(
      {.model = model,
       .on_load = nvllm::load_progress_line(),
       .on_warning = nvllm::warning_lines()});
  std::printf("%s", prompt.c_str());
  ex::TaleWriter tale(params.max_tokens);
  engine.submit(prompt, params, [&](const nvllm::TokenEvent& event) { tale.write(event); });
  while (engine.step()) {
  }
  ex::print_summary(engine.stats(), params, engine.model_config().generation);
}

int main(int argc, char** argv) try {
  const std::string usage = nvllm::concat(
      "usage: quantized int8|int4 [MODEL_DIR] [\"prompt\"] [SAVE_DIR] [options]\n"
      "Streams a continuation of the prompt with weights in integers of 8 or 4 bits, up to a\n"
      "sentence's end; SAVE_DIR keeps the integers as a checkpoint.\n",
      ex::kTaleOptions);
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv, {.text = usage, .least = 1, .most = 4, .settings = ex::sampling_options()});
  if (line.status) return *line.status;
  const std::string format = line.argument(0);
  if (format == "int8") {
    write<nvllm::Int8Group32>(line);
  } else if (format == "int4") {
    write<nvllm::Int4Group32>(line);
  } else {
    std::fprintf(stderr, "quantized: %s\n", ex::expected_one_of({"int8", "int4"}, format).c_str());
    return 2;
  }
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "quantized: %s\n", error.what());
  return 1;
}
