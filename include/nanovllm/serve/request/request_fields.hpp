#pragma once
/// Reads the fields of a request's body. The first wrong one is thrown as an ApiError that names
/// the field, what was expected and what came.

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/request/api_error.hpp"

namespace nanovllm::serve {

/// Parses a body, which must be one JSON object. Throws ApiError (400) that says where it is wrong.
[[nodiscard]] Json parse_request_body(std::string_view body);

/// Throws ApiError (400): the field at `path` must be something else than `got`.
[[noreturn]] void wrong_field(const std::string& path, std::string_view expected, const Json& got);

/// Throws ApiError (400) for the field at `path`; the message is the path and the reason.
[[noreturn]] void refuse_field(const std::string& path, std::string_view reason);

/// "messages[2]": the path of an element.
[[nodiscard]] inline std::string element_path(std::string_view path, std::size_t index) {
  return concat(path, '[', index, ']');
}

/// A string, or an ApiError.
[[nodiscard]] const std::string& string_at(const Json& value, const std::string& path);

/// An integer in [low, high], or an ApiError; 5.0 counts as one.
[[nodiscard]] std::int64_t integer_at(const Json& value, const std::string& path, std::int64_t low,
                                      std::int64_t high);

/// The range of a number: [low, high], or (low, high].
struct NumberRange {
  double low = -FLT_MAX;
  double high = FLT_MAX;
  bool excludes_low = false;

  /// "a number in (0, 1]"
  [[nodiscard]] std::string words() const;
};

/// A number that lies in `range` as a float, or an ApiError.
[[nodiscard]] float number_at(const Json& value, const std::string& path, NumberRange range);

/// Token ids from 0 on, or an ApiError.
[[nodiscard]] std::vector<TokenId> token_ids_at(const Json& value, const std::string& path);

/// The fields of one object. One that is null counts as absent.
class RequestFields {
 public:
  /// `path` is where the object lies in the body: empty for the body itself. Throws ApiError unless
  /// `object` is one; it must outlive this.
  explicit RequestFields(const Json& object, std::string path = {});

  /// The field, or null when it is absent.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = object_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Throws ApiError if the field is there: to ignore it would give a wrong answer.
  void refuse(std::string_view key, std::string_view reason) const {
    if (has(key)) refuse_field(path(key), reason);
  }

  /// "response_format.type": the path of a field.
  [[nodiscard]] std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : concat(path_, '.', key);
  }

  /// The field. Throws ApiError when it is absent.
  [[nodiscard]] const Json& required(std::string_view key) const;

  // Typed: nothing when absent, ApiError for another type or range.
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] bool flag(std::string_view key, bool fallback = false) const {
    return boolean(key).value_or(fallback);
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::optional<float> number(std::string_view key, NumberRange range) const;
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;
  /// A list, or null when absent.
  [[nodiscard]] const Json* list(std::string_view key, std::size_t max_size) const;

 private:
  const Json& object_;
  std::string path_;
};

}  // namespace nanovllm::serve

#if NANOVLLM_BODIES

#include <cmath>
#include <limits>

#include "nanovllm/io/json_fields.hpp"

namespace nanovllm::serve {

NANOVLLM_INLINE Json parse_request_body(std::string_view body) {
  try {
    Json json = parse_json(body, "the body");
    check<RequestError>(json.is_object(), "the body must be a JSON object, got ",
                        nanovllm::detail::shown(json));
    return json;
  } catch (const RequestError& error) {
    throw ApiError(400, error.what());
  }
}

NANOVLLM_INLINE void wrong_field(const std::string& path, std::string_view expected,
                                 const Json& got) {
  throw ApiError(400, concat(path, " must be ", expected, ", got ", nanovllm::detail::shown(got)),
                 path);
}

NANOVLLM_INLINE void refuse_field(const std::string& path, std::string_view reason) {
  throw ApiError(400, concat(path, ' ', reason), path);
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
    const bool above = range.excludes_low ? number > range.low : number >= range.low;
    if (above && number <= range.high) return number;
  }
  wrong_field(path, range.words(), value);
}

NANOVLLM_INLINE std::string NumberRange::words() const {
  const auto written = [](double bound) {
    const bool is_whole = std::trunc(bound) == bound && std::abs(bound) < 0x1p53;
    return is_whole ? std::to_string(static_cast<std::int64_t>(bound)) : Json(bound).dump();
  };
  if (high >= FLT_MAX) {
    if (low <= -FLT_MAX) return "a number in the range of a float";
    return concat("a number ", excludes_low ? "> " : ">= ", written(low));
  }
  return concat("a number in ", excludes_low ? '(' : '[', written(low), ", ", written(high), "]");
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

NANOVLLM_INLINE RequestFields::RequestFields(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  if (!path_.empty()) wrong_field(path_, "an object", object);
  throw ApiError(400,
                 concat("the body must be a JSON object, got ", nanovllm::detail::shown(object)));
}

NANOVLLM_INLINE const Json& RequestFields::required(std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr) refuse_field(path(key), "is missing");
  return *found;
}

NANOVLLM_INLINE std::optional<bool> RequestFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) wrong_field(path(key), "true or false", *value);
  return value->boolean();
}

NANOVLLM_INLINE std::optional<std::int64_t> RequestFields::integer(std::string_view key,
                                                                   std::int64_t low,
                                                                   std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  return integer_at(*value, path(key), low, high);
}

NANOVLLM_INLINE std::optional<float> RequestFields::number(std::string_view key,
                                                           NumberRange range) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  return number_at(*value, path(key), range);
}

NANOVLLM_INLINE std::optional<std::string> RequestFields::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  return string_at(*value, path(key));
}

NANOVLLM_INLINE const Json* RequestFields::list(std::string_view key, std::size_t max_size) const {
  const Json* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) wrong_field(path(key), "a list", *value);
  if (value->size() > max_size)
    refuse_field(path(key),
                 concat("must have at most ", max_size, " elements, got ", value->size()));
  return value;
}

}  // namespace nanovllm::serve

#endif  // NANOVLLM_BODIES
