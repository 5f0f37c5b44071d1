#pragma once
/// `--speculative-config` and its short forms: what drafts tokens, in vLLM's terms.

#include <nanovllm/core/error.hpp>
#include <nanovllm/engine/engine_config.hpp>
#include <nanovllm/io/json.hpp>
#include <nanovllm/io/json_fields.hpp>
#include <nanovllm/io/json_reader.hpp>
#include <nanovllm/io/json_values.hpp>
#include <nanovllm/kv/kv_config.hpp>
#include <nanovllm/with/speculation/config.hpp>
#include <nanovllm/with/speculation/eagle3/config.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "command_line.hpp"

namespace nanovllm::examples {

struct SpeculationOptions {
  std::optional<std::string> config;         ///< a JSON object
  std::optional<std::string> method, model;  ///< the short forms of its members
  std::optional<int> num_tokens;
};

namespace detail {

inline const std::vector<std::string> kSpeculativeMethods = {"ngram", "draft_model", "eagle3"};

}  // namespace detail

inline void add_speculation_options(CLI::App& app, SpeculationOptions& options) {
  CLI::Option* const config = app.add_option(
      "--speculative-config", options.config,
      "speculative decoding, as a JSON object of method (ngram, draft_model or eagle3), model, "
      "num_speculative_tokens, prompt_lookup_max, prompt_lookup_min, adaptive and model_kv_blocks");
  app.add_option("--speculative-method", options.method, "the same method without JSON")
      ->check(one_of(detail::kSpeculativeMethods))
      ->excludes(config);
  app.add_option("--speculative-model", options.model, "the same model: a directory or GGUF file")
      ->excludes(config);
  add_number(app, "--speculative-tokens", options.num_tokens,
             "the same num_speculative_tokens: tokens drafted for a sequence at the most", 0,
             SpeculativeConfig::kMaxTokens)
      ->excludes(config);
}

namespace detail {

/// Throws ConfigError for no name.
[[nodiscard]] inline std::string checked_model(std::string name) {
  check<ConfigError>(!name.empty(), "speculative model: expected a directory or GGUF file, got ''");
  return name;
}

/// Reads as JsonBuilder, which takes the last of equal members, but refuses them by ConfigError.
class SingleMembers final : public JsonBuilder {
 public:
  explicit SingleMembers(std::string option) : option_(std::move(option)) {}

  void key(std::string& text) override {
    check<ConfigError>(names_.back().insert(text).second, option_, ": ", text,
                       ": expected at most once, got it twice");
    JsonBuilder::key(text);
  }
  void begin_object() override {
    names_.emplace_back();
    JsonBuilder::begin_object();
  }
  void end_object() override {
    names_.pop_back();
    JsonBuilder::end_object();
  }

 private:
  std::string option_;
  std::vector<std::set<std::string>> names_;  // of the objects being read, outermost first
};

/// One member of the JSON object. Throws ConfigError.
inline void read_speculative_member(const std::string& key, const Json& value,
                                    SpeculativeConfig& out) {
  const std::string path = "--speculative-config: " + key;
  const auto integer = [&](std::int64_t low, std::int64_t high) {
    return integer_at(value, path, low, high);
  };
  const auto lookup = [&] {
    return static_cast<std::int32_t>(integer(1, SpeculativeConfig::kMaxLookup));
  };
  if (key == "method") {
    out.method = string_at(value, path);
    check<ConfigError>(
        std::ranges::find(kSpeculativeMethods, out.method) != kSpeculativeMethods.end(), path, ": ",
        expected_one_of(kSpeculativeMethods, out.method));
  } else if (key == "model") {
    out.model = checked_model(string_at(value, path));
  } else if (key == "num_speculative_tokens") {
    out.num_speculative_tokens =
        static_cast<std::int32_t>(integer(0, SpeculativeConfig::kMaxTokens));
  } else if (key == "prompt_lookup_max") {
    out.prompt_lookup_max = lookup();
  } else if (key == "prompt_lookup_min") {
    out.prompt_lookup_min = lookup();
  } else if (key == "adaptive") {
    if (!value.is_boolean()) wrong_field(path, "true or false", value);
    out.adaptive = value.get<bool>();
  } else if (key == "model_kv_blocks") {
    out.model_kv_size = KvSize::blocks(integer(1, std::numeric_limits<std::int32_t>::max()));
  } else {
    const std::vector<std::string> keys = {"method",
                                           "model",
                                           "num_speculative_tokens",
                                           "prompt_lookup_max",
                                           "prompt_lookup_min",
                                           "adaptive",
                                           "model_kv_blocks"};
    throw ConfigError("--speculative-config: a key: " + expected_one_of(keys, key));
  }
}

}  // namespace detail

/// What the options ask for; none: no speculation. Throws ConfigError, or FieldError, that names
/// what was expected and what came.
[[nodiscard]] inline std::optional<SpeculativeConfig> speculative_config(
    const SpeculationOptions& options) {
  const auto& [text, method, model, num_tokens] = options;
  if (!text && !method && !model && !num_tokens) return {};
  SpeculativeConfig out{.method = method.value_or("")};
  if (model) out.model = detail::checked_model(*model);
  if (num_tokens) out.num_speculative_tokens = *num_tokens;
  if (text) {
    const Json json = parse_json_object<ConfigError>(*text, "--speculative-config");
    detail::SingleMembers members("--speculative-config");
    read_json(*text, members);
    for (const auto& [key, value] : json.items()) detail::read_speculative_member(key, value, out);
  }
  if (out.method.empty())
    out.method = out.model.empty() ? "ngram" : is_eagle3_head(out.model) ? "eagle3" : "draft_model";
  const bool has_engine = out.method == "draft_model", has_model = out.method != "ngram";
  check<ConfigError>(!has_model || !out.model.empty(), "speculative method ", out.method,
                     ": expected a model, a directory", has_engine ? " or GGUF file" : " of a head",
                     ", and none was given");
  check<ConfigError>(has_model || (out.model.empty() && !out.model_kv_size),
                     "speculative method ngram: model is for draft_model and eagle3, and "
                     "model_kv_blocks for draft_model",
                     out.model.empty() ? "" : concat(", got model '", out.model.string(), "'"));
  check<ConfigError>(has_engine || !out.model_kv_size, "speculative method eagle3: ",
                     "model_kv_blocks is for draft_model; a head's pool has the target's blocks");
  check<ConfigError>(!has_model || (!out.prompt_lookup_max && !out.prompt_lookup_min),
                     "speculative method ", out.method,
                     ": prompt_lookup_max and prompt_lookup_min are for ngram");
  out.validate();
  return out;
}

/// What drafts, for people: "ngram, up to 3 tokens at a time, after 2 to 5 that came before".
[[nodiscard]] inline std::string describe(const SpeculativeConfig& config) {
  if (config.num_speculative_tokens == 0) return "none, as num_speculative_tokens is 0";
  std::string out =
      concat(config.method, ", up to ", config.num_speculative_tokens, " tokens at a time");
  if (!config.model.empty()) return concat(out, ", model '", config.model.string(), "'");
  out += concat(", after ", config.lookup_min());
  if (config.lookup_min() != config.lookup_max()) out += concat(" to ", config.lookup_max());
  return out + " that came before";
}

/// The line of a program's start that says what drafts; empty without speculation.
[[nodiscard]] inline std::string drafts_line(const EngineConfig& config) {
  const auto* const found = config.extras.find<SpeculativeConfig>();
  return found == nullptr ? "" : "drafts   " + describe(*found) + "\n";
}

}  // namespace nanovllm::examples
