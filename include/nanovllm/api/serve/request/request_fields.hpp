#pragma once
/// Reads the fields of a request's body. The first wrong one is thrown as a FieldError that names
/// the field, what was expected and what came; the service answers it with status 400.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/core/number_range.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/io/json_fields.hpp"
#include "nanovllm/io/json_values.hpp"

namespace nanovllm::serve {

/// The fields of one object. One that is null counts as absent.
class RequestFields {
 public:
  /// `path` is where the object lies in the body: empty for the body itself. Throws
  /// RequestError unless `object` is one; it must outlive this.
  explicit RequestFields(const Json& object, std::string path = {})
      : object_(object), path_(std::move(path)) {
    if (object.is_object()) return;
    if (!path_.empty()) wrong_field(path_, "an object", object);
    throw RequestError(
        concat("the body must be a JSON object, got ", nanovllm::detail::shown(object)));
  }

  /// The field, or null when it is absent.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = object_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Throws FieldError if the field is there: to ignore it would give a wrong answer.
  void refuse(std::string_view key, std::string_view reason) const {
    if (has(key)) refuse_field(path(key), reason);
  }

  /// "response_format.type": the path of a field.
  [[nodiscard]] std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : concat(path_, '.', key);
  }

  /// The field. Throws FieldError when it is absent.
  [[nodiscard]] const Json& required(std::string_view key) const {
    const Json* found = find(key);
    if (found == nullptr) refuse_field(path(key), "is missing");
    return *found;
  }

  // Typed: nothing when absent, FieldError for another type or range.
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_boolean()) wrong_field(path(key), "true or false", *value);
    return value->boolean();
  }
  [[nodiscard]] bool flag(std::string_view key, bool fallback = false) const {
    return boolean(key).value_or(fallback);
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return integer_at(*value, path(key), low, high);
  }
  [[nodiscard]] std::optional<float> number(std::string_view key, NumberRange range) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return number_at(*value, path(key), range);
  }
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    return string_at(*value, path(key));
  }
  /// A list, or null when absent.
  [[nodiscard]] const Json* list(std::string_view key, std::size_t max_size) const {
    const Json* value = find(key);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) wrong_field(path(key), "a list", *value);
    if (value->size() > max_size)
      refuse_field(path(key),
                   concat("must have at most ", max_size, " elements, got ", value->size()));
    return value;
  }

 private:
  const Json& object_;
  std::string path_;
};

/// Parses a body, which must be one JSON object. Throws RequestError that says where it is wrong.
[[nodiscard]] inline Json parse_request_body(std::string_view body) {
  Json json = parse_json(body, "the body");
  check<RequestError>(json.is_object(), "the body must be a JSON object, got ",
                      nanovllm::detail::shown(json));
  return json;
}

}  // namespace nanovllm::serve
