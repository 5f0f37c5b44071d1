// Streams tales with drafters of several kinds, tells the same ones without, and says how many
// drafted tokens were right and what that did to the speed. `speculative --help`.
#include <nanovllm/cpu.hpp>
#include <nanovllm/engine.hpp>
#include <nanovllm/policy.hpp>
#include <nanovllm/with/radix.hpp>
#include <nanovllm/with/speculation.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tale.hpp"

namespace nvllm = nanovllm;
namespace ex = nanovllm::examples;

struct DraftPolicy : nvllm::DefaultPolicy {
  template <int kBlockSize>
  using PrefixCache = nvllm::RadixPrefixCache<kBlockSize>;  // finds each token that was computed
};
using Model = nvllm::Qwen3<nvllm::shapes::qwen3_any>;
using DraftEngine = nvllm::Engine<Model, DraftPolicy>;

struct SpeculativePolicy : nvllm::DefaultPolicy {
  using Guesses =
      nvllm::DraftedBy<nvllm::NgramDrafter, nvllm::ModelDrafter<DraftEngine>, nvllm::Eagle3Drafter>;
};

/// What drafts, and for which tales.
struct Way {
  const char* title;
  const char* method;
  const char* option;  ///< names its files
  const char* files;   ///< those for the fairytale model
  const char* what;    ///< the files are
  /// Each tale is told after those before it, whose words come again: of these n-grams draft.
  bool continues = false;
};
constexpr Way kWays[] = {
    {"n-grams of the tales before", "ngram", "", "", "", true},
    {"a draft model", "draft_model", "--draft-model", "examples/models/fairytale_draft",
     "a smaller model with the same tokenizer"},
    {"an EAGLE-3 head", "eagle3", "--eagle3", "examples/models/fairytale_eagle3",
     "a head that was trained for the model"},
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

/// Tells kNumTales tales that begin with `opening`, with seeds from that of `params` on.
/// @param num_tokens  drafted a step at the most; 0: without drafts, and without printing.
Tales tell(const std::string& model, const std::string& opening, nvllm::SamplingParams params,
           const Way& way, const std::string& files, std::int32_t num_tokens) {
  constexpr int kNumTales = 3;
  nvllm::SpeculativeConfig drafts{.method = way.method, .model = files};
  drafts.num_speculative_tokens = num_tokens;
  drafts.adaptive = false;  // what is printed should not depend on measured times
  if (way.continues) {
    drafts.prompt_lookup_max = 5;
    drafts.prompt_lookup_min = 2;
  }
  nvllm::Engine<Model, SpeculativePolicy> engine(
      {.model = model, .extras = {drafts}, .on_warning = nvllm::warning_lines()});
  Tales out{.text = {}, .stats = {}, .defaults = engine.model_config().generation};
  for (int i = 0; i < kNumTales; ++i) {
    const std::string begin = (i == 0 ? "" : "\n\n") + opening;
    out.text += begin;
    if (num_tokens > 0) std::printf("%s", begin.c_str());
    ex::TaleWriter writer(params.max_tokens);
    engine.submit(way.continues ? out.text : opening, params, [&](const nvllm::TokenEvent& event) {
      out.text += event.text;
      if (num_tokens > 0) writer.write(event);
    });
    while (engine.step()) {
    }
    params.seed = *params.seed + 1;
  }
  out.stats = engine.stats();
  return out;
}

void print_speculation(const Way& way, const Tales& drafted, const Tales& plain) {
  const auto counts = drafted.stats.of<nvllm::SpeculationStats>();
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
  };
  std::printf("\n\nWith %s: %lld of %lld drafted tokens were right (%.0f%%); by place:", way.title,
              static_cast<long long>(counts.num_accepted),
              static_cast<long long>(counts.num_drafted),
              share(counts.num_accepted, counts.num_drafted));
  for (const std::int64_t accepted : counts.accepted_by_position)
    std::printf(" %.0f%%", share(accepted, counts.num_drafts));
  std::printf("\n%.2f tokens a step, %.0f tokens per second; without drafts %.2f and %.0f\n",
              drafted.tokens_per_step(), drafted.tokens_per_second(), plain.tokens_per_step(),
              plain.tokens_per_second());
  std::printf("the text is %sthe same without drafts\n\n",
              drafted.text == plain.text ? "" : "not ");
}

int main(int argc, char** argv) try {
  std::string usage =
      "usage: speculative [MODEL_DIR] [\"prompt\"] [options]\n"
      "Streams three continuations of the prompt with drafts of n-grams, and of each kind of\n"
      "files below, and tells the same tales without to compare. Exits with 1 if the texts\n"
      "differ. The fairytale model has these files.\n";
  std::vector<std::string> settings = ex::sampling_options();
  for (const Way& way : kWays) {
    if (way.continues) continue;
    settings.emplace_back(way.option);
    usage += nvllm::concat("  ", way.option, " DIR  ", way.what, "\n");
  }
  usage += ex::kTaleOptions;
  const ex::PlainCommandLine line =
      ex::read_command_line(argc, argv, {.text = usage, .most = 2, .settings = settings});
  if (line.status) return *line.status;
  const std::string model = line.argument(0, ex::kFairytale);
  const std::string opening = line.argument(1, ex::kOpening);
  const nvllm::SamplingParams params = ex::tale_params(line);

  bool is_same = true;
  nvllm::GenerationConfig defaults;
  for (const Way& way : kWays) {
    const std::string files =
        line.value(way.option).value_or(model == ex::kFairytale ? way.files : "");
    if (files.empty() && !way.continues) continue;
    const Tales drafted = tell(model, opening, params, way, files, 3);
    const Tales plain = tell(model, opening, params, way, files, 0);
    print_speculation(way, drafted, plain);
    is_same = is_same && drafted.text == plain.text;
    defaults = drafted.defaults;
  }
  std::printf("%s; --seed N, --temperature X and others change this\n",
              ex::describe_draws(nvllm::with_defaults(params, defaults, 0, true)).c_str());
  return is_same ? 0 : 1;
} catch (const nvllm::Error& error) {
  std::fprintf(stderr, "speculative: %s\n", error.what());
  return 1;
}
