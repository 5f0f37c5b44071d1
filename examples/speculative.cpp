// Streams tales with n-gram speculation, tells the same ones without, and says how many drafted
// tokens were right and what that did to the speed. `speculative --help`.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/speculation.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tale.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

struct SpeculativePolicy : nvllm::DefaultPolicy {
  using Guesses = nvllm::DraftedBy<nvllm::NgramDrafter>;
};

/// Tales, one after the other, and what the engine counted meanwhile.
struct Tales {
  std::string text;
  nvllm::EngineStats stats;
  nvllm::GenerationConfig defaults;

  [[nodiscard]] double tokens_per_step() const {
    return static_cast<double>(stats.num_sampled_tokens) / static_cast<double>(stats.num_steps);
  }
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(stats.num_sampled_tokens) /
           (stats.prefill_seconds + stats.decode_seconds + stats.host_seconds);
  }
};

/// Tells kNumTales tales that begin with `opening`. Each is told after those before it, whose words
/// come again: of these the drafts are.
/// @param num_tokens  drafted a step at the most; 0: without drafts, and without printing.
Tales tell(const std::string& model, const std::string& opening,
           const nvllm::SamplingParams& params, std::int32_t num_tokens) {
  constexpr int kNumTales = 3;
  // The number of drafted tokens is fixed: what is printed should not depend on measured times.
  nvllm::Engine<nvllm::Qwen3<nvllm::shapes::qwen3_any>, SpeculativePolicy> engine(
      {.model = model,
       .extras = {nvllm::SpeculativeConfig{.num_speculative_tokens = num_tokens,
                                           .prompt_lookup_max = 5,
                                           .prompt_lookup_min = 2,
                                           .adaptive = false}},
       .on_warning = nvllm::warning_lines()});
  Tales out{.text = {}, .stats = {}, .defaults = engine.model_config().generation};
  for (int i = 0; i < kNumTales; ++i) {
    const std::string begin = (i == 0 ? "" : "\n\n") + opening;
    out.text += begin;
    if (num_tokens > 0) std::printf("%s", begin.c_str());
    ex::TaleWriter writer(params.max_tokens);
    engine.submit(out.text, params, [&](const nvllm::TokenEvent& event) {
      out.text += event.text;
      if (num_tokens > 0) writer.write(event);
    });
    while (engine.step()) {
    }
  }
  out.stats = engine.stats();
  return out;
}

void print_speculation(const Tales& drafted, const Tales& plain) {
  const auto counts = drafted.stats.of<nvllm::SpeculationStats>();
  const auto num_drafted = static_cast<double>(std::max<std::int64_t>(counts.num_drafted, 1));
  std::printf("\n\n%lld of %lld drafted tokens were right (%.0f%%); by place in the draft:",
              static_cast<long long>(counts.num_accepted),
              static_cast<long long>(counts.num_drafted),
              100 * static_cast<double>(counts.num_accepted) / num_drafted);
  for (const std::int64_t accepted : counts.accepted_by_position)
    std::printf(" %lld", static_cast<long long>(accepted));
  std::printf("\n%.2f tokens a step, %.0f tokens per second; without drafts %.2f and %.0f\n",
              drafted.tokens_per_step(), drafted.tokens_per_second(), plain.tokens_per_step(),
              plain.tokens_per_second());
}

int main(int argc, char** argv) try {
  const std::string usage = nvllm::concat(
      "usage: speculative [MODEL_DIR] [\"prompt\"] [options]\n"
      "Streams three continuations of the prompt, each after those before it, with n-gram\n"
      "speculation, and tells the same tales without to compare. Exits with 1 if the texts\n"
      "differ.\n",
      ex::kTaleOptions);
  const ex::PlainCommandLine line = ex::read_command_line(
      argc, argv, {.text = usage, .most = 2, .settings = ex::sampling_options()});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, ex::kFairytale);
  const std::string opening = line.argument(1, ex::kOpening);
  const nvllm::SamplingParams params = ex::tale_params(line);

  const Tales drafted = tell(model, opening, params, 3);
  const Tales plain = tell(model, opening, params, 0);
  const bool is_same = drafted.text == plain.text;
  print_speculation(drafted, plain);
  std::printf("the text is %sthe same without drafts\n", is_same ? "" : "not ");
  std::printf("%s; --seed N, --temperature X and others change this\n",
              ex::describe_draws(nvllm::with_defaults(params, drafted.defaults, 0, true)).c_str());
  return is_same ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "speculative: %s\n", error.what());
  return 1;
}
