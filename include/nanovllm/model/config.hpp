#pragma once
/// config.json of a Qwen3 checkpoint, in the spelling of transformers 4.x and of 5.x.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/mapped_file.hpp"
#include "nanovllm/model/generation_config.hpp"

namespace nanovllm {

enum class RopeType : std::uint8_t { standard, yarn };

/// Rotary position embedding. All but `type` and `theta` matter to YaRN only; `rope_scaling.hpp`
/// has the formulas.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 0;   ///< > 1
  double factor = 1;  ///< in [1, 1e6]
  std::int64_t original_max_position_embeddings = 0;
  std::optional<double> attention_factor;  ///< unset: follows from factor and the mscales
  double beta_fast = 32;                   ///< > beta_slow
  double beta_slow = 1;                    ///< > 0
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
};

/// What the engine needs to know about a checkpoint. `load` and `from_json` guarantee the ranges
/// given here; sizes are at most 2^31 − 1.
struct ModelConfig {
  std::int64_t hidden_size = 0;  ///< ≥ 1, as are all sizes
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;  ///< a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 128;  ///< even
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;  ///< in (0, 1)
  bool tie_word_embeddings = false;
  DType dtype = DType::bfloat16;  ///< as the file states; bfloat16 when it does not
  RopeConfig rope;
  std::vector<TokenId> eos_token_ids;  ///< of both files; ascending, each once, < vocab_size
  GenerationConfig generation;         ///< of generation_config.json; unset when it is absent

  /// Reads config.json and, if there is one, generation_config.json. Throws LoadError when
  /// config.json cannot be read, ConfigError that lists every problem of the first file that has
  /// any.
  [[nodiscard]] static ModelConfig load(const std::filesystem::path& directory);

  /// The same from the files' texts; an empty `generation_text` stands for an absent file.
  [[nodiscard]] static ModelConfig from_json(std::string_view text,
                                             std::string_view generation_text = {},
                                             std::string_view source = "config.json");
};

namespace detail {

/// Reads the fields that say how large the model is.
inline void read_sizes(const JsonFields& fields, ModelConfig& out, Problems& problems) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  // 0 stands for a size that is missing or refused; what depends on it is then not judged.
  const auto size = [&](const char* key) {
    return fields.required_integer(key, 1, kMax).value_or(0);
  };
  out.hidden_size = size("hidden_size");
  out.num_hidden_layers = size("num_hidden_layers");
  out.num_attention_heads = size("num_attention_heads");
  out.num_key_value_heads = size("num_key_value_heads");
  out.intermediate_size = size("intermediate_size");
  out.vocab_size = size("vocab_size");
  out.max_position_embeddings = size("max_position_embeddings");
  out.head_dim = fields.integer("head_dim", 1, kMax).value_or(128);
  if (out.head_dim % 2 != 0) problems.add("'head_dim' must be even, got ", out.head_dim);
  if (out.num_attention_heads > 0 && out.num_key_value_heads > 0 &&
      out.num_attention_heads % out.num_key_value_heads != 0) {
    problems.add("'num_attention_heads' (", out.num_attention_heads,
                 ") must be a multiple of 'num_key_value_heads' (", out.num_key_value_heads, ")");
  }
}

/// Reads "dtype" (5.x) and "torch_dtype" (4.x), which must agree where both are given.
inline DType read_dtype(const JsonFields& fields, Problems& problems) {
  std::optional<DType> out;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto text = fields.string(key);
    if (!text) continue;
    std::optional<DType> dtype;
    for (const DType known : {DType::float32, DType::float16, DType::bfloat16}) {
      if (*text == name(known)) dtype = known;
    }
    if (!dtype) {
      fields.wrong(key, "float32, float16 or bfloat16", *fields.find(key));
    } else if (out && *out != *dtype) {
      problems.add("'dtype' (", name(*out), ") and 'torch_dtype' (", name(*dtype), ") disagree");
    } else {
      out = dtype;
    }
  }
  return out.value_or(DType::bfloat16);
}

/// Adds a problem for each setting that asks for a model this engine does not compute.
inline void check_supported(const JsonFields& fields, std::int64_t num_layers, Problems& problems) {
  if (const nlohmann::json* type = fields.find("model_type"); type == nullptr) {
    problems.add("'model_type' is missing");
  } else if (*type != "qwen3") {
    fields.wrong("model_type", "\"qwen3\"", *type);
  }
  if (const auto act = fields.string("hidden_act"); act && *act != "silu") {
    fields.wrong("hidden_act", "\"silu\"", *fields.find("hidden_act"));
  }
  if (fields.boolean("attention_bias") == true) {
    problems.add("'attention_bias' must be false: biases are not supported");
  }
  if (fields.find("quantization_config") != nullptr) {
    problems.add("'quantization_config' is set: quantised weights are not supported");
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const bool use_window = fields.boolean("use_sliding_window").value_or(false);
  const auto first_sliding = fields.integer("max_window_layers", 0, kMax).value_or(28);
  if (const nlohmann::json* layers = fields.find("layer_types"); layers != nullptr) {
    // The list decides; the other fields only say how it was made.
    const auto full = [](const nlohmann::json& layer) { return layer == "full_attention"; };
    if (!layers->is_array() || !std::all_of(layers->begin(), layers->end(), full)) {
      fields.wrong("layer_types", "a list of \"full_attention\" only", *layers);
    } else if (num_layers > 0 && static_cast<std::int64_t>(layers->size()) != num_layers) {
      problems.add("'layer_types' must have 'num_hidden_layers' (", num_layers, ") entries, got ",
                   layers->size());
    }
  } else if (use_window && !fields.is_null("sliding_window") && first_sliding < num_layers) {
    problems.add("'use_sliding_window' is true, and layers from ", first_sliding,
                 " on would use it: sliding-window attention is not supported");
  }
}

/// Adds RoPE's setting `key` to `merged`; the old key "type" becomes "rope_type". A value that
/// contradicts an earlier one is a problem, and so is anything but a scalar.
inline void merge_rope(std::string_view key, const nlohmann::json& value, nlohmann::json& merged,
                       Problems& problems) {
  if (value.is_null()) return;
  const std::string spelling(key == "type" ? "rope_type" : key);
  if (value.is_structured()) {
    problems.add("'rope.", spelling, "' must be a number, a string or a boolean, got ",
                 shown(value));
    return;
  }
  const auto [found, added] = merged.emplace(spelling, value);
  if (!added && *found != value) {
    problems.add("two values for 'rope.", spelling, "': ", shown(*found), " and ", shown(value));
  }
}

/// Reads the YaRN parameters.
inline void read_yarn(const JsonFields& fields, std::int64_t max_positions, RopeConfig& out,
                      Problems& problems) {
  const auto positive = [](double x) { return x > 0 && x <= 1e6; };
  const auto factor =
      fields.number("factor", "a number in [1, 1e6]", [](double x) { return x >= 1 && x <= 1e6; });
  if (fields.find("factor") == nullptr) problems.add("'rope.factor' is missing");
  out.factor = factor.value_or(1);
  out.original_max_position_embeddings =
      fields
          .integer("original_max_position_embeddings", 1, std::numeric_limits<std::int32_t>::max())
          .value_or(max_positions);
  out.attention_factor = fields.number("attention_factor", "a number in (0, 1e6]", positive);
  out.beta_fast = fields.number("beta_fast", "a number in (0, 1e6]", positive).value_or(32);
  out.beta_slow = fields.number("beta_slow", "a number in (0, 1e6]", positive).value_or(1);
  out.mscale = fields.number("mscale", "a number in (0, 1e6]", positive);
  out.mscale_all_dim = fields.number("mscale_all_dim", "a number in (0, 1e6]", positive);
  out.truncate = fields.boolean("truncate").value_or(true);
  if (out.beta_fast <= out.beta_slow) {
    problems.add("'rope.beta_fast' (", out.beta_fast, ") must exceed 'rope.beta_slow' (",
                 out.beta_slow, ")");
  }
}

/// Reads RoPE from "rope_theta" and "rope_scaling" (4.x) or "rope_parameters" (5.x). Files that
/// carry both spellings must not contradict themselves.
inline RopeConfig read_rope(const JsonFields& fields, std::int64_t max_positions,
                            Problems& problems) {
  nlohmann::json merged = nlohmann::json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* value = fields.find(key);
    if (value == nullptr) continue;
    if (value->is_object()) {
      for (const auto& [name, setting] : value->items())
        merge_rope(name, setting, merged, problems);
    } else {
      fields.wrong(key, "an object or null", *value);
    }
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (const nlohmann::json* value = fields.find(key)) merge_rope(key, *value, merged, problems);
  }

  const JsonFields rope(merged, "rope.", problems);
  RopeConfig out;
  if (rope.find("rope_theta") == nullptr) problems.add("'rope_theta' is missing");
  out.theta = rope.number("rope_theta", "a number > 1", [](double x) { return x > 1; }).value_or(0);
  if (const nlohmann::json* part = rope.find("partial_rotary_factor"); part && *part != 1) {
    rope.wrong("partial_rotary_factor", "1", *part);
  }
  std::vector<std::string_view> known = {"rope_theta", "rope_type", "partial_rotary_factor"};
  const std::string type = rope.string("rope_type").value_or("default");
  if (type == "yarn") {
    out.type = RopeType::yarn;
    known.insert(known.end(), {"factor", "original_max_position_embeddings", "attention_factor",
                               "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"});
    read_yarn(rope, max_positions, out, problems);
  } else if (type != "default") {
    rope.wrong("rope_type", "\"default\" or \"yarn\"", merged["rope_type"]);
    return out;
  }
  // A setting that is silently ignored gives wrong text, so an unknown one is refused.
  for (const auto& [key, value] : merged.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      problems.add("'rope.", key, "' (", shown(value), ") is not known for rope_type '", type, "'");
    }
  }
  return out;
}

}  // namespace detail

inline ModelConfig ModelConfig::from_json(std::string_view text, std::string_view generation_text,
                                          std::string_view source) {
  const nlohmann::json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  const JsonFields fields(json, "", problems);
  ModelConfig out;
  detail::read_sizes(fields, out, problems);
  detail::check_supported(fields, out.num_hidden_layers, problems);
  const auto eps =
      fields.number("rms_norm_eps", "a number in (0, 1)", [](double x) { return x > 0 && x < 1; });
  if (fields.find("rms_norm_eps") == nullptr) problems.add("'rms_norm_eps' is missing");
  out.rms_norm_eps = eps.value_or(0);
  out.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(false);
  out.dtype = detail::read_dtype(fields, problems);
  out.rope = detail::read_rope(fields, out.max_position_embeddings, problems);
  out.eos_token_ids = detail::read_eos_token_ids(fields);
  if (!generation_text.empty()) {
    const auto generation =
        parse_json_object<ConfigError>(generation_text, "generation_config.json");
    const JsonFields generation_fields(generation, "generation_config.json: ", problems);
    out.generation = detail::read_generation_config(generation_fields);
    detail::merge_token_ids(out.generation.eos_token_ids, out.eos_token_ids);
  }
  if (out.vocab_size > 0 && !out.eos_token_ids.empty() &&
      out.eos_token_ids.back() >= out.vocab_size) {
    problems.add("'eos_token_id' (", out.eos_token_ids.back(), ") must be less than 'vocab_size' (",
                 out.vocab_size, ")");
  }
  problems.raise<ConfigError>(source);
  return out;
}

inline ModelConfig ModelConfig::load(const std::filesystem::path& directory) {
  const MappedFile config(directory / "config.json");
  const std::filesystem::path generation_path = directory / "generation_config.json";
  MappedFile generation;
  if (std::filesystem::exists(generation_path)) generation = MappedFile(generation_path);
  return from_json(config.text(), generation.text(), (directory / "config.json").string());
}

}  // namespace nanovllm
