#pragma once
/// How the programs that tell a tale sample it, which options change that, and the lines after it.

#include <nanovllm/engine/engine_config.hpp>
#include <nanovllm/engine/request/output.hpp>
#include <nanovllm/engine/request/progress.hpp>
#include <nanovllm/io/json_values.hpp>
#include <nanovllm/sampling/resolve.hpp>
#include <nanovllm/sampling/sampling_json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "plain_command_line.hpp"

namespace nanovllm::examples {

inline constexpr const char* kFairytale = "examples/models/fairytale";
inline constexpr const char* kOpening = "Once upon a time there was a king who had";

/// What `--help` says of the options.
inline constexpr const char* kTaleOptions =
    "  --temperature X, --seed N, --max-tokens N and any other field of SamplingParams\n"
    "             (docs/sampling.md). Unless given: max_tokens 160, and the rest as the model's\n"
    "             generation_config.json says\n"
    "  --version  prints the library's version\n";

/// "--max-tokens" of "max_tokens".
[[nodiscard]] inline std::string option_of(std::string_view field) {
  std::string out = concat("--", field);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

/// The fields of SamplingParams as options.
[[nodiscard]] inline std::vector<std::string> sampling_options() {
  std::vector<std::string> out;
  for (const SamplingField& field : kSamplingFields) out.push_back(option_of(field.name));
  return out;
}

/// The settings of a tale: at most 160 tokens, and a seed that a later run can name. The options take
/// precedence. Throws RequestError for a value that a field cannot have.
[[nodiscard]] inline SamplingParams tale_params(const PlainCommandLine& line) {
  SamplingParams params{.seed = std::random_device{}(), .max_tokens = 160};
  for (const auto& [name, text] : line.options) {
    for (const SamplingField& field : kSamplingFields) {
      if (option_of(field.name) != name) continue;
      Json value = text;
      try {
        value = parse_json(text, name);
      } catch (const RequestError&) {  // a text that needs no quotation marks
      }
      read_sampling_field(field, value, name, params);
    }
  }
  return params;
}

/// Prints a tale as it comes. Where it does not go to a terminal, but errors do, a bar says there how
/// much of it there is.
class TaleWriter {
 public:
  /// @param max_tokens  of the tale.
  explicit TaleWriter(int max_tokens)
      : line_(::isatty(STDOUT_FILENO) == 1 ? nullptr : stderr), max_tokens_(max_tokens) {}

  void write(const TokenEvent& event) {
    std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
    std::fflush(stdout);
    if (event.token != nullptr) ++num_tokens_;
    line_.show("writing", static_cast<double>(num_tokens_) / max_tokens_,
               concat(num_tokens_, " of at most ", max_tokens_, " tokens"));
    if (event.output != nullptr) line_.clear();
  }

 private:
  ProgressLine line_;
  int max_tokens_, num_tokens_ = 0;
};

/// "temperature 0.5, top_k 40, ...": how a row of logits was drawn from.
[[nodiscard]] inline std::string describe_draws(const SamplingParams& params) {
  std::string out;
  const auto add = [&](const char* name, double value, bool is_used) {
    char text[64];
    std::snprintf(text, sizeof text, "%s %g, ", name, value);
    if (is_used) out += text;
  };
  const float top_p = params.top_p.value_or(1), min_p = params.min_p.value_or(0),
              penalty = params.repetition_penalty.value_or(1);
  add("temperature", params.temperature.value_or(1), true);
  add("top_k", params.top_k.value_or(0), params.top_k.value_or(0) > 0);
  add("top_p", top_p, top_p < 1);
  add("min_p", min_p, min_p > 0);
  add("repetition_penalty", penalty, penalty != 1);
  return concat(out, "seed ", params.seed.value_or(0));
}

/// The lines after a tale: its speed, and how it was drawn.
inline void print_summary(const EngineStats& stats, const SamplingParams& params,
                          const GenerationConfig& defaults) {
  std::printf("\n\n%lld tokens, %.0f tokens per second\n",
              static_cast<long long>(stats.num_sampled_tokens),
              static_cast<double>(stats.num_sampled_by_decodes) /
                  (stats.decode_seconds + stats.host_seconds));
  std::printf("%s; --seed N, --temperature X and others change this\n",
              describe_draws(with_defaults(params, defaults, 0, true)).c_str());
}

}  // namespace nanovllm::examples
