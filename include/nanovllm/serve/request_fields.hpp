#pragma once
/// Reads the fields of a request's body. The first that is wrong is thrown as an ApiError that
/// names it, says what was expected, and what came.

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
#include "nanovllm/serve/api_error.hpp"

namespace nanovllm::serve {

/// Reads a body, which must be one JSON object. Throws ApiError (400) that says where it is not.
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

/// Numbers that a field may have: in [low, high], or in (low, high].
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
#include "nanovllm/serve/request_fields.inc"
#endif
