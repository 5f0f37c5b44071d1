#pragma once
/// What config.json says of matrices that are stored in 8 bits and fewer.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/door.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

/// Whose tensors hold a matrix [N, K] of integers, several in a word of 32 bits.
enum class PackedLayout : std::uint8_t {
  awq,   ///< `qweight` [K, N / 8], `qzeros` [K / group, N / 8], `scales` [K / group, N]
  gptq,  ///< `qweight` [K / 8, N] for 4 bits; the others as AWQ's, in another order
  compressed_tensors,  ///< `weight_packed` [N, K / 8] for 4 bits, `weight_scale` [N, K / group]
};

/// Matrices of integers of `bits` bits: an element is (stored - zero) · scale, with one scale and
/// one zero for each row and `group_size` columns.
struct PackedFormat {
  PackedLayout layout = PackedLayout::awq;
  int bits = 4;                              ///< 4 or 8
  std::optional<std::int64_t> group_size{};  ///< all columns of the matrix where it is empty
  bool has_zeros = true;        ///< they are stored; otherwise each is 2 to the power of bits - 1
  bool zeros_less_one = false;  ///< what is stored is one less than they are

  friend bool operator==(const PackedFormat&, const PackedFormat&) = default;
};

/// `quantization_config` of a checkpoint in 8-bit floats (e4m3) or packed integers. Which matrices
/// are stored so, their tensors say; this has the rest.
struct QuantizationConfig {
  std::int64_t block_rows = 128;  ///< of a scale of floats, where there is one for each block
  std::int64_t block_columns = 128;
  /// Modules that are said to be stored in 16 bits, such as "lm_head" or "model.layers.0.mlp.gate".
  std::vector<std::string> unquantised{};
  std::optional<PackedFormat> packed{};  ///< of a checkpoint of packed integers
  bool has_int8 = false;  ///< what has scales is integers of 8 bits, not packed, instead of floats

  /// Whether the module of tensor `name`, "lm_head" of "lm_head.weight", is among them.
  [[nodiscard]] bool is_unquantised(std::string_view name) const;
};

/// Reads `quantization_config`, if there is one that is not empty: quant_method "fp8", as
/// transformers and Qwen write it; "awq", version "gemm"; "gptq", of 4 or 8 bits; or
/// "compressed-tensors" with 8-bit floats or integers, or with packed integers of 4 or 8 bits.
/// Everything else is a problem that is named.
/// Source: transformers, FineGrainedFP8Config, AwqConfig, GPTQConfig; compressed-tensors,
/// QuantizationConfig.
[[nodiscard]] QuantizationConfig read_quantization(const JsonFields& fields, Problems& problems);

/// The part of the library that reads packed integers: what a header-only program includes.
inline constexpr const char* kPackedPart = "nanovllm/with/eight_bits.hpp";

/// What `fields`, the members of `json`, say of packed integers: of "quantization_config", or for
/// compressed-tensors of the weights of a group.
[[nodiscard]] PackedFormat read_packed_format(PackedLayout layout, const JsonFields& fields,
                                              const Json& json, Problems& problems);
NANOVLLM_DOOR(read_packed_format);

namespace detail {

/// `key` must be `expected` where it is there.
void expect_text(const JsonFields& fields, std::string_view key, std::string_view expected);

/// The text at `key` in small letters, which must be one of `known`, or absent.
[[nodiscard]] std::string read_word(const JsonFields& fields, std::string_view key,
                                    std::vector<std::string_view> known);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <limits>

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
  const Json* const wrong =
      JsonFields::first_wrong(*found, [](const Json& name) { return name.is_string(); });
  if (wrong != nullptr) return fields.wrong(key, "a list of names", *wrong);
  for (const Json& name : found->elements()) out.unquantised.push_back(name.string());
}

NANOVLLM_INLINE void expect_text(const JsonFields& fields, std::string_view key,
                                 std::string_view expected) {
  const Json* const found = fields.find(key);
  if (found != nullptr && *found != Json(std::string(expected)))
    fields.wrong(key, concat('"', expected, '"'), *found);
}

NANOVLLM_INLINE std::string read_word(const JsonFields& fields, std::string_view key,
                                      std::vector<std::string_view> known) {
  std::string word = fields.string(key).value_or(std::string(known[0]));
  for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (std::ranges::find(known, word) != known.end()) return word;
  std::string expected;
  for (std::size_t i = 0; i < known.size(); ++i)
    expected += concat(i > 0 ? " or " : "", '"', known[i], '"');
  fields.wrong(key, expected, *fields.find(key));
  return std::string(known[0]);
}

/// The 8-bit floats, or integers that are not packed, of a group of compressed-tensors.
NANOVLLM_INLINE void read_scaled(const JsonFields& fields, const std::string& prefix,
                                 QuantizationConfig& out, Problems& problems) {
  static_cast<void>(fields.required_integer("num_bits", 8, 8));
  expect_text(fields, "type", out.has_int8 ? "int" : "float");
  if (!fields.boolean("symmetric").value_or(true))
    problems.add("'", prefix, "weights.symmetric' must be true, got false");
  const std::string strategy = fields.string("strategy").value_or("tensor");
  if (strategy == "block") read_block(fields, "block_structure", out);
  if (strategy != "block" && strategy != "channel" && strategy != "tensor")
    problems.add("'", prefix,
                 "weights.strategy' must be \"tensor\", \"channel\" or \"block\", got \"", strategy,
                 '"');
}

/// The integers that `fields`, those of `json`, describe.
NANOVLLM_INLINE void read_packed(PackedLayout layout, const JsonFields& fields, const Json& json,
                                 QuantizationConfig& out, Problems& problems) {
  if (const auto read = read_packed_format_door.load(); read != nullptr) {
    out.packed = read(layout, fields, json, problems);
  } else {
    problems.add(missing_part("'quantization_config' of packed integers", kPackedPart));
  }
}

/// Adds a problem for each transform of activations, keys or values. Those of weights are in the
/// stored weights already. Source: compressed-tensors, TransformLocation.
NANOVLLM_INLINE void check_transforms(const JsonFields& fields, Problems& problems) {
  const Json* const config = fields.find("transform_config");
  const Json* const groups =
      config != nullptr && config->is_object() ? config->find("config_groups") : nullptr;
  if (groups == nullptr || !groups->is_object()) return;
  for (const auto& [name, group] : groups->items()) {
    const Json* const apply = group.is_object() ? group.find("apply") : nullptr;
    const std::string where =
        concat("'quantization_config.transform_config.config_groups.", name, ".apply");
    if (apply == nullptr || !apply->is_array()) {
      problems.add(where, "' must be an array");
      continue;
    }
    for (const Json& place : apply->elements()) {
      const Json* const found = place.is_object() ? place.find("location") : nullptr;
      if (found != nullptr && (*found == Json("weight_input") || *found == Json("weight_output")))
        continue;
      problems.add(where, ".location' must be \"weight_input\" or \"weight_output\", got ",
                   found == nullptr ? "nothing" : shown(*found),
                   ": transforms of activations are not supported");
    }
  }
}

NANOVLLM_INLINE void read_compressed_tensors(const Json& json, QuantizationConfig& out,
                                             Problems& problems) {
  const std::string prefix = "quantization_config.";
  const JsonFields fields(json, prefix, problems);
  const std::string format = read_word(
      fields, "format", {"float-quantized", "int-quantized", "naive-quantized", "pack-quantized"});
  const bool is_packed = format == "pack-quantized";
  out.has_int8 = format == "int-quantized";
  read_modules(fields, "ignore", out);
  check_transforms(fields, problems);
  const Json* const groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    problems.add("'quantization_config.config_groups' is missing");
    return;
  }
  for (const auto& [name, group] : groups->items()) {
    const std::string here = concat(prefix, "config_groups.", name, ".");
    const Json* const weights = group.is_object() ? group.find("weights") : nullptr;
    if (weights == nullptr || !weights->is_object()) {
      problems.add("'", here, "weights' is missing");
      continue;
    }
    const JsonFields own(*weights, here + "weights.", problems);
    if (!is_packed) {
      read_scaled(own, here, out, problems);
      continue;
    }
    expect_text(JsonFields(group, here, problems), "format", "pack-quantized");
    const std::optional<PackedFormat> before = out.packed;
    read_packed(PackedLayout::compressed_tensors, own, *weights, out, problems);
    if (before && out.packed != before)
      problems.add("'", here, "weights' must be those of the other groups");
  }
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
  if (json->empty()) return out;
  const JsonFields fields(*json, "quantization_config.", problems);
  const std::string method = fields.string("quant_method").value_or("");
  if (method == "fp8") {
    detail::expect_text(fields, "fmt", "e4m3");
    detail::read_block(fields, "weight_block_size", out);
    detail::read_modules(fields, "modules_to_not_convert", out);
    detail::read_modules(fields, "ignored_layers", out);
  } else if (method == "awq") {
    detail::read_packed(PackedLayout::awq, fields, *json, out, problems);
    detail::read_modules(fields, "modules_to_not_convert", out);
  } else if (method == "gptq") {
    detail::read_packed(PackedLayout::gptq, fields, *json, out, problems);
    detail::read_modules(fields, "modules_to_not_convert", out);
  } else if (method == "compressed-tensors") {
    detail::read_compressed_tensors(*json, out, problems);
  } else {
    problems.add(
        "'quantization_config.quant_method' must be \"fp8\", \"awq\", \"gptq\" or "
        "\"compressed-tensors\", got \"",
        method, '"');
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
