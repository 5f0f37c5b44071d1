#pragma once
/// Text as Python sees it: characters, white space, case and `repr`.
///
/// Chat templates are written for Python, so a prompt equals the one the model was trained on only
/// if these agree byte for byte. Source: CPython Objects/unicodeobject.c.

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json_writer.hpp"

namespace nanovllm::python {

/// The characters of a text, for a loop over them.
class Characters {
 public:
  struct Iterator {
    std::string_view rest;

    std::string_view operator*() const { return rest.substr(0, utf8::decode(rest, 0).size); }
    Iterator& operator++() {
      rest.remove_prefix(utf8::decode(rest, 0).size);
      return *this;
    }
    bool operator!=(const Iterator& other) const { return rest.size() != other.rest.size(); }
  };
  explicit Characters(std::string_view text) : text_(text) {}
  [[nodiscard]] Iterator begin() const { return {text_}; }
  [[nodiscard]] Iterator end() const { return {}; }

 private:
  std::string_view text_;
};

inline std::size_t num_characters(std::string_view text) {
  if (utf8::is_ascii(text)) return text.size();
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++count) i += utf8::decode(text, i).size;
  return count;
}

/// `text[begin:end]` in characters, and where in characters it begins.
inline std::pair<std::string_view, std::size_t> part(std::string_view text, std::int64_t begin,
                                                     std::int64_t end) {
  const auto size = static_cast<std::int64_t>(num_characters(text));
  const auto bound = [&](std::int64_t at) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size));
  };
  const std::size_t first = bound(begin), count = std::max(first, bound(end)) - first;
  if (static_cast<std::size_t>(size) == text.size()) return {text.substr(first, count), first};
  const auto bytes = [](std::string_view of, std::size_t num) {
    std::size_t at = 0;
    for (; num > 0; --num) at += utf8::decode(of, at).size;
    return at;
  };
  text.remove_prefix(bytes(text, first));
  return {text.substr(0, bytes(text, count)), first};
}

/// `str.isspace` of a character.
inline bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0x2028 || c == 0x2029 ||
         utf8proc_category(static_cast<std::int32_t>(c)) == UTF8PROC_CATEGORY_ZS;
}

/// `str.strip`, at the sides that are named, of what `chars` has; by default of white space.
inline std::string_view strip(std::string_view text, bool left, bool right,
                              std::optional<std::string_view> chars = std::nullopt) {
  const auto goes = [&](std::size_t at, std::size_t size) {
    return chars ? chars->find(text.substr(at, size)) != chars->npos
                 : is_space(utf8::decode(text, at).code_point);
  };
  while (left && !text.empty() && goes(0, utf8::decode(text, 0).size))
    text.remove_prefix(utf8::decode(text, 0).size);
  while (right && !text.empty()) {
    const std::size_t last = utf8::previous(text, text.size());
    if (!goes(last, text.size() - last)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

/// Where white space is nearest to one end of `text`; npos if there is none.
inline std::size_t find_space(std::string_view text, bool from_right) {
  const auto is_at = [&](std::size_t i) { return is_space(utf8::decode(text, i).code_point); };
  std::size_t i = from_right ? text.size() : 0;
  while (from_right ? i > 0 : i < text.size()) {
    if (from_right) i = utf8::previous(text, i);
    if (is_at(i)) return i;
    if (!from_right) i += utf8::decode(text, i).size;
  }
  return text.npos;
}

/// `str.split`, or `str.rsplit` if `from_right`: the parts between separators, or between white
/// space if the separator is empty. `most` cuts, or all if that is below 0.
inline std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                           std::int64_t most, bool from_right) {
  const bool blank = separator.empty();
  std::vector<std::string_view> out;
  while (true) {
    if (blank) text = strip(text, !from_right, from_right);
    if (blank && text.empty()) break;
    const std::size_t at = most-- == 0  ? text.npos
                           : blank      ? find_space(text, from_right)
                           : from_right ? text.rfind(separator)
                                        : text.find(separator);
    const bool last = at == text.npos;
    const std::size_t size = last ? 0 : blank ? utf8::decode(text, at).size : separator.size();
    out.push_back(last ? text : from_right ? text.substr(at + size) : text.substr(0, at));
    if (last) break;
    text = from_right ? text.substr(0, at) : text.substr(at + size);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

enum class Case : std::uint8_t { lower, upper, title };

/// The simple mapping of each character; ß becomes SS as in Python.
inline void append_case(std::string& out, std::string_view text, Case to) {
  for (std::size_t i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    const auto code = static_cast<std::int32_t>(c.code_point);
    if (c.status != utf8::Status::kValid)
      out += text.substr(i, c.size);
    else if (code == 0xdf && to != Case::lower)
      out += to == Case::upper ? "SS" : "Ss";
    else
      utf8::append(out, static_cast<char32_t>(to == Case::lower   ? utf8proc_tolower(code)
                                              : to == Case::upper ? utf8proc_toupper(code)
                                                                  : utf8proc_totitle(code)));
    i += c.size;
  }
}

inline std::string in_case(std::string_view text, Case to) {
  std::string out;
  append_case(out, text, to);
  return out;
}

/// `str.capitalize`; a word of `str.title` as well.
inline std::string capitalize(std::string_view text) {
  std::string out;
  const std::size_t first = text.empty() ? 0 : utf8::decode(text, 0).size;
  append_case(out, text.substr(0, first), Case::title);
  append_case(out, text.substr(first), Case::lower);
  return out;
}

/// `markupsafe.escape`.
inline std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

/// The general category of a character, in utf8proc's version of Unicode.
inline int category(const utf8::Char& c) {
  return utf8proc_category(static_cast<std::int32_t>(c.code_point));
}
inline std::vector<int> categories(std::string_view text) {
  std::vector<int> out;
  for (const std::string_view c : Characters(text)) out.push_back(category(utf8::decode(c, 0)));
  return out;
}
inline bool is_cased(int category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}
inline bool is_letter(int category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
inline bool is_decimal(int category) { return category == UTF8PROC_CATEGORY_ND; }
inline bool is_letter_or_number(int category) {
  return is_letter(category) ||
         (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

/// `str.isprintable` of a character, in utf8proc's version of Unicode.
inline bool is_printable(std::int32_t code_point) {
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

/// `repr` of a string. Bytes that are not UTF-8 are copied as they are.
inline void append_repr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != text.npos;
  const char quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  for (std::size_t i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    const std::string_view bytes = text.substr(i, c.size);
    i += c.size;
    const auto code = static_cast<std::uint32_t>(c.code_point);
    if (code == static_cast<unsigned char>(quote) || code == '\\')
      (out += '\\') += bytes;
    else if (code == '\n')
      out += "\\n";
    else if (code == '\r')
      out += "\\r";
    else if (code == '\t')
      out += "\\t";
    else if (c.status != utf8::Status::kValid || is_printable(static_cast<std::int32_t>(code)))
      out += bytes;
    else {
      const int width = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
      (out += '\\') += width == 2 ? 'x' : width == 4 ? 'u' : 'U';
      nanovllm::detail::append_hex(out, code, width);
    }
  }
  out += quote;
}

}  // namespace nanovllm::python
