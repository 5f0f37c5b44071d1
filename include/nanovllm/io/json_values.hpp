#pragma once
/// Reads a JSON value as a type. A wrong value is a FieldError that names where it lies, what was
/// expected and what came.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/number_range.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// Throws FieldError: the value at `path` must be `expected`, and is `got`.
[[noreturn]] void wrong_field(const std::string& path, std::string_view expected, const Json& got);

/// Throws FieldError; the message is the path and the reason.
[[noreturn]] void refuse_field(const std::string& path, std::string_view reason);

/// "messages[2]": the path of an element.
[[nodiscard]] inline std::string element_path(std::string_view path, std::size_t index) {
  return concat(path, '[', index, ']');
}

[[nodiscard]] const std::string& string_at(const Json& value, const std::string& path);

/// An integer in [low, high]; 5.0 counts as one.
[[nodiscard]] std::int64_t integer_at(const Json& value, const std::string& path, std::int64_t low,
                                      std::int64_t high);

/// A number that lies in `range` as a float.
[[nodiscard]] float number_at(const Json& value, const std::string& path, NumberRange range);

/// Token ids from 0 on.
[[nodiscard]] std::vector<TokenId> token_ids_at(const Json& value, const std::string& path);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <cfloat>
#include <cmath>
#include <limits>

#include "nanovllm/io/json_fields.hpp"

namespace nanovllm {

NANOVLLM_INLINE void wrong_field(const std::string& path, std::string_view expected,
                                 const Json& got) {
  throw FieldError(concat(path, " must be ", expected, ", got ", detail::shown(got)), path);
}

NANOVLLM_INLINE void refuse_field(const std::string& path, std::string_view reason) {
  throw FieldError(concat(path, ' ', reason), path);
}

NANOVLLM_INLINE const std::string& string_at(const Json& value, const std::string& path) {
  if (!value.is_string()) wrong_field(path, "a string", value);
  return value.string();
}

NANOVLLM_INLINE std::int64_t integer_at(const Json& value, const std::string& path,
                                        std::int64_t low, std::int64_t high) {
  const auto number = JsonFields::as_integer(value);
  if (!number || *number < low || *number > high)
    wrong_field(path, concat("an integer in [", low, ", ", high, "]"), value);
  return *number;
}

NANOVLLM_INLINE float number_at(const Json& value, const std::string& path, NumberRange range) {
  if (value.is_number() && std::abs(value.get<double>()) <= FLT_MAX) {
    const auto number = static_cast<float>(value.get<double>());
    if (range.contains(number)) return number;
  }
  wrong_field(path, range.words(), value);
}

NANOVLLM_INLINE std::vector<TokenId> token_ids_at(const Json& value, const std::string& path) {
  if (!value.is_array()) wrong_field(path, "a list of token ids", value);
  std::vector<TokenId> ids;
  ids.reserve(value.size());
  for (const Json& element : value) {
    const auto id = JsonFields::as_integer(element);
    if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max())
      wrong_field(element_path(path, ids.size()), "a token id, an integer from 0 on", element);
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
