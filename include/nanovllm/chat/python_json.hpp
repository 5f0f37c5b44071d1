#pragma once
/// JSON as Python's `json` module writes it, and `str()` and truth of what it reads.
///
/// Chat templates print tools and arguments with `json.dumps(value, ensure_ascii=False)`, so a
/// prompt equals the one the model was trained on only if this text does, byte for byte.
/// Source: CPython Lib/json, Objects/unicodeobject.c, Python/pystrtod.c (format code 'r').

#include <string>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm {

/// `json.dumps(value, ensure_ascii=False)`; see Json::dump.
[[nodiscard]] inline std::string python_json(const Json& value) { return value.dump(); }

/// `str(value)`: what Jinja prints for `{{ value }}`. Throws like `python_json`.
[[nodiscard]] std::string python_str(const Json& value);

/// `bool(value)`: null, false, zero and everything empty is false.
[[nodiscard]] bool python_truth(const Json& value);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <utf8proc.h>
#include <cstddef>

#include <cstdint>
#include <string_view>

namespace nanovllm {

namespace detail {

/// Python's `str.isprintable` of one character. The categories are those of utf8proc's Unicode
/// version, which may be newer or older than a given Python's.
NANOVLLM_INLINE bool python_printable(std::int32_t code_point) {
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
NANOVLLM_INLINE void append_python_repr(std::string& out, std::string_view text) {
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

}  // namespace detail

NANOVLLM_INLINE std::string python_str(const Json& value) {
  if (value.is_string()) return value.string();
  constexpr detail::PythonSpelling kSpelling{"None", "True", "False",
                                             "nan",  "inf",  detail::append_python_repr};
  std::string out;
  detail::append_value(out, value, kSpelling, 0);
  return out;
}

NANOVLLM_INLINE bool python_truth(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::boolean: return value.boolean();
    case Json::Kind::big_integer: return true;
    case Json::Kind::string: return !value.string().empty();
    default: return value.is_number() ? value.get<double>() != 0.0 : !value.empty();
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
