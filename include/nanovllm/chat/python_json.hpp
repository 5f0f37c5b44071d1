#pragma once
/// JSON as Python's `json` module reads and writes it, and `str()` of what it reads.
///
/// Chat templates print tools and arguments with `json.dumps(value, ensure_ascii=False)`, so a
/// prompt equals the one the model was trained on only if this text does, byte for byte. Values are
/// nlohmann's with insertion order. An integer that needs more than 64 bits is kept as its digits
/// in a binary value (JSON text has no other way to make one), so that it prints exactly.
/// Source: CPython Lib/json, Objects/unicodeobject.c, Python/pystrtod.c (format code 'r').

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// A JSON value whose objects keep the order of insertion.
using Json = nlohmann::ordered_json;

/// Deeper nesting than this is refused: reading and printing would otherwise exhaust the stack.
inline constexpr int kMaxJsonDepth = 256;

namespace detail {

inline constexpr std::uint64_t kBigIntegerSubtype = 0x696e74;  // "int"

/// The digits of an integer beyond 64 bits, or nothing for any other value.
inline std::optional<std::string> big_integer_digits(const Json& value) {
  if (!value.is_binary()) return std::nullopt;
  const auto& bytes = value.get_binary();
  check<RequestError>(bytes.has_subtype() && bytes.subtype() == kBigIntegerSubtype,
                      "a binary value cannot be written as JSON");
  return std::string(bytes.begin(), bytes.end());
}

/// Builds a Json from nlohmann's parser events; the names are that library's interface.
template <class E>
class JsonBuilder {
 public:
  explicit JsonBuilder(std::string_view what) : what_(what) {}

  [[nodiscard]] Json take() { return std::move(root_); }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(Json::number_integer_t value) { return put(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(value); }
  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") != std::string::npos) return put(value);
    return put(Json::binary({text.begin(), text.end()}, kBigIntegerSubtype));
  }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // no JSON text has one
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    member_ = &(*open_.back())[name];  // of equal keys the last value counts, as in Python
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) {
    throw E(concat(what_, " is not valid JSON (byte ", position, "): ", reason(error.what())));
  }

 private:
  /// nlohmann's message without its "[json.exception…] parse error at …: " label and without the
  /// text it quotes, which may be long and need not be UTF-8.
  static std::string_view reason(std::string_view message) {
    if (const auto bracket = message.find("] "); bracket != message.npos)
      message.remove_prefix(bracket + 2);
    if (message.starts_with("parse error")) {
      if (const auto colon = message.find(": "); colon != message.npos)
        message.remove_prefix(colon + 2);
    }
    return message.substr(0, std::min<std::size_t>(message.find("; last read:"), 120));
  }

  template <class Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }

  template <class Value>
  Json* place(Value&& value) {
    if (open_.empty()) return &(root_ = std::forward<Value>(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(*member_ = std::forward<Value>(value));
    parent.push_back(Json(std::forward<Value>(value)));
    return &parent.back();
  }

  bool open(Json container) {
    check<E>(open_.size() < static_cast<std::size_t>(kMaxJsonDepth), what_, " is nested more than ",
             kMaxJsonDepth, " levels deep");
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string what_;
  Json root_;
  Json* member_ = nullptr;
  std::vector<Json*> open_;  // the containers being read, outermost first
};

inline void append_python_float(std::string& out, double value, const char* nan, const char* inf) {
  if (std::isnan(value)) {
    out += nan;
    return;
  }
  if (std::signbit(value)) out += '-';
  if (std::isinf(value)) {
    out += inf;
    return;
  }
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, std::fabs(value), std::chars_format::scientific)
          .ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const char* const sign = shortest.data() + e + 1;  // from_chars takes no '+'
  std::from_chars(*sign == '+' ? sign + 1 : sign, end, exponent);
  if (exponent < -4 || exponent >= 16) {
    out += shortest;  // to_chars too writes at least two digits of exponent
    return;
  }
  std::string digits(1, shortest[0]);
  if (e > 2) digits += shortest.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
  } else if (num_digits <= exponent + 1) {
    out.append(digits).append(static_cast<std::size_t>(exponent + 1 - num_digits), '0') += ".0";
  } else {
    const auto point = static_cast<std::size_t>(exponent + 1);
    out.append(digits, 0, point).append(".").append(digits, point);
  }
}

inline void append_hex(std::string& out, std::uint32_t value, int width) {
  for (int shift = 4 * (width - 1); shift >= 0; shift -= 4)
    out += "0123456789abcdef"[(value >> shift) & 15u];
}

inline void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u";
          append_hex(out, static_cast<unsigned char>(c), 4);
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// Python's `str.isprintable` of one character. The categories are those of utf8proc's Unicode
/// version, which may be newer or older than a given Python's.
inline bool python_printable(std::int32_t code_point) {
  switch (utf8proc_category(code_point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code_point == ' ';
    default: return true;
  }
}

/// Python's `repr` of a string. Bytes that are not UTF-8 are copied as they are.
inline void append_python_repr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != text.npos;
  const char quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t i = 0; i < text.size();) {
    utf8proc_int32_t c = 0;
    const auto length =
        utf8proc_iterate(bytes + i, static_cast<utf8proc_ssize_t>(text.size() - i), &c);
    const std::size_t taken = length > 0 ? static_cast<std::size_t>(length) : 1;
    const std::string_view raw = text.substr(i, taken);
    i += taken;
    if (c == quote || c == '\\')
      (out += '\\') += raw;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (length <= 0 || python_printable(c))
      out += raw;
    else {
      const int width = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      (out += '\\') += width == 2 ? 'x' : width == 4 ? 'u' : 'U';
      append_hex(out, static_cast<std::uint32_t>(c), width);
    }
  }
  out += quote;
}

/// The words and quoting in which `json.dumps` and `repr` differ.
struct PythonSpelling {
  const char *null, *yes, *no, *nan, *inf;
  void (*string)(std::string&, std::string_view);
};
inline constexpr PythonSpelling kJsonSpelling{"null", "true",     "false",
                                              "NaN",  "Infinity", append_json_string};
inline constexpr PythonSpelling kReprSpelling{"None", "True", "False",
                                              "nan",  "inf",  append_python_repr};

inline void append_value(std::string& out, const Json& value, const PythonSpelling& spelling,
                         int depth) {
  check<RequestError>(depth <= kMaxJsonDepth, "a JSON value is nested more than ", kMaxJsonDepth,
                      " levels deep");
  const char* separator = "";
  switch (value.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded: out += spelling.null; break;
    case Json::value_t::boolean: out += value.get<bool>() ? spelling.yes : spelling.no; break;
    case Json::value_t::number_integer: append(out, value.get<std::int64_t>()); break;
    case Json::value_t::number_unsigned: append(out, value.get<std::uint64_t>()); break;
    case Json::value_t::number_float:
      append_python_float(out, value.get<double>(), spelling.nan, spelling.inf);
      break;
    case Json::value_t::string: spelling.string(out, value.get_ref<const std::string&>()); break;
    case Json::value_t::binary: out += *big_integer_digits(value); break;
    case Json::value_t::array:
      out += '[';
      for (const Json& element : value) {
        out += separator;
        append_value(out, element, spelling, depth + 1);
        separator = ", ";
      }
      out += ']';
      break;
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, element] : value.items()) {
        out += separator;
        spelling.string(out, key);
        out += ": ";
        append_value(out, element, spelling, depth + 1);
        separator = ", ";
      }
      out += '}';
      break;
  }
}

}  // namespace detail

/// Reads one JSON document, strict UTF-8 included, as Python's `json.loads` does, but for what is
/// refused: NaN and Infinity, lone surrogates, numbers beyond a double's range, and nesting deeper
/// than kMaxJsonDepth. Throws `E` whose message begins with `what`.
template <class E = RequestError>
[[nodiscard]] Json parse_json(std::string_view text, std::string_view what = "the text") {
  const std::size_t nul = text.find('\0');  // nlohmann's lexer would take it for the end
  check<E>(nul == text.npos, what, " is not valid JSON (byte ", nul + 1, "): a NUL byte");
  detail::JsonBuilder<E> builder(what);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

/// `json.dumps(value, ensure_ascii=False)`. Strings are written as they are, so they must be UTF-8
/// for the result to be. Throws RequestError for binary values and too deep a nesting.
[[nodiscard]] inline std::string python_json(const Json& value) {
  std::string out;
  detail::append_value(out, value, detail::kJsonSpelling, 0);
  return out;
}

/// `str(value)`: what Jinja prints for `{{ value }}`. Throws like `python_json`.
[[nodiscard]] inline std::string python_str(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string out;
  detail::append_value(out, value, detail::kReprSpelling, 0);
  return out;
}

/// `bool(value)`: null, false, zero and everything empty is false.
[[nodiscard]] inline bool python_truth(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded: return false;
    case Json::value_t::boolean: return value.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float: return value.get<double>() != 0.0;
    case Json::value_t::string: return !value.get_ref<const std::string&>().empty();
    case Json::value_t::binary: return true;
    default: return !value.empty();
  }
}

}  // namespace nanovllm
