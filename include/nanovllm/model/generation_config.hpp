#pragma once
/// generation_config.json: how the checkpoint's makers want it sampled.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// Default sampling settings and end tokens. What the file does not say is unset; the fields have
/// the ranges of the same fields of SamplingParams.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;  ///< ascending, each once
  std::optional<float> temperature;    ///< 0, greedy, when the file says do_sample false
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;

  /// Reads the file's text. Throws ConfigError that lists every problem.
  [[nodiscard]] static GenerationConfig from_json(
      std::string_view text, std::string_view source = "generation_config.json");
};

class JsonFields;

namespace detail {

/// Adds `more` to `ids`, which stays ascending and free of duplicates.
void merge_token_ids(const std::vector<TokenId>& more, std::vector<TokenId>& ids);
/// The ids under "eos_token_id", an integer or a list of them; ascending, each once.
[[nodiscard]] std::vector<TokenId> read_eos_token_ids(const JsonFields& fields);
/// What the file says; problems are added to those of `fields`.
[[nodiscard]] GenerationConfig read_generation_config(const JsonFields& fields);

}  // namespace detail

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cmath>
#include <limits>

#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

namespace detail {

NANOVLLM_INLINE void merge_token_ids(const std::vector<TokenId>& more, std::vector<TokenId>& ids) {
  ids.insert(ids.end(), more.begin(), more.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

NANOVLLM_INLINE std::vector<TokenId> read_eos_token_ids(const JsonFields& fields) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return {};
  std::vector<TokenId> ids;
  const auto add = [&](const Json& id) {
    const auto number = JsonFields::as_integer(id);
    const bool valid = number && *number >= 0 && *number <= std::numeric_limits<TokenId>::max();
    if (valid) ids.push_back(static_cast<TokenId>(*number));
    return valid;
  };
  const bool valid =
      value->is_array() ? std::all_of(value->begin(), value->end(), add) : add(*value);
  if (!valid) fields.wrong("eos_token_id", "a token id or a list of them", *value);
  std::vector<TokenId> out;
  merge_token_ids(ids, out);
  return out;
}

NANOVLLM_INLINE std::optional<float> to_float(std::optional<double> value) {
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

/// Reads the fields of generation_config.json; what is wrong goes to the fields' problems.
NANOVLLM_INLINE GenerationConfig read_generation_config(const JsonFields& fields) {
  GenerationConfig out;
  out.eos_token_ids = read_eos_token_ids(fields);
  const auto share = [](double x) { return x >= 0 && x <= 1; };
  out.temperature = to_float(fields.number("temperature", "a number in [0, 1e6]",
                                           [](double x) { return x >= 0 && x <= 1e6; }));
  if (const auto top_k = fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max())) {
    out.top_k = static_cast<std::int32_t>(*top_k);
  }
  // A positive double may become the float 0, so the test is made on the float.
  out.top_p = to_float(fields.number("top_p", "a number in (0, 1]",
                                     [](double x) { return x <= 1 && static_cast<float>(x) > 0; }));
  out.min_p = to_float(fields.number("min_p", "a number in [0, 1]", share));
  out.repetition_penalty =
      to_float(fields.number("repetition_penalty", "a number > 0", [](double x) {
        return std::isfinite(x) && static_cast<float>(x) > 0;
      }));
  if (fields.boolean("do_sample") == false) out.temperature = 0.f;
  return out;
}

}  // namespace detail

NANOVLLM_INLINE GenerationConfig GenerationConfig::from_json(std::string_view text,
                                                             std::string_view source) {
  const Json json = parse_json_object<ConfigError>(text, source);
  Problems problems;
  GenerationConfig out = detail::read_generation_config(JsonFields(json, "", problems));
  problems.raise<ConfigError>(source);
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
