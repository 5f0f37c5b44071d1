#pragma once
/// The metadata of a GGUF file: values by their keys.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/with/gguf/gguf_types.hpp"

namespace nanovllm {

/// A value, or several of one type. Refers to the file's bytes, all of which have been checked.
struct GgufValue {
  GgufValueType type{};  ///< of an array: of its elements
  bool is_array = false;
  std::uint64_t count = 1;
  std::span<const std::byte> bytes{};  ///< the values as they lie in the file

  /// "uint32", "array of string", for messages.
  [[nodiscard]] std::string type_name() const;
};

/// Values by key, read as the type that the caller wants. A value of another type is a LoadError
/// that names file and key. Views live as long as the bytes that they refer to.
class GgufMetadata {
 public:
  /// @param source  the file's name, for messages.
  explicit GgufMetadata(std::string source = {}) : source_(std::move(source)) {}

  /// False, with nothing done, when there is a value of that key.
  bool add(std::string_view key, const GgufValue& value) {
    return values_.emplace(key, value).second;
  }

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] const GgufValue* find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  /// These give nothing where the key is absent. An integer may have any width and must fit into
  /// 64 bits with a sign; a number is an integer, or a finite float of either width. A float32
  /// becomes the double that its shortest decimal notation means: 1e-6 is 1e-6. Strings must be
  /// UTF-8.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> string(std::string_view key) const;
  /// Of an array.
  [[nodiscard]] std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;

 private:
  [[noreturn]] void fail(std::string_view key, std::string_view expected,
                         const GgufValue& value) const;
  void check_text(std::string_view key, std::string_view text) const;

  std::string source_;
  std::unordered_map<std::string_view, GgufValue> values_;
};

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

namespace detail {

/// The value of type `T` at `bytes`.
template <class T>
[[nodiscard]] T read_as(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// Value `index` of integers; nothing where they are none, or it does not fit.
NANOVLLM_INLINE std::optional<std::int64_t> integer_at(const GgufValue& value,
                                                       std::uint64_t index) {
  using enum GgufValueType;
  const std::size_t item = kGgufValues[static_cast<std::size_t>(value.type)].bytes;
  const std::byte* const bytes = value.bytes.data() + index * item;
  switch (value.type) {
    case u8: return read_as<std::uint8_t>(bytes);
    case i8: return read_as<std::int8_t>(bytes);
    case u16: return read_as<std::uint16_t>(bytes);
    case i16: return read_as<std::int16_t>(bytes);
    case u32: return read_as<std::uint32_t>(bytes);
    case i32: return read_as<std::int32_t>(bytes);
    case i64: return read_as<std::int64_t>(bytes);
    case u64: break;
    default: return std::nullopt;
  }
  const auto wide = read_as<std::uint64_t>(bytes);
  if (wide > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return std::nullopt;
  return static_cast<std::int64_t>(wide);
}

/// Whether `integer_at` reads values of this type.
[[nodiscard]] NANOVLLM_INLINE bool is_integer(GgufValueType type) {
  using enum GgufValueType;
  return type == u8 || type == i8 || type == u16 || type == i16 || type == u32 || type == i32 ||
         type == u64 || type == i64;
}

/// What a message quotes of a text of the file.
[[nodiscard]] NANOVLLM_INLINE std::string_view beginning_of(std::string_view text) {
  constexpr std::size_t kShown = 100;
  return text.substr(0, utf8::complete_prefix(text.substr(0, kShown)));
}

/// The double that the shortest decimal notation of `value` means.
NANOVLLM_INLINE double decimal_of(float value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  const char* const end = std::to_chars(text, text + sizeof text, value).ptr;
  double out = 0;
  std::from_chars(text, end, out);
  return out;
}

}  // namespace detail

NANOVLLM_INLINE std::string GgufValue::type_name() const {
  return concat(is_array ? "array of " : "", name(type));
}

NANOVLLM_INLINE void GgufMetadata::fail(std::string_view key, std::string_view expected,
                                        const GgufValue& value) const {
  throw LoadError(concat("'", source_, "': '", detail::beginning_of(key), "' must be ", expected,
                         ", got ", value.type_name()));
}

NANOVLLM_INLINE void GgufMetadata::check_text(std::string_view key, std::string_view text) const {
  const std::size_t valid = utf8::valid_prefix(text);
  check<LoadError>(valid == text.size(), "'", source_, "': '", detail::beginning_of(key),
                   "' must be UTF-8, and is not at byte ", valid, " of '",
                   detail::beginning_of(text.substr(0, valid)), "'");
}

NANOVLLM_INLINE std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  constexpr const char* kExpected = "an integer below 2^63";
  if (value->is_array) fail(key, kExpected, *value);
  const std::optional<std::int64_t> out = detail::integer_at(*value, 0);
  if (!out) fail(key, kExpected, *value);
  return out;
}

NANOVLLM_INLINE std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool is_float = value->type == GgufValueType::f32 || value->type == GgufValueType::f64;
  if (!value->is_array && is_float) {
    const double out = value->type == GgufValueType::f64
                           ? detail::read_as<double>(value->bytes.data())
                           : detail::decimal_of(detail::read_as<float>(value->bytes.data()));
    check<LoadError>(std::isfinite(out), "'", source_, "': '", detail::beginning_of(key),
                     "' must be finite, got ", out);
    return out;
  }
  const std::optional<std::int64_t> integer =
      value->is_array ? std::nullopt : detail::integer_at(*value, 0);
  if (!integer) fail(key, "a number", *value);
  return static_cast<double>(*integer);
}

NANOVLLM_INLINE std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufValueType::boolean) fail(key, "a bool", *value);
  return value->bytes[0] != std::byte{0};
}

NANOVLLM_INLINE std::optional<std::string_view> GgufMetadata::string(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufValueType::string) fail(key, "a string", *value);
  constexpr std::size_t kLength = sizeof(std::uint64_t);
  const std::string_view out(reinterpret_cast<const char*>(value->bytes.data()) + kLength,
                             value->bytes.size() - kLength);
  check_text(key, out);
  return out;
}

NANOVLLM_INLINE std::optional<std::vector<std::string_view>> GgufMetadata::strings(
    std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufValueType::string)
    fail(key, "an array of string", *value);
  std::vector<std::string_view> out;
  out.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto length = detail::read_as<std::uint64_t>(at);
    at += sizeof length;
    check_text(key, out.emplace_back(reinterpret_cast<const char*>(at), length));
    at += length;
  }
  return out;
}

NANOVLLM_INLINE std::optional<std::vector<std::int64_t>> GgufMetadata::integers(
    std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  constexpr const char* kExpected = "an array of integers below 2^63";
  if (!value->is_array || !detail::is_integer(value->type)) fail(key, kExpected, *value);
  std::vector<std::int64_t> out;
  out.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const std::optional<std::int64_t> entry = detail::integer_at(*value, i);
    if (!entry) fail(key, kExpected, *value);
    out.push_back(*entry);
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
