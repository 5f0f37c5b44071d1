#pragma once
/// What config.json says of matrices of packed integers: the body of `read_packed_format`.

#include "nanovllm/core/separate.hpp"
#include "nanovllm/with/eight_bits/checkpoint/quantization_config.hpp"

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

namespace detail {

/// The number of bits of packed integers.
NANOVLLM_INLINE void read_bits(const JsonFields& fields, std::string_view key, int most,
                               PackedFormat& out) {
  const std::optional<std::int64_t> bits = fields.required_integer(key, 1, 32);
  if (bits && *bits != 4 && *bits != most)
    fields.wrong(key, most == 4 ? "4" : "4 or 8", *fields.find(key));
  if (bits) out.bits = *bits == 8 ? 8 : 4;
}

/// Columns that share a scale; -1 is all.
NANOVLLM_INLINE void read_group_size(const JsonFields& fields, std::string_view key,
                                     PackedFormat& out) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  out.group_size = fields.required_integer(key, -1, kMost);
  if (out.group_size == 0) fields.wrong(key, "a positive integer or -1", *fields.find(key));
  if (out.group_size && *out.group_size < 1) out.group_size.reset();
}

/// Source: AutoAWQ, WQLinear_GEMM; its own files call the fields w_bit and q_group_size.
NANOVLLM_INLINE PackedFormat read_awq(const JsonFields& fields, Problems& problems) {
  PackedFormat format{.layout = PackedLayout::awq};
  const auto either = [&](std::string_view key, std::string_view older) {
    return fields.find(key) == nullptr && fields.find(older) != nullptr ? older : key;
  };
  read_bits(fields, either("bits", "w_bit"), 4, format);
  read_group_size(fields, either("group_size", "q_group_size"), format);
  for (const char* key : {"version", "format", "checkpoint_format"})
    static_cast<void>(read_word(fields, key, {"gemm"}));
  if (fields.find("backend") != nullptr && *fields.find("backend") == Json("llm-awq"))
    problems.add("'quantization_config.backend' must not be \"llm-awq\": its packing is another");
  if (!fields.boolean("zero_point").value_or(true))
    problems.add("'quantization_config.zero_point' must be true, got false");
  return format;
}

/// Overrides for modules whose names match a pattern. Those that leave a module as it is, "-:…",
/// are read from the tensors; others must not change anything.
NANOVLLM_INLINE void check_overrides(const JsonFields& fields, const Json& whole,
                                     Problems& problems) {
  const Json* const found = fields.find("dynamic");
  if (found == nullptr || (found->is_boolean() && *found == Json(false))) return;
  if (!found->is_object()) return fields.wrong("dynamic", "an object", *found);
  for (const auto& [pattern, overrides] : found->items()) {
    if (pattern.starts_with("-:")) continue;
    const std::string where = concat("'quantization_config.dynamic' of '", pattern, "'");
    if (!overrides.is_object()) {
      problems.add(where, " must be an object");
      continue;
    }
    for (const char* key : {"bits", "group_size", "desc_act", "sym"}) {
      const Json *const own = overrides.find(key), *const all = whole.find(key);
      if (own != nullptr && (all == nullptr || *own != *all))
        problems.add(where, " must not change '", key, "': all matrices must have the same");
    }
  }
}

/// Source: AutoGPTQ, BaseQuantizeConfig; GPTQModel, QuantizeConfig.
NANOVLLM_INLINE PackedFormat read_gptq(const JsonFields& fields, const Json& json,
                                       Problems& problems) {
  PackedFormat format{.layout = PackedLayout::gptq};
  read_bits(fields, "bits", 8, format);
  read_group_size(fields, "group_size", format);
  format.has_zeros = !fields.boolean("sym").value_or(true);
  const char* const key = fields.find("checkpoint_format") ? "checkpoint_format" : "format";
  format.zeros_less_one = read_word(fields, key, {"gptq", "gptq_v2"}) == "gptq";
  static_cast<void>(read_word(fields, "pack_dtype", {"int32"}));
  if (fields.boolean("desc_act").value_or(false) && format.group_size)
    problems.add(
        "'quantization_config.desc_act' must be false where there are groups: columns in the order "
        "of their activations (act-order) are not supported");
  if (fields.boolean("is_marlin_format").value_or(false))
    problems.add("'quantization_config.is_marlin_format' must be false, got true");
  check_overrides(fields, json, problems);
  return format;
}

/// The integers of a group of compressed-tensors.
NANOVLLM_INLINE PackedFormat read_integers(const JsonFields& fields) {
  PackedFormat format{.layout = PackedLayout::compressed_tensors};
  read_bits(fields, "num_bits", 8, format);
  expect_text(fields, "type", "int");
  format.has_zeros = !fields.boolean("symmetric").value_or(true);
  if (read_word(fields, "strategy", {"group", "channel"}) == "group")
    read_group_size(fields, "group_size", format);
  static_cast<void>(read_word(fields, "actorder", {"static", "weight"}));
  return format;
}

}  // namespace detail

NANOVLLM_INLINE PackedFormat read_packed_format(PackedLayout layout, const JsonFields& fields,
                                                const Json& json, Problems& problems) {
  switch (layout) {
    case PackedLayout::awq: return detail::read_awq(fields, problems);
    case PackedLayout::gptq: return detail::read_gptq(fields, json, problems);
    default: return detail::read_integers(fields);
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
