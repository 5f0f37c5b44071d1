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
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// The problems found in one file, raised together.
class Problems {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    list_.push_back(concat(parts...));
  }

  [[nodiscard]] bool empty() const { return list_.empty(); }

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
  std::vector<std::string> list_;
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

  /// True when the field is there and null.
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

  /// A number for which `accept`, false for NaN, holds; `expected` says so in words. Nothing when
  /// absent.
  [[nodiscard]] std::optional<double> number(std::string_view key, std::string_view expected,
                                             bool (*accept)(double)) const;

  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;

  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;

  /// Adds the problem that `key` must be something else than `got`.
  void wrong(std::string_view key, std::string_view expected, const Json& got) const;

  /// The integer that `value` is, if it is one that fits.
  [[nodiscard]] static std::optional<std::int64_t> as_integer(const Json& value);

 private:
  const Json& object_;
  std::string prefix_;
  Problems& problems_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/io/json_fields.inc"
#endif
