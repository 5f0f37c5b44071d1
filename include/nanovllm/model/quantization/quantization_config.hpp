#pragma once
/// What config.json says of matrices that are stored in 8 bits.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

/// `quantization_config` of a checkpoint in 8-bit floats (e4m3). Which matrices are stored so,
/// their tensors say; this has the rest.
struct QuantizationConfig {
  std::int64_t block_rows = 128;  ///< of a scale, where there is one for each block
  std::int64_t block_columns = 128;
  /// Modules that are said to be stored in 16 bits, such as "lm_head" or "model.layers.0.mlp.gate".
  std::vector<std::string> unquantised{};

  /// Whether the module of tensor `name`, "lm_head" of "lm_head.weight", is among them.
  [[nodiscard]] bool is_unquantised(std::string_view name) const;
};

/// Reads `quantization_config`, if there is one: quant_method "fp8", as transformers and Qwen write
/// it, or "compressed-tensors" with 8-bit floats. Everything else is a problem that is named.
/// Source: transformers, FineGrainedFP8Config; compressed-tensors, QuantizationConfig.
[[nodiscard]] QuantizationConfig read_quantization(const JsonFields& fields, Problems& problems);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <limits>
#include <optional>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

namespace detail {

/// Rows and columns of a block: two positive integers.
NANOVLLM_INLINE void read_block(const JsonFields& fields, std::string_view key,
                                QuantizationConfig& out) {
  const Json* const found = fields.find(key);
  if (found == nullptr) return;
  std::vector<std::int64_t> sizes;
  if (found->is_array()) {
    for (const Json& size : found->elements())
      sizes.push_back(JsonFields::as_integer(size).value_or(0));
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (sizes.size() != 2 || std::min(sizes[0], sizes[1]) < 1 || std::max(sizes[0], sizes[1]) > kMost)
    return fields.wrong(key, "two positive integers", *found);
  out.block_rows = sizes[0];
  out.block_columns = sizes[1];
}

/// Names of modules, of a list that need not be there.
NANOVLLM_INLINE void read_modules(const JsonFields& fields, std::string_view key,
                                  QuantizationConfig& out) {
  const Json* const found = fields.find(key);
  if (found == nullptr) return;
  const bool is_list =
      found->is_array() &&
      std::ranges::all_of(found->elements(), [](const Json& name) { return name.is_string(); });
  if (!is_list) return fields.wrong(key, "a list of names", *found);
  for (const Json& name : found->elements()) out.unquantised.push_back(name.string());
}

/// `key` must be `expected` where it is there.
NANOVLLM_INLINE void expect_text(const JsonFields& fields, std::string_view key,
                                 std::string_view expected) {
  const Json* const found = fields.find(key);
  if (found != nullptr && *found != Json(std::string(expected)))
    fields.wrong(key, concat('"', expected, '"'), *found);
}

/// The weights of a group of compressed-tensors.
NANOVLLM_INLINE void read_weights(const Json& group, const std::string& prefix,
                                  QuantizationConfig& out, Problems& problems) {
  const Json* const weights = group.is_object() ? group.find("weights") : nullptr;
  if (weights == nullptr || !weights->is_object()) {
    problems.add("'", prefix, "weights' is missing");
    return;
  }
  const JsonFields fields(*weights, prefix + "weights.", problems);
  static_cast<void>(fields.required_integer("num_bits", 8, 8));
  expect_text(fields, "type", "float");
  if (!fields.boolean("symmetric").value_or(true))
    problems.add("'", prefix, "weights.symmetric' must be true, got false");
  const std::string strategy = fields.string("strategy").value_or("tensor");
  if (strategy == "block") read_block(fields, "block_structure", out);
  if (strategy != "block" && strategy != "channel" && strategy != "tensor")
    problems.add("'", prefix,
                 "weights.strategy' must be \"tensor\", \"channel\" or \"block\", got \"", strategy,
                 '"');
}

NANOVLLM_INLINE void read_compressed_tensors(const Json& json, QuantizationConfig& out,
                                             Problems& problems) {
  const std::string prefix = "quantization_config.";
  const JsonFields fields(json, prefix, problems);
  const std::string format = fields.string("format").value_or("float-quantized");
  if (format != "float-quantized" && format != "naive-quantized")
    problems.add(
        "'quantization_config.format' must be \"float-quantized\" or \"naive-quantized\", "
        "got \"",
        format, '"');
  read_modules(fields, "ignore", out);
  const Json* const groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    problems.add("'quantization_config.config_groups' is missing");
    return;
  }
  for (const auto& [name, group] : groups->items())
    read_weights(group, concat(prefix, "config_groups.", name, "."), out, problems);
}

}  // namespace detail

NANOVLLM_INLINE bool QuantizationConfig::is_unquantised(std::string_view name) const {
  constexpr std::string_view kSuffix = ".weight";
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return std::ranges::find(unquantised, name) != unquantised.end();
}

NANOVLLM_INLINE QuantizationConfig read_quantization(const JsonFields& config, Problems& problems) {
  QuantizationConfig out;
  const Json* const json = config.find("quantization_config");
  if (json == nullptr) return out;
  if (!json->is_object()) {
    config.wrong("quantization_config", "an object", *json);
    return out;
  }
  const JsonFields fields(*json, "quantization_config.", problems);
  const std::string method = fields.string("quant_method").value_or("");
  if (method == "fp8") {
    detail::expect_text(fields, "fmt", "e4m3");
    detail::read_block(fields, "weight_block_size", out);
    detail::read_modules(fields, "modules_to_not_convert", out);
    detail::read_modules(fields, "ignored_layers", out);
  } else if (method == "compressed-tensors") {
    detail::read_compressed_tensors(*json, out, problems);
  } else {
    problems.add(
        "'quantization_config.quant_method' must be \"fp8\" or \"compressed-tensors\", got \"",
        method, '"');
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
