#pragma once
/// Settings of a rotary position embedding, and how config.json has them.

#include <cstdint>
#include <optional>

#include "nanovllm/core/separate.hpp"

namespace nanovllm {

class JsonFields;
class Problems;

enum class RopeType : std::uint8_t { standard, yarn, llama3 };

/// Rotary position embedding; `rope_scaling.hpp` has the formulas.
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 0;  ///< > 1
  // Of YaRN and of Llama 3's kind.
  double factor = 1;  ///< YaRN: in [1, 1e6]
  std::int64_t original_max_position_embeddings = 0;
  // Of YaRN.
  std::optional<double> attention_factor;  ///< unset: follows from factor and the mscales
  double beta_fast = 32;                   ///< > beta_slow
  double beta_slow = 1;                    ///< > 0
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;
  // Of Llama 3's kind.
  double low_freq_factor = 1;   ///< > 0
  double high_freq_factor = 4;  ///< > low_freq_factor
};

/// Reads RoPE from "rope_theta" and "rope_scaling" (4.x) or "rope_parameters" (5.x). Files that
/// carry both spellings must not contradict themselves.
/// @param scaled  the kind that there may be besides the standard one: yarn or llama3.
[[nodiscard]] RopeConfig read_rope(const JsonFields& fields, RopeType scaled,
                                   std::int64_t max_positions, Problems& problems);

/// Adds a problem when the rotary table for every position would be too large.
void check_rope_size(const RopeConfig& rope, std::int64_t max_positions, std::int64_t head_dim,
                     Problems& problems);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/model/config_fields.hpp"

namespace nanovllm {

namespace detail {

/// Adds RoPE's setting `key` to `merged`; the old key "type" becomes "rope_type". A value that
/// contradicts an earlier one is a problem, and so is anything but a scalar.
NANOVLLM_INLINE void merge_rope(std::string_view key, const Json& value, Json& merged,
                                Problems& problems) {
  if (value.is_null()) return;
  const std::string spelling(key == "type" ? "rope_type" : key);
  if (value.is_structured()) {
    problems.add("'rope.", spelling, "' must be a number, a string or a boolean, got ",
                 shown(value));
    return;
  }
  const Json* found = merged.find(spelling);
  if (found == nullptr) {
    merged[spelling] = value;
  } else if (*found != value) {
    problems.add("two values for 'rope.", spelling, "': ", shown(*found), " and ", shown(value));
  }
}

/// Reads the YaRN parameters.
NANOVLLM_INLINE void read_yarn(const JsonFields& fields, std::int64_t max_positions,
                               RopeConfig& out, Problems& problems) {
  const auto positive = [](double x) { return x > 0 && x <= 1e6; };
  const auto factor =
      fields.number("factor", "a number in [1, 1e6]", [](double x) { return x >= 1 && x <= 1e6; });
  if (fields.find("factor") == nullptr) problems.add("'rope.factor' is missing");
  out.factor = factor.value_or(1);
  out.original_max_position_embeddings =
      fields.integer("original_max_position_embeddings", 1, ModelLimits::kNumPositions)
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

/// Reads the parameters of Llama 3's kind.
NANOVLLM_INLINE void read_llama3(const JsonFields& fields, std::int64_t max_positions,
                                 RopeConfig& out, Problems& problems) {
  const auto number = [&](const char* key) {
    if (fields.find(key) == nullptr) problems.add("'rope.", key, "' is missing");
    return fields.number(key, "a number in (0, 1e6]", [](double x) { return x > 0 && x <= 1e6; })
        .value_or(1);
  };
  out.factor = number("factor");
  out.low_freq_factor = number("low_freq_factor");
  out.high_freq_factor = number("high_freq_factor");
  out.original_max_position_embeddings =
      fields.integer("original_max_position_embeddings", 1, ModelLimits::kNumPositions)
          .value_or(max_positions);
  if (out.high_freq_factor <= out.low_freq_factor) {
    problems.add("'rope.high_freq_factor' (", out.high_freq_factor,
                 ") must exceed 'rope.low_freq_factor' (", out.low_freq_factor, ")");
  }
}

/// Reads what is stretched as `type` says, and adds to `known` what that may have. False
/// unless `scaled` is that.
NANOVLLM_INLINE bool read_scaling(std::string_view type, RopeType scaled, const JsonFields& rope,
                                  std::int64_t max_positions, std::vector<std::string_view>& known,
                                  RopeConfig& out, Problems& problems) {
  known.insert(known.end(), {"factor", "original_max_position_embeddings"});
  if (type == "yarn" && scaled == RopeType::yarn) {
    known.insert(known.end(), {"attention_factor", "beta_fast", "beta_slow", "mscale",
                               "mscale_all_dim", "truncate"});
    read_yarn(rope, max_positions, out, problems);
  } else if (type == "llama3" && scaled == RopeType::llama3) {
    known.insert(known.end(), {"low_freq_factor", "high_freq_factor"});
    read_llama3(rope, max_positions, out, problems);
  } else {
    return false;
  }
  out.type = scaled;
  return true;
}

}  // namespace detail

NANOVLLM_INLINE RopeConfig read_rope(const JsonFields& fields, RopeType scaled,
                                     std::int64_t max_positions, Problems& problems) {
  Json merged = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* value = fields.find(key);
    if (value == nullptr) continue;
    constexpr std::size_t kMaxSettings = 64;
    if (value->is_object() && value->size() > kMaxSettings) {
      problems.add("'", key, "' must have at most ", kMaxSettings, " settings, got ",
                   value->size());
    } else if (value->is_object()) {
      for (const auto& [name, setting] : value->items())
        detail::merge_rope(name, setting, merged, problems);
    } else {
      fields.wrong(key, "an object or null", *value);
    }
  }
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (const Json* value = fields.find(key)) detail::merge_rope(key, *value, merged, problems);
  }

  const JsonFields rope(merged, "rope.", problems);
  RopeConfig out;
  if (rope.find("rope_theta") == nullptr) problems.add("'rope_theta' is missing");
  out.theta = rope.number("rope_theta", "a number > 1", [](double x) { return x > 1; }).value_or(0);
  if (const Json* part = rope.find("partial_rotary_factor"); part && *part != Json(1)) {
    rope.wrong("partial_rotary_factor", "1", *part);
  }
  std::vector<std::string_view> known = {"rope_theta", "rope_type", "partial_rotary_factor"};
  // "finetuned" says how the model was made. The others are factors.
  if (rope.boolean("finetuned")) known.emplace_back("finetuned");
  for (const char* factor : {"attn_factor", "extrapolation_factor"}) {
    if (const Json* value = rope.find(factor); value != nullptr && *value == Json(1))
      known.emplace_back(factor);
  }
  std::string type = rope.string("rope_type").value_or("default");
  const Json* const factor = rope.find("factor");
  if (type == "linear" && factor != nullptr && *factor == Json(1)) {
    type = "default";
    known.emplace_back("factor");
  }
  if (type != "default" &&
      !detail::read_scaling(type, scaled, rope, max_positions, known, out, problems)) {
    rope.wrong("rope_type",
               concat("\"default\" or \"", scaled == RopeType::yarn ? "yarn" : "llama3", '"'),
               merged["rope_type"]);
    return out;
  }
  // A setting that is silently ignored gives wrong text, so an unknown one is refused.
  for (const auto& [key, value] : merged.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      problems.add("'rope.", key, "' (", detail::shown(value), ") is not known for rope_type '",
                   type, "'");
    }
  }
  return out;
}

NANOVLLM_INLINE void check_rope_size(const RopeConfig& rope, std::int64_t max_positions,
                                     std::int64_t head_dim, Problems& problems) {
  auto positions = static_cast<double>(max_positions);
  if (rope.type == RopeType::yarn) {
    positions = std::max(positions,
                         rope.factor * static_cast<double>(rope.original_max_position_embeddings));
  }
  constexpr auto kMax = static_cast<double>(ModelLimits::kRopeElements);
  if (positions * static_cast<double>(head_dim) > kMax) {
    problems.add("the model's positions (", positions, ") times 'head_dim' (", head_dim,
                 ") must be at most ", ModelLimits::kRopeElements);
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
