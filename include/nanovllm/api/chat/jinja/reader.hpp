#pragma once
/// Cuts a template into texts and the tokens of tags, as Jinja2 does with trim_blocks and
/// lstrip_blocks.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/api/chat/python_text.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm::jinja {

/// A message with the place in the template that it is about.
inline std::string at_place(std::string_view source, std::size_t offset, std::string_view message) {
  const std::string_view before = source.substr(0, offset);
  const std::string_view line = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
  return concat("chat template, line ", 1 + std::count(before.begin(), before.end(), '\n'),
                ", column ", 1 + python::num_characters(line), ": ", message);
}

/// Every line end becomes '\n', and one at the end of the template is dropped.
inline std::string normalise_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool crlf = source.substr(i, 2) == "\r\n";
    if (!crlf) out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

struct Token {
  enum class Type : std::uint8_t { name, string, number, op, end };
  Type type = Type::end;
  std::size_t begin = 0, end = 0;  ///< in the source
  std::string_view text{};         ///< as it is spelled; what closes a tag is without its sign
};

class Reader {
 protected:
  explicit Reader(std::string_view source) : source_(source) {}

  [[noreturn]] void refuse_at(std::size_t offset, std::string_view message) const {
    throw ConfigError(at_place(source_, offset, message));
  }
  /// Throws ConfigError: `expected` should be here.
  [[noreturn]] void refuse(std::string_view expected) const {
    const bool ended = now_.type == Token::Type::end;
    if (ended && !close_.empty()) refuse_at(tag_, concat("expected '", close_, "'"));
    refuse_at(now_.begin, concat("expected ", expected, ", got ",
                                 ended                              ? "the end of the template"
                                 : now_.type == Token::Type::string ? "a string"
                                                                    : concat("'", now_.text, "'")));
  }

  // Texts.

  /// Appends what is printed ahead of the next statement or output to `text`, and opens that tag;
  /// false at the end of the template.
  bool read_text(std::string& text) {
    while (true) {
      tag_ = find_tag(at_);
      text += text_before(tag_);
      if (tag_ == source_.npos) break;
      at_ = tag_ + 2;
      if (source_[tag_ + 1] == '#') {
        skip_comment();
      } else if (source_[tag_ + 1] == '{' || !read_raw(text)) {
        close_ = source_[tag_ + 1] == '{' ? "}}" : "%}";
        if (peek(at_) == '-' || peek(at_) == '+') ++at_;
        now_ = token_at(at_);
        return true;
      }
    }
    now_ = {Token::Type::end, source_.size(), source_.size()};
    return false;
  }
  [[nodiscard]] bool in_output() const { return close_ == "}}"; }
  [[nodiscard]] std::size_t tag() const { return tag_; }      ///< where the tag begins
  [[nodiscard]] std::size_t position() const { return at_; }  ///< after the last tag

  void close_tag() {
    if (now_.text != close_ || now_.type != Token::Type::op) refuse(concat("'", close_, "'"));
    at_ = now_.begin;
    (void)read_close(std::exchange(close_, {}));
  }

  // Tokens of a tag.

  [[nodiscard]] const Token& now() const { return now_; }
  [[nodiscard]] Token ahead() const { return token_at(now_.end); }
  /// Whether this word, or this operator, is next.
  [[nodiscard]] bool at(std::string_view spelling) const {
    return now_.text == spelling && now_.type != Token::Type::string;
  }
  /// The token that was next.
  Token take() {
    if (now_.type == Token::Type::op && now_.text.size() == 1) {
      if (std::string_view("([{").find(now_.text) != std::string_view::npos) ++open_;
      if (std::string_view(")]}").find(now_.text) != std::string_view::npos) --open_;
    }
    return std::exchange(now_, token_at(now_.end));
  }
  bool skip(std::string_view spelling) { return at(spelling) && (take(), true); }
  void expect(std::string_view spelling) {
    if (!skip(spelling)) refuse(concat("'", spelling, "'"));
  }
  std::string take_name() {
    if (now_.type != Token::Type::name) refuse("a name");
    return std::string(take().text);
  }

  /// The value of the string that is next.
  std::string take_string() {
    std::string out;
    const std::size_t end = now_.end - 1;
    for (std::size_t i = now_.begin + 1; i < end;) {
      const char c = source_[i++];
      if (c == '\\')
        read_escape(out, i);
      else
        out += c;
    }
    take();
    return out;
  }

 private:
  [[nodiscard]] char peek(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  [[nodiscard]] bool has(std::size_t i, std::string_view what) const {
    return i <= source_.size() && source_.substr(i).starts_with(what);
  }
  [[nodiscard]] std::size_t skip_space(std::size_t i) const {
    return source_.size() - python::strip(source_.substr(i), true, false).size();
  }

  [[nodiscard]] std::size_t find_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i != source_.npos; i = source_.find('{', i + 1))
      if (peek(i + 1) == '%' || peek(i + 1) == '{' || peek(i + 1) == '#') return i;
    return source_.npos;
  }

  /// What lies ahead of the tag, without what the tag's sign or lstrip_blocks takes away.
  [[nodiscard]] std::string_view text_before(std::size_t tag) const {
    if (tag == source_.npos) return source_.substr(at_);
    const std::string_view text = source_.substr(at_, tag - at_);
    const char sign = peek(tag + 2);
    if (sign == '-') return python::strip(text, false, true);
    if (sign == '+' || source_[tag + 1] == '{') return text;
    const std::size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    const bool at_line_start = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    const bool blank = python::strip(text.substr(line), true, false).empty();
    return at_line_start && blank ? text.substr(0, line) : text;
  }

  /// The size of `close` with its sign, if it is at `i`, else 0.
  [[nodiscard]] std::size_t close_size(std::size_t i, std::string_view close) const {
    const bool is_signed = peek(i) == '-' || (peek(i) == '+' && close != "}}");
    if (has(i, close)) return close.size();
    return is_signed && has(i + 1, close) ? close.size() + 1 : 0;
  }
  /// Reads `close`, with its sign and what goes after it, and says whether it was there.
  bool read_close(std::string_view close) {
    const std::size_t size = close_size(at_, close);
    const char sign = size > close.size() ? source_[at_] : '\0';
    at_ += size;
    if (sign == '-')
      at_ = skip_space(at_);
    else if (size > 0 && sign == '\0' && close != "}}" && peek(at_) == '\n')
      ++at_;
    return size > 0;
  }

  void skip_comment() {
    for (; at_ < source_.size(); ++at_)
      if (read_close("#}")) return;
    refuse_at(tag_, "expected '#}' at the end of this comment");
  }

  /// Where the block whose '{%' ends at `i` closes if it consists of `word`; else npos.
  [[nodiscard]] std::size_t end_of_word(std::size_t i, std::string_view word) const {
    i = skip_space(i + (peek(i) == '-' || peek(i) == '+' ? 1 : 0));
    if (!has(i, word)) return source_.npos;
    i = skip_space(i + word.size());
    return close_size(i, "%}") > 0 ? i : source_.npos;
  }

  /// Appends the text of a raw block, if one begins at the tag.
  bool read_raw(std::string& text) {
    const std::size_t head = end_of_word(at_, "raw");
    if (head == source_.npos) return false;
    at_ = head + close_size(head, "%}");
    if (source_[head] == '-') at_ = skip_space(at_);
    for (std::size_t i = source_.find("{%", at_); i != source_.npos;
         i = source_.find("{%", i + 1)) {
      const std::size_t close = end_of_word(i + 2, "endraw");
      if (close == source_.npos) continue;
      text += text_before(i);
      at_ = close;
      return read_close("%}");
    }
    refuse_at(tag_, "expected {% endraw %} for this raw block");
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
  }
  [[nodiscard]] std::size_t word_end(std::size_t i) const {
    while (is_word(peek(i))) ++i;
    return i;
  }

  [[nodiscard]] Token token_at(std::size_t begin) const {
    begin = skip_space(begin);
    const auto token = [&](Token::Type type, std::size_t end) {
      return Token{type, begin, end, source_.substr(begin, end - begin)};
    };
    if (begin == source_.size()) return token(Token::Type::end, begin);
    const std::size_t size = open_ == 0 ? close_size(begin, close_) : 0;
    if (size > 0) return {Token::Type::op, begin, begin + size, close_};
    const char c = source_[begin];
    if (is_digit(c)) return number_at(begin);
    if (is_word(c)) return token(Token::Type::name, word_end(begin));
    if (c == '\'' || c == '"') {
      std::size_t end = begin + 1;
      while (end < source_.size() && source_[end] != c) end += source_[end] == '\\' ? 2 : 1;
      if (end >= source_.size()) refuse_at(begin, "expected the quote that ends this string");
      return token(Token::Type::string, end + 1);
    }
    for (const std::string_view two : {"==", "!=", ">=", "<=", "//", "**"})
      if (has(begin, two)) return token(Token::Type::op, begin + 2);
    return token(Token::Type::op, begin + utf8::decode(source_, begin).size);
  }

  [[nodiscard]] Token number_at(std::size_t begin) const {
    std::size_t end = word_end(begin);
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 has two integers
    const bool fraction = !after_dot && peek(end) == '.' && is_digit(peek(end + 1));
    if (fraction) end = word_end(end + 1);
    const bool prefixed = source_.substr(begin, end - begin).find_first_of("xXoObB") == 1;
    const bool exponent = !prefixed && (source_[end - 1] | 0x20) == 'e';
    if (exponent && (peek(end) == '-' || peek(end) == '+')) end = word_end(end + 1);
    return {Token::Type::number, begin, end, source_.substr(begin, end - begin)};
  }

  /// Appends what the escape whose backslash is ahead of `i` stands for.
  void read_escape(std::string& value, std::size_t& i) const {
    const char c = source_[i++];
    constexpr std::string_view kFrom = "ntrabfv\\'\"\n", kTo = "\n\t\r\a\b\f\v\\'\"";
    const bool octal = c >= '0' && c <= '7';
    const std::size_t most = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (const std::size_t simple = kFrom.find(c); simple != kFrom.npos) {
      value += kTo.substr(simple, 1);  // nothing for the end of a line
    } else if (c == 'N') {
      refuse_at(i - 2, "names of characters, as in '\\N{…}', are not supported");
    } else if (most == 0) {
      (value += '\\') += c;
    } else {
      if (octal) --i;
      const std::string_view digits = source_.substr(i, most);
      std::uint32_t code = 0;
      const char* const end =
          std::from_chars(digits.data(), digits.data() + digits.size(), code, octal ? 8 : 16).ptr;
      const auto size = static_cast<std::size_t>(end - digits.data());
      if (!octal && size < most) refuse_at(i, concat("expected ", most, " digits of an escape"));
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        refuse_at(i, "expected the code of a character");
      utf8::append(value, code);
      i += size;
    }
  }

  std::string_view source_;
  std::size_t at_ = 0;      // the text, or the inside of the tag, begins here
  std::size_t tag_ = 0;     // the tag begins here
  std::string_view close_;  // what ends the tag; empty outside
  int open_ = 0;            // brackets
  Token now_;
};

}  // namespace nanovllm::jinja
