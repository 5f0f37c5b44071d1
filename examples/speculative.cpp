// Streams a continuation of a prompt with n-gram speculation, tells the same tale without, and says
// how many drafted tokens were right and what that did to the speed. `speculative --help`.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/speculation.hpp>

#include <cstdint>
#include <cstdio>
#include <string>

#include "tale.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

struct SpeculativePolicy : nvllm::DefaultPolicy {
  using Guesses = nvllm::DraftedBy<nvllm::NgramDrafter>;
};

struct Tale {
  std::string text;
  nvllm::EngineStats stats;
  nvllm::GenerationConfig defaults;

  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(stats.num_sampled_tokens) /
           (stats.prefill_seconds + stats.decode_seconds + stats.host_seconds);
  }
};

/// @param num_tokens  drafted a step at the most; 0: the tale is told without drafts, silently.
Tale tell(const std::string& model, const std::string& prompt, const nvllm::SamplingParams& params,
          std::int32_t num_tokens) {
  // The number is fixed, so that there is something to see: a small model on a CPU gains nothing
  // by drafts, and engines that may choose do not draft then.
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, SpeculativePolicy> engine(
      {.model = model,
       .extras = {nvllm::SpeculativeConfig{.num_speculative_tokens = num_tokens,
                                           .prompt_lookup_max = 5,
                                           .prompt_lookup_min = 2,
                                           .adaptive = false}},
       .on_warning = nvllm::warning_lines()});
  Tale out{.text = {}, .stats = {}, .defaults = engine.model_config().generation};
  ex::TaleWriter writer(params.max_tokens);
  engine.submit(prompt, params, [&](const nvllm::TokenEvent& event) {
    out.text += event.text;
    if (num_tokens > 0) writer.write(event);
  });
  while (engine.step()) {
  }
  out.stats = engine.stats();
  return out;
}

void print_speculation(const Tale& tale, const Tale& plain) {
  const auto counts = tale.stats.of<nvllm::SpeculationStats>();
  const auto drafted = static_cast<double>(counts.num_drafted);
  std::printf("\n\n%lld of %lld drafted tokens were right (%.0f%%); by place in the draft:",
              static_cast<long long>(counts.num_accepted),
              static_cast<long long>(counts.num_drafted),
              drafted > 0 ? 100 * static_cast<double>(counts.num_accepted) / drafted : 0.);
  for (const std::int64_t accepted : counts.accepted_by_position)
    std::printf(" %lld", static_cast<long long>(accepted));
  std::printf("\n%.2f tokens a step, %.0f tokens per second; without drafts %.2f and %.0f\n",
              static_cast<double>(tale.stats.num_sampled_tokens) /
                  static_cast<double>(tale.stats.num_steps),
              tale.tokens_per_second(),
              static_cast<double>(plain.stats.num_sampled_tokens) /
                  static_cast<double>(plain.stats.num_steps),
              plain.tokens_per_second());
}

int main(int argc, char** argv) try {
  const std::string usage = nvllm::concat(
      "usage: speculative [MODEL_DIR] [\"prompt\"] [options]\n"
      "Streams a continuation of the prompt with n-gram speculation, and tells the same tale\n"
      "without to compare. Exits with 1 if the texts differ.\n",
      ex::kTaleOptions);
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv, {.text = usage, .most = 2, .settings = ex::sampling_options()});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, ex::kFairytale);
  const std::string prompt = line.argument(1, ex::kOpening);
  const nvllm::SamplingParams params = ex::tale_params(line);

  std::printf("%s", prompt.c_str());
  const Tale tale = tell(model, prompt, params, 3);
  const Tale plain = tell(model, prompt, params, 0);
  print_speculation(tale, plain);
  std::printf("the text is %sthe same without drafts\n", tale.text == plain.text ? "" : "not ");
  std::printf("%s; --seed N, --temperature X and others change this\n",
              ex::describe_draws(nvllm::with_defaults(params, tale.defaults, 0, true)).c_str());
  return tale.text == plain.text ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "speculative: %s\n", error.what());
  return 1;
}
