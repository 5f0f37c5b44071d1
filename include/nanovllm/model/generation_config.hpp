#pragma once
/// generation_config.json: how the checkpoint's makers want it sampled.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// Default sampling settings and end tokens. What the file does not say is unset; the fields have
/// the ranges of the same fields of SamplingParams.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;  ///< ascending, each once
  std::optional<float> temperature;    ///< 0, greedy, when the file says do_sample false; filters
                                       ///< that are out of range are then left unset
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
/// The ids under "eos_token_id", an integer or a list of them; ascending, each once. Integers that
/// no token has are ignored with a warning.
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
    if (!number) return false;
    if (*number >= 0 && *number <= std::numeric_limits<TokenId>::max()) {
      ids.push_back(static_cast<TokenId>(*number));
    } else {
      fields.ignored("eos_token_id", id, "no token has this id");
    }
    return true;
  };
  const Json* const wrong = value->is_array() ? JsonFields::first_wrong(*value, add)
                            : add(*value)     ? nullptr
                                              : value;
  if (wrong != nullptr) fields.wrong("eos_token_id", "a token id or a list of them", *wrong);
  std::vector<TokenId> out;
  merge_token_ids(ids, out);
  return out;
}

/// Reads the fields of generation_config.json; what is wrong goes to the fields' problems.
NANOVLLM_INLINE GenerationConfig read_generation_config(const JsonFields& fields) {
  GenerationConfig out;
  out.eos_token_ids = read_eos_token_ids(fields);
  const bool is_greedy = fields.boolean("do_sample") == false;
  using InRange = bool (*)(double);
  const auto read = [&](const char* key, const char* expected, InRange in_range) {
    const InRange any = [](double) { return true; };
    const auto value = fields.number(key, expected, is_greedy ? any : in_range);
    return value && in_range(*value) ? std::optional(static_cast<float>(*value)) : std::nullopt;
  };
  out.temperature =
      read("temperature", "a number in [0, 1e6]", [](double x) { return x >= 0 && x <= 1e6; });
  if (is_greedy) out.temperature = 0.f;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const Json* const found = fields.find("top_k");
  const auto top_k = is_greedy && found != nullptr ? JsonFields::as_integer(*found)
                                                   : fields.integer("top_k", -1, kMost);
  if (top_k && *top_k >= -1 && *top_k <= kMost) out.top_k = static_cast<std::int32_t>(*top_k);
  const InRange share = [](double x) { return x >= 0 && x <= 1; };
  out.top_p = read("top_p", "a number in [0, 1]", share);
  out.min_p = read("min_p", "a number in [0, 1]", share);
  if (const auto penalty = fields.number("repetition_penalty", "a number > 0", [](double x) {
        return std::isfinite(x) && static_cast<float>(x) > 0;
      }))
    out.repetition_penalty = static_cast<float>(*penalty);
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
