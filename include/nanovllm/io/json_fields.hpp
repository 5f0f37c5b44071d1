#pragma once
/// Reads the fields of a JSON object that people and programs write by hand, and collects every
/// problem instead of stopping at the first.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// The problems found in one file, raised together, and what was found and is ignored.
class Problems {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    list_.push_back(concat(parts...));
  }

  [[nodiscard]] bool empty() const { return list_.empty(); }

  template <class... Parts>
  void warn(const Parts&... parts) {
    warnings_.push_back(concat(parts...));
  }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  /// Throws `E` that names `subject` and lists every problem, if there is any.
  template <class E>
  void raise(std::string_view subject) const {
    if (list_.empty()) return;
    std::string text =
        concat(subject, ": ", list_.size(), list_.size() == 1 ? " problem" : " problems");
    for (const std::string& problem : list_) text += "\n  - " + problem;
    throw E(text);
  }

 private:
  std::vector<std::string> list_, warnings_;
};

/// Parses `text`, which must be one JSON object. Throws `E` naming `source` otherwise.
template <class E>
[[nodiscard]] Json parse_json_object(std::string_view text, std::string_view source) {
  Json json = parse_json<E>(text, source);
  check<E>(json.is_object(), source, ": expected a JSON object, got ", json.type_name());
  return json;
}

namespace detail {

/// The value for a message: a scalar as JSON, shortened; of an array or object the size only.
[[nodiscard]] std::string shown(const Json& value);

}  // namespace detail

/// Typed access to the fields of one object. A field that is null counts as absent. A value of the
/// wrong type or out of range is added to the problems and read as the fallback.
class JsonFields {
 public:
  /// `prefix` stands before field names in messages: "" or "rope_scaling.". `object` and `problems`
  /// must outlive this.
  JsonFields(const Json& object, std::string prefix, Problems& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  /// The field, or null when it is absent.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = object_.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  /// True if the field is present and null.
  [[nodiscard]] bool is_null(std::string_view key) const {
    const Json* found = object_.find(key);
    return found != nullptr && found->is_null();
  }

  /// An integer in [low, high]; 4096.0 counts as one. Nothing when absent.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const;

  /// The same, but absence is a problem too.
  [[nodiscard]] std::optional<std::int64_t> required_integer(std::string_view key, std::int64_t low,
                                                             std::int64_t high) const;

  /// A number for which `accept`, false for NaN, holds; `expected` describes it. Nothing when
  /// absent.
  [[nodiscard]] std::optional<double> number(std::string_view key, std::string_view expected,
                                             bool (*accept)(double)) const;

  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;

  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;

  /// Adds the problem that `key` must be something else than `got`.
  void wrong(std::string_view key, std::string_view expected, const Json& got) const;

  /// What `wrong` is to show of a list: the first element that does not fit, or all of `value`
  /// where that is no list. Null where everything fits.
  template <class Fits>
  [[nodiscard]] static const Json* first_wrong(const Json& value, const Fits& fits) {
    if (!value.is_array()) return &value;
    for (const Json& element : value)
      if (!fits(element)) return &element;
    return nullptr;
  }

  /// Warns that what `key` has, `got`, is ignored.
  void ignored(std::string_view key, const Json& got, std::string_view why) const;

  /// The integer that `value` is, if it is one that fits.
  [[nodiscard]] static std::optional<std::int64_t> as_integer(const Json& value);

 private:
  const Json& object_;
  std::string prefix_;
  Problems& problems_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <charconv>
#include <cmath>
#include <limits>

#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

NANOVLLM_INLINE std::string detail::shown(const Json& value) {
  if (value.is_structured()) {
    return concat(value.is_array() ? "an array of " : "an object of ", value.size());
  }
  std::string text = value.dump();
  if (text.size() <= 60) return text;
  text.resize(57);
  text.resize(utf8::complete_prefix(text));
  return text + "...";
}

NANOVLLM_INLINE std::optional<std::int64_t> JsonFields::integer(std::string_view key,
                                                                std::int64_t low,
                                                                std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (const auto number = as_integer(*value); number && *number >= low && *number <= high) {
    return number;
  }
  wrong(key, concat("an integer in [", low, ", ", high, "]"), *value);
  return {};
}

NANOVLLM_INLINE std::optional<std::int64_t> JsonFields::required_integer(std::string_view key,
                                                                         std::int64_t low,
                                                                         std::int64_t high) const {
  if (find(key) == nullptr) problems_.add("'", prefix_, key, "' is missing");
  return integer(key, low, high);
}

NANOVLLM_INLINE std::optional<double> JsonFields::number(std::string_view key,
                                                         std::string_view expected,
                                                         bool (*accept)(double)) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  double number = std::nan("");
  if (value->is_number()) number = value->get<double>();
  if (value->is_big_integer()) {
    const std::string& digits = value->digits();
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
  }
  if (accept(number)) return number;
  wrong(key, expected, *value);
  return {};
}

NANOVLLM_INLINE std::optional<bool> JsonFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_boolean()) return value->boolean();
  wrong(key, "true or false", *value);
  return {};
}

NANOVLLM_INLINE std::optional<std::string> JsonFields::string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->string();
  wrong(key, "a string", *value);
  return {};
}

NANOVLLM_INLINE void JsonFields::wrong(std::string_view key, std::string_view expected,
                                       const Json& got) const {
  problems_.add("'", prefix_, key, "' must be ", expected, ", got ", detail::shown(got));
}

NANOVLLM_INLINE void JsonFields::ignored(std::string_view key, const Json& got,
                                         std::string_view why) const {
  problems_.warn("'", prefix_, key, "' (", detail::shown(got), ") is ignored: ", why);
}

NANOVLLM_INLINE std::optional<std::int64_t> JsonFields::as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return {};
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return {};
  const auto number = value.get<double>();
  const bool exact = std::abs(number) <= 0x1p53 && std::trunc(number) == number;
  return exact ? std::optional(static_cast<std::int64_t>(number)) : std::nullopt;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
