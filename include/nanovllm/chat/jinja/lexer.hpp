#pragma once
/// Cuts a template into tokens, as Jinja2 does with trim_blocks and lstrip_blocks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/chat/jinja/text.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm::jinja {

/// A message with the place in the template that it is about.
inline std::string at_place(std::string_view source, std::size_t offset, std::string_view message) {
  const std::string_view before = source.substr(0, offset);
  const std::size_t line = before.rfind('\n');
  return concat(
      "chat template, line ", 1 + std::count(before.begin(), before.end(), '\n'), ", column ",
      1 + num_characters(line == before.npos ? before : before.substr(line + 1)), ": ", message);
}

struct Token {
  enum class Type : std::uint8_t {
    text,
    block_begin,
    block_end,
    output_begin,
    output_end,
    name,
    string,
    integer,
    real,
    op,
    end,
  };
  Type type;
  std::size_t offset;
  std::string text{};  ///< a string's value, the spelling of others

  [[nodiscard]] bool is_op(std::string_view spelling) const {
    return type == Type::op && text == spelling;
  }
  [[nodiscard]] bool is_name(std::string_view spelling) const {
    return type == Type::name && text == spelling;
  }
};

/// Every line end becomes '\n', and one at the end of the template is dropped.
inline std::string normalise_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool crlf = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!crlf) out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  /// The last token is an `end`. Throws ConfigError.
  [[nodiscard]] std::vector<Token> tokens() {
    while (true) {
      const std::size_t tag = find_tag(at_);
      add_text(tag);
      if (tag == source_.npos) break;
      at_ = tag + 2;
      if (source_[tag + 1] == '#')
        skip_comment(tag);
      else if (!read_raw(tag))
        read_tag(tag);
    }
    add(Token::Type::end, source_.size());
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::size_t offset, std::string_view message) const {
    throw ConfigError(at_place(source_, offset, message));
  }
  [[nodiscard]] std::string_view rest() const { return source_.substr(at_); }
  [[nodiscard]] bool has(std::string_view what) const { return rest().starts_with(what); }
  [[nodiscard]] char peek(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  void add(Token::Type type, std::size_t offset, std::string text = {}) {
    out_.push_back({type, offset, std::move(text)});
  }

  [[nodiscard]] std::size_t find_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i != source_.npos; i = source_.find('{', i + 1))
      if (peek(i + 1) == '%' || peek(i + 1) == '{' || peek(i + 1) == '#') return i;
    return source_.npos;
  }

  /// What lies ahead of the tag, without what the tag's sign or lstrip_blocks takes away.
  void add_text(std::size_t tag) {
    std::string_view text = source_.substr(at_, tag == source_.npos ? tag : tag - at_);
    const char sign = tag == source_.npos ? '+' : peek(tag + 2);
    if (sign == '-') {
      text = strip(text, false, true);
    } else if (sign != '+' && source_[tag + 1] != '{') {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == text.npos ? 0 : newline + 1;
      const bool at_line_start = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
      if (at_line_start && strip(text.substr(line), true, true).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::Type::text, at_, std::string(text));
  }

  /// Reads `close`, with its sign and what goes behind it, and says whether it was there.
  bool read_close(std::string_view close) {
    const char sign = peek(at_);
    const bool signed_close = (sign == '-' || (sign == '+' && close != "}}")) &&
                              source_.substr(at_ + 1).starts_with(close);
    if (!signed_close && !has(close)) return false;
    at_ += close.size() + (signed_close ? 1 : 0);
    if (signed_close && sign == '-')
      at_ = source_.size() - strip(rest(), true, false).size();
    else if (!signed_close && close != "}}" && peek(at_) == '\n')
      ++at_;
    return true;
  }

  void skip_comment(std::size_t tag) {
    for (; at_ < source_.size(); ++at_)
      if (read_close("#}")) return;
    refuse(tag, "expected '#}' at the end of this comment");
  }

  void skip_space() { at_ = source_.size() - strip(rest(), true, false).size(); }

  /// `{% word`, with a sign; at_ is behind it then, and blanks.
  bool read_opening(std::string_view word) {
    const std::size_t begin = at_;
    if (peek(at_) == '-' || peek(at_) == '+') ++at_;
    skip_space();
    if (has(word)) {
      at_ += word.size();
      skip_space();
      if (has("%}") || has("-%}") || has("+%}")) return true;
    }
    at_ = begin;
    return false;
  }

  /// A raw block at `tag`.
  bool read_raw(std::size_t tag) {
    if (source_[tag + 1] != '%' || !read_opening("raw")) return false;
    if (has("-"))
      ++at_, at_ += 2, skip_space();
    else
      at_ += has("+") ? 3 : 2;
    const std::size_t text = at_;
    for (std::size_t i = source_.find("{%", at_); i != source_.npos;
         i = source_.find("{%", i + 1)) {
      at_ = i + 2;
      if (!read_opening("endraw")) continue;
      const std::size_t close = std::exchange(at_, text);
      add_text(i);
      at_ = close;
      read_close("%}");
      return true;
    }
    refuse(tag, "expected {% endraw %} for this raw block");
  }

  void read_tag(std::size_t tag) {
    const bool block = source_[tag + 1] == '%';
    add(block ? Token::Type::block_begin : Token::Type::output_begin, tag);
    if (peek(at_) == '-' || peek(at_) == '+') ++at_;
    std::string open;  // brackets
    while (true) {
      skip_space();
      const std::size_t begin = at_;
      if (at_ == source_.size()) refuse(tag, block ? "expected '%}'" : "expected '}}'");
      if (open.empty() && read_close(block ? "%}" : "}}")) {
        add(block ? Token::Type::block_end : Token::Type::output_end, begin);
        return;
      }
      if (is_word(peek(at_)))
        read_word();
      else if (peek(at_) == '\'' || peek(at_) == '"')
        read_string();
      else
        read_op(open);
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
  }
  void skip_word() {
    while (is_word(peek(at_))) ++at_;
  }

  void read_word() {
    const std::size_t begin = at_;
    const bool number = is_digit(peek(at_));
    skip_word();
    bool real = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 has two integers
    if (number && !after_dot && peek(at_) == '.' && is_digit(peek(at_ + 1))) {
      real = true;
      ++at_;
      skip_word();
    }
    std::string word(source_.substr(begin, at_ - begin));
    const bool prefixed = word.size() > 1 && word.find_first_of("xXoObB") == 1;
    const bool exponent = number && !prefixed && word.find_first_of("eE") != word.npos;
    if (exponent && (word.back() == 'e' || word.back() == 'E') &&
        (peek(at_) == '-' || peek(at_) == '+')) {
      ++at_;
      skip_word();
      word = source_.substr(begin, at_ - begin);
    }
    if (number) std::erase(word, '_');
    add(!number            ? Token::Type::name
        : real || exponent ? Token::Type::real
                           : Token::Type::integer,
        begin, std::move(word));
  }

  void read_op(std::string& open) {
    const std::size_t begin = at_;
    std::string op(1, peek(at_));
    for (const std::string_view two : {"==", "!=", ">=", "<=", "//", "**"})
      if (has(two)) op = two;
    if (op.find_first_of("+-*/%~[](){}><=.:|,;!") == op.npos || op == "!")
      refuse(begin, concat("expected an expression, got '",
                           rest().substr(0, utf8::decode(rest(), 0).size), "'"));
    if (op == "(" || op == "[" || op == "{") open += op == "(" ? ')' : op == "[" ? ']' : '}';
    if (op == ")" || op == "]" || op == "}") {
      if (open.empty() || open.back() != op[0])
        refuse(begin, open.empty() ? concat("'", op, "' closes nothing")
                                   : concat("expected '", open.back(), "', got '", op, "'"));
      open.pop_back();
    }
    at_ += op.size();
    add(Token::Type::op, begin, std::move(op));
  }

  void read_string() {
    const std::size_t begin = at_;
    const char quote = peek(at_++);
    std::string value;
    while (at_ < source_.size() && peek(at_) != quote) {
      const char c = peek(at_++);
      if (c != '\\')
        value += c;
      else if (at_ < source_.size())
        read_escape(value);
    }
    if (at_ >= source_.size()) refuse(begin, "expected the quote that ends this string");
    ++at_;
    add(Token::Type::string, begin, std::move(value));
  }

  void read_escape(std::string& value) {
    const char c = peek(at_++);
    constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    if (const std::size_t simple = kFrom.find(c); simple != kFrom.npos) {
      value += kTo[simple];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      read_code(value, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
    } else if (c >= '0' && c <= '7') {
      --at_;
      std::size_t digits = 1;
      while (digits < 3 && peek(at_ + digits) >= '0' && peek(at_ + digits) <= '7') ++digits;
      read_code(value, digits, 8);
    } else if (c == 'N') {
      refuse(at_ - 2, "names of characters, as in '\\N{…}', are not supported");
    } else if (c != '\n') {
      (value += '\\') += c;
    }
  }

  void read_code(std::string& value, std::size_t num_digits, unsigned base) {
    char32_t code = 0;
    for (std::size_t i = 0; i < num_digits; ++i) {
      const char c = peek(at_ + i);
      const unsigned digit = is_digit(c)            ? static_cast<unsigned>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a' + 10)
                             : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A' + 10)
                                                    : base;
      if (digit >= base) refuse(at_, concat("expected ", num_digits, " digits of an escape"));
      code = code * base + digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      refuse(at_, "expected the code of a character");
    at_ += num_digits;
    utf8::append(value, code);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::vector<Token> out_;
};

}  // namespace nanovllm::jinja
