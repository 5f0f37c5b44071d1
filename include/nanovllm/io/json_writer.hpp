#pragma once
/// The text of a JSON value, as Python's `json` module writes it.

#include <cstdint>
#include <string>
#include <string_view>

#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json_value.hpp"

namespace nanovllm::detail {

/// Appends `value` as Python's `repr` of a float, with these words for what is not finite.
void append_python_float(std::string& out, double value, const char* nan, const char* infinity);

/// Appends a JSON string; all but quotes, backslashes and control characters as it is.
void append_json_string(std::string& out, std::string_view text);

/// Appends the lowest 4·`width` bits in hexadecimal.
void append_hex(std::string& out, std::uint32_t value, int width);

/// What `json.dumps` and `repr` of Python write differently.
struct PythonSpelling {
  const char *null, *yes, *no, *nan, *infinity;
  void (*string)(std::string&, std::string_view);
};

/// Appends `value`, which is `depth` levels inside another.
void append_value(std::string& out, const Json& value, const PythonSpelling& spelling, int depth);

}  // namespace nanovllm::detail

#if NANOVLLM_BODIES

#include <charconv>
#include <cmath>
#include <cstddef>

namespace nanovllm {

NANOVLLM_INLINE std::string Json::dump() const {
  constexpr detail::PythonSpelling kSpelling{"null", "true",     "false",
                                             "NaN",  "Infinity", detail::append_json_string};
  std::string out;
  detail::append_value(out, *this, kSpelling, 0);
  return out;
}

namespace detail {

NANOVLLM_INLINE void append_python_float(std::string& out, double value, const char* nan,
                                         const char* infinity) {
  if (std::isnan(value)) {
    out += nan;
    return;
  }
  if (std::signbit(value)) out += '-';
  if (std::isinf(value)) {
    out += infinity;
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

NANOVLLM_INLINE void append_hex(std::string& out, std::uint32_t value, int width) {
  for (int shift = 4 * (width - 1); shift >= 0; shift -= 4)
    out += "0123456789abcdef"[(value >> shift) & 15u];
}

NANOVLLM_INLINE void append_json_string(std::string& out, std::string_view text) {
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

NANOVLLM_INLINE void append_value(std::string& out, const Json& value,
                                  const PythonSpelling& spelling, int depth) {
  check<RequestError>(depth <= kMaxJsonDepth, "a JSON value is nested more than ", kMaxJsonDepth,
                      " levels deep");
  const char* separator = "";
  switch (value.kind()) {
    case Json::Kind::null: out += spelling.null; break;
    case Json::Kind::boolean: out += value.boolean() ? spelling.yes : spelling.no; break;
    case Json::Kind::integer: out += std::to_string(value.get<std::int64_t>()); break;
    case Json::Kind::unsigned_integer: out += std::to_string(value.get<std::uint64_t>()); break;
    case Json::Kind::real:
      append_python_float(out, value.get<double>(), spelling.nan, spelling.infinity);
      break;
    case Json::Kind::big_integer: out += value.digits(); break;
    case Json::Kind::string: spelling.string(out, value.string()); break;
    case Json::Kind::array:
      out += '[';
      for (const Json& element : value) {
        out += separator;
        append_value(out, element, spelling, depth + 1);
        separator = ", ";
      }
      out += ']';
      break;
    case Json::Kind::object:
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
}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
