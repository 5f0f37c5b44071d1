#pragma once
/// Literals of Python as JSON: models write them where a tool wants a list or an object.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/scanners.hpp"
#include "nanovllm/core/utf8.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::detail {

/// Reads a literal at the front of a text. A member that returns false has failed for good.
class PythonLiteralReader {
 public:
  explicit PythonLiteralReader(std::string_view text) : rest_(text) {}

  bool read_all() { return read_value(0) && skip_blanks() == '\0' && rest_.empty(); }
  std::string take() { return std::move(out_); }

 private:
  /// The next byte that is no blank; 0 at the end.
  char skip_blanks() {
    while (!rest_.empty() && is_blank(rest_.front())) rest_.remove_prefix(1);
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take_char(char c) {
    if (skip_blanks() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool read_value(int depth);
  bool read_list(char end, int depth);
  bool read_dict(int depth);
  bool read_key();
  bool read_string();
  bool read_escape(std::string& text);
  bool read_hex(int num_digits, std::uint32_t& code);
  bool read_scalar();
  bool read_digits(std::string& digits);

  std::string_view rest_;
  std::string out_;
};

inline bool PythonLiteralReader::read_value(int depth) {
  if (depth == kMaxJsonDepth) return false;
  const char c = skip_blanks();
  switch (c) {
    case '[': rest_.remove_prefix(1); return read_list(']', depth);
    case '(': rest_.remove_prefix(1); return read_list(')', depth);
    case '{': rest_.remove_prefix(1); return read_dict(depth);
    case '\'':
    case '"': return read_string();
    default: return read_scalar();
  }
}

inline bool PythonLiteralReader::read_list(char end, int depth) {
  const std::size_t begin = out_.size();
  out_ += '[';
  std::size_t num_elements = 0;
  bool has_comma = false;
  while (!take_char(end)) {
    if (num_elements > 0) {
      if (!has_comma) return false;
      out_ += ", ";
    }
    if (!read_value(depth + 1)) return false;
    ++num_elements;
    has_comma = take_char(',');
  }
  if (end == ')' && num_elements == 1 && !has_comma)
    out_.erase(begin, 1);  // a value in parentheses
  else
    out_ += ']';
  return true;
}

inline bool PythonLiteralReader::read_dict(int depth) {
  out_ += '{';
  bool is_first = true, has_comma = false;
  while (!take_char('}')) {
    if (!is_first) {
      if (!has_comma) return false;
      out_ += ", ";
    }
    is_first = false;
    if (!read_key() || !take_char(':')) return false;
    out_ += ": ";
    if (!read_value(depth + 1)) return false;
    has_comma = take_char(',');
  }
  out_ += '}';
  return true;
}

inline bool PythonLiteralReader::read_key() {
  const char c = skip_blanks();
  if (c == '\'' || c == '"') return read_string();
  out_ += '"';
  if (!read_scalar()) return false;
  out_ += '"';
  return true;
}

inline bool PythonLiteralReader::read_string() {
  const char quote = rest_.front();
  rest_.remove_prefix(1);
  std::string text;
  while (!rest_.empty()) {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == quote) {
      append_json_string(out_, text);
      return true;
    }
    if (c != '\\')
      text += c;
    else if (!read_escape(text))
      return false;
  }
  return false;
}

inline bool PythonLiteralReader::read_escape(std::string& text) {
  if (rest_.empty()) return false;
  const char c = rest_.front();
  rest_.remove_prefix(1);
  constexpr std::string_view kNames = "abfnrtv\\'\"", kCodes = "\a\b\f\n\r\t\v\\'\"";
  if (const std::size_t i = kNames.find(c); i != kNames.npos) {
    text += kCodes[i];
    return true;
  }
  if (c == '\n') return true;  // the line goes on
  std::uint32_t code = 0;
  if (c >= '0' && c <= '7') {
    code = static_cast<std::uint32_t>(c - '0');
    for (int i = 0; i < 2 && !rest_.empty() && rest_.front() >= '0' && rest_.front() <= '7'; ++i) {
      code = code * 8 + static_cast<std::uint32_t>(rest_.front() - '0');
      rest_.remove_prefix(1);
    }
  } else if (c == 'x' || c == 'u' || c == 'U') {
    if (!read_hex(c == 'x' ? 2 : c == 'u' ? 4 : 8, code)) return false;
    // A pair of surrogates is one character, as in JSON.
    if (code >= 0xD800 && code < 0xDC00 && rest_.starts_with("\\u")) {
      rest_.remove_prefix(2);
      std::uint32_t low = 0;
      if (!read_hex(4, low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  } else {
    text += '\\';  // is no escape
    text += c;
    return true;
  }
  utf8::append(text, static_cast<char32_t>(code));
  return true;
}

inline bool PythonLiteralReader::read_hex(int num_digits, std::uint32_t& code) {
  if (rest_.size() < static_cast<std::size_t>(num_digits)) return false;
  code = 0;
  for (; num_digits > 0; --num_digits) {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return false;
    code = code * 16 + static_cast<std::uint32_t>(digit);
  }
  return true;
}

/// Digits, with single underscores between them. False if there are none.
inline bool PythonLiteralReader::read_digits(std::string& digits) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t before = digits.size();
  while (!rest_.empty()) {
    const bool is_between =
        rest_.front() == '_' && digits.size() > before && rest_.size() > 1 && is_digit(rest_[1]);
    if (!is_between && !is_digit(rest_.front())) break;
    if (!is_between) digits += rest_.front();
    rest_.remove_prefix(1);
  }
  return digits.size() > before;
}

/// A word or a number.
inline bool PythonLiteralReader::read_scalar() {
  constexpr std::string_view kWords[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                            {"true", "true"}, {"false", "false"}, {"null", "null"}};
  for (const auto& [word, json] : kWords) {
    if (!rest_.starts_with(word)) continue;
    rest_.remove_prefix(word.size());
    out_ += json;
    return true;
  }
  if (rest_.starts_with('-')) out_ += '-';
  if (rest_.starts_with('-') || rest_.starts_with('+')) rest_.remove_prefix(1);
  std::string digits, decimals;
  const bool has_digits = read_digits(digits);
  if (has_digits && digits.size() > 1 && digits.front() == '0') return false;
  const bool has_point = rest_.starts_with('.');
  if (has_point) rest_.remove_prefix(1);
  if (!(has_point && read_digits(decimals)) && !has_digits) return false;
  out_ += has_digits ? digits : "0";
  if (has_point) out_ += '.' + (decimals.empty() ? "0" : decimals);
  if (!rest_.starts_with('e') && !rest_.starts_with('E')) return true;
  rest_.remove_prefix(1);
  out_ += 'e';
  if (rest_.starts_with('-')) out_ += '-';
  if (rest_.starts_with('-') || rest_.starts_with('+')) rest_.remove_prefix(1);
  return read_digits(out_);
}

/// The JSON of a literal of Python: strings in either quotes, numbers, True, False, None, lists,
/// tuples (as lists) and dicts, with a comma before the end or without; true, false and null count
/// as well, and a string may have line feeds in it. Keys that are no strings become strings, as
/// `json.dumps` has it. Nothing for any other text; of what is returned, numbers may be of any size
/// and strings of any bytes, which `parse_json_value` refuses.
[[nodiscard]] inline std::optional<std::string> json_of_python_literal(std::string_view text) {
  PythonLiteralReader reader(text);
  if (!reader.read_all()) return std::nullopt;
  return reader.take();
}

}  // namespace nanovllm::detail
