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

inline std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t i = 0; i < text.size(); i += out.back().size())
    out.push_back(text.substr(i, utf8::decode(text, i).size));
  return out;
}

inline std::size_t num_characters(std::string_view text) {
  return utf8::is_ascii(text) ? text.size() : characters(text).size();
}

/// `text[begin:end]` in characters, and where in characters it begins.
inline std::pair<std::string_view, std::size_t> part(std::string_view text, std::int64_t begin,
                                                     std::int64_t end) {
  std::vector<std::size_t> starts{0};
  for (const std::string_view c : characters(text)) starts.push_back(starts.back() + c.size());
  const auto size = static_cast<std::int64_t>(starts.size()) - 1;
  const auto bound = [&](std::int64_t at) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size));
  };
  const std::size_t first = bound(begin), last = std::max(first, bound(end));
  return {text.substr(starts[first], starts[last] - starts[first]), first};
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

/// `str.split`, or `str.rsplit` if `from_right`: the parts between separators, between white space
/// if there is none, and between all characters if it is empty. `most` cuts, or all if that is
/// below 0.
inline std::vector<std::string_view> split(std::string_view text,
                                           std::optional<std::string_view> separator,
                                           std::int64_t most = -1, bool from_right = false) {
  std::vector<std::pair<std::size_t, std::size_t>> cuts;  // where separators begin and end
  if (!separator) text = strip(text, !from_right, from_right);
  std::size_t begin = 0;
  if (!separator || separator->empty()) {
    for (const std::string_view c : characters(text)) {
      const bool goes = separator || is_space(utf8::decode(c, 0).code_point);
      const bool joins = !separator && !cuts.empty() && cuts.back().second == begin;
      if (goes && !joins) cuts.emplace_back(begin, begin);
      begin += c.size();
      if (goes && !separator) cuts.back().second = begin;
    }
    if (separator) cuts.emplace_back(begin, begin);
  } else {
    const auto next = [&](std::size_t first, std::size_t last) {
      return from_right ? text.substr(0, last).rfind(*separator) : text.find(*separator, first);
    };
    for (std::size_t at = next(0, text.size()); at != text.npos; at = next(begin, at)) {
      begin = at + separator->size();
      cuts.emplace_back(at, begin);
    }
    if (from_right) std::reverse(cuts.begin(), cuts.end());
  }
  const auto extra = static_cast<std::int64_t>(cuts.size()) - most;
  if (most >= 0 && extra > 0)
    cuts.erase(from_right ? cuts.begin() : cuts.end() - extra,
               from_right ? cuts.begin() + extra : cuts.end());
  cuts.emplace_back(text.size(), text.size());
  std::vector<std::string_view> out;
  begin = 0;
  for (const auto& [end, after] : cuts) {
    if (separator || begin < end) out.push_back(text.substr(begin, end - begin));
    begin = after;
  }
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
  for (const std::string_view c : characters(text)) out.push_back(category(utf8::decode(c, 0)));
  return out;
}
inline bool is_cased(int category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT;
}
inline bool is_letter(int category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
inline bool is_decimal(int category) { return category == UTF8PROC_CATEGORY_ND; }
inline bool is_letter_or_decimal(int category) {
  return is_letter(category) || is_decimal(category);
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
