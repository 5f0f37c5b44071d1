#pragma once
/// Reads a JSON text and reports what it says, without building values.

#include <string>
#include <string_view>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/io/json_value.hpp"

namespace nanovllm {

/// A text is not JSON or nests too deeply. The message continues a sentence that names the text:
/// "not valid JSON (byte 5): …"; bytes count from 1.
struct JsonError : Error {
  using Error::Error;
};

/// Receives the contents of a JSON text. A receiver that cannot continue throws.
class JsonEvents {
 public:
  /// null, a boolean or a number.
  virtual void scalar(Json&& value) = 0;
  /// A string that is a value; the receiver may take it.
  virtual void string(std::string& text) = 0;
  /// A string that names the value that follows; the receiver may take it.
  virtual void key(std::string& text) = 0;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;

 protected:
  ~JsonEvents() = default;
};

/// Reads one JSON document (RFC 8259; strict UTF-8, a byte order mark before it is skipped) and
/// reports it to `events`. Throws JsonError for text that is not JSON, lone surrogates, numbers
/// beyond a double's range and nesting deeper than kMaxJsonDepth; what came before has been
/// reported by then. Linear time; memory for the longest string only.
void read_json(std::string_view text, JsonEvents& events);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <system_error>

#include "nanovllm/core/utf8.hpp"

namespace nanovllm {
namespace detail {

/// One-shot reader; see `read_json()`.
class JsonReader {
 public:
  JsonReader(std::string_view text, JsonEvents& events) : in_(text), events_(events) {
    if (in_.starts_with("\xEF\xBB\xBF")) pos_ = 3;
  }

  void run() {
    value();
    if (peek() != kEnd || pos_ < in_.size()) unexpected("value", "end of input");
  }

 private:
  static constexpr char kEnd = '\0';

  [[noreturn]] void fail(std::string_view what, std::string_view problem) const {
    throw JsonError(concat("not valid JSON (byte ", pos_ + 1, "): syntax error while parsing ",
                           what, " - ", problem));
  }

  /// Complains of the character at the place.
  [[noreturn]] void unexpected(std::string_view what, std::string_view expected) const {
    if (pos_ >= in_.size()) fail(what, concat("unexpected end of input; expected ", expected));
    const char c = in_[pos_];
    if (c < ' ' || c > '~') fail(what, concat("unexpected byte; expected ", expected));
    fail(what, concat("unexpected '", c, "'; expected ", expected));
  }

  /// The next character that is no blank, without taking it; kEnd at the end (and for a NUL, which
  /// no JSON text has outside of strings).
  char peek() {
    while (pos_ < in_.size() &&
           (in_[pos_] == ' ' || in_[pos_] == '\n' || in_[pos_] == '\t' || in_[pos_] == '\r')) {
      ++pos_;
    }
    return pos_ < in_.size() ? in_[pos_] : kEnd;
  }

  void value() {
    switch (const char c = peek()) {
      case '{': return object();
      case '[': return array();
      case '"': string("value"); return events_.string(text_);
      case 't': literal("true"); return events_.scalar(true);
      case 'f': literal("false"); return events_.scalar(false);
      case 'n': literal("null"); return events_.scalar(nullptr);
      default:
        if (c == '-' || is_digit(c)) return number();
        if (pos_ >= in_.size() || c == ']' || c == '}' || c == ',' || c == ':')
          unexpected("value", "a value");
        fail("value", "invalid literal");
    }
  }

  void open() {
    if (++depth_ > kMaxJsonDepth) {
      throw JsonError(
          concat("nested more than ", kMaxJsonDepth, " levels deep (byte ", pos_ + 1, ")"));
    }
    ++pos_;
  }

  void close() {
    --depth_;
    ++pos_;
  }

  void object() {
    open();
    events_.begin_object();
    if (peek() != '}') {
      do {
        if (peek() != '"') unexpected("object key", "a string");
        string("object key");
        events_.key(text_);
        if (peek() != ':') unexpected("object separator", "':'");
        ++pos_;
        value();
      } while (another("object", '}'));
    }
    close();
    events_.end_object();
  }

  void array() {
    open();
    events_.begin_array();
    if (peek() != ']') {
      do {
        value();
      } while (another("array", ']'));
    }
    close();
    events_.end_array();
  }

  /// Passes a comma and returns true, or returns false before the closing bracket.
  bool another(std::string_view what, char bracket) {
    const char c = peek();
    if (c == bracket) return false;
    if (c != ',') unexpected(what, concat("',' or '", bracket, "'"));
    ++pos_;
    return true;
  }

  void literal(std::string_view word) {
    for (const char c : word) {
      if (pos_ >= in_.size() || in_[pos_] != c) fail("value", "invalid literal");
      ++pos_;
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  [[nodiscard]] char here() const { return pos_ < in_.size() ? in_[pos_] : kEnd; }

  void digits() {
    if (!is_digit(here())) fail("value", "invalid number; expected a digit");
    while (is_digit(here())) ++pos_;
  }

  void number() {
    const std::size_t begin = pos_;
    if (here() == '-') ++pos_;
    if (here() == '0') {
      ++pos_;
    } else {
      digits();
    }
    bool integer = true;
    if (here() == '.') {
      integer = false;
      ++pos_;
      digits();
    }
    if (here() == 'e' || here() == 'E') {
      integer = false;
      ++pos_;
      if (here() == '+' || here() == '-') ++pos_;
      digits();
    }
    const std::string_view text = in_.substr(begin, pos_ - begin);
    if (integer) return integer_value(text);
    const double value = real_value(text);
    events_.scalar(value);
  }

  void integer_value(std::string_view text) {
    const char* const end = text.data() + text.size();
    if (text[0] == '-') {
      std::int64_t value = 0;
      if (std::from_chars(text.data(), end, value).ec == std::errc()) return events_.scalar(value);
    } else {
      std::uint64_t value = 0;
      if (std::from_chars(text.data(), end, value).ec == std::errc()) return events_.scalar(value);
    }
    static_cast<void>(real_value(text));  // a double must be able to hold it
    events_.scalar(Json::big_integer(std::string(text)));
  }

  /// The nearest double. from_chars reports values too small and too large alike; those that are
  /// too small are zero.
  [[nodiscard]] double real_value(std::string_view text) const {
    double value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec == std::errc() && std::isfinite(value)) return value;
    if (result.ec == std::errc() || !is_below_one(text))
      fail("value", concat("number overflow in '", text.substr(0, 40), "'"));
    return text[0] == '-' ? -0.0 : 0.0;
  }

  /// Whether a number's first digit that is not zero stands after the decimal point, once the
  /// exponent has moved it.
  static bool is_below_one(std::string_view text) {
    if (text[0] == '-') text.remove_prefix(1);
    const std::size_t e = std::min(text.find_first_of("eE"), text.size());
    const std::string_view mantissa = text.substr(0, e);
    const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
    const std::size_t first = mantissa.find_first_not_of("0.");
    if (first == mantissa.npos) return true;  // zero
    const auto places = first < point ? static_cast<std::int64_t>(point - first)
                                      : -static_cast<std::int64_t>(first - point - 1);
    if (e == text.size()) return places <= 0;
    const bool plus = text[e + 1] == '+', minus = text[e + 1] == '-';
    const std::string_view exponent = text.substr(e + 1 + (plus || minus ? 1 : 0));
    std::int64_t shift = 0;
    const auto read = std::from_chars(exponent.data(), exponent.data() + exponent.size(), shift);
    if (read.ec != std::errc()) return minus;  // an exponent of more than 64 bits
    return minus ? places <= shift : places <= -shift;
  }

  /// Reads a string into text_, its quotes excluded.
  void string(std::string_view what) {
    text_.clear();
    ++pos_;
    while (true) {
      const std::size_t begin = pos_;
      while (pos_ < in_.size() && is_plain(in_[pos_])) ++pos_;
      text_.append(in_, begin, pos_ - begin);
      if (pos_ >= in_.size()) fail(what, "invalid string: missing closing quote");
      const char c = in_[pos_];
      if (c == '"') break;
      if (c == '\\') {
        escape(what);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fail(what, "invalid string: control characters must be escaped");
      } else {
        const utf8::Char character = utf8::decode(in_, pos_);
        if (character.status != utf8::Status::kValid)
          fail(what, "invalid string: ill-formed UTF-8 byte");
        text_.append(in_, pos_, character.size);
        pos_ += character.size;
      }
    }
    ++pos_;
  }

  /// A character of a string that needs no further look.
  static bool is_plain(char c) {
    return static_cast<unsigned char>(c - 0x20) < 0x60 && c != '"' && c != '\\';
  }

  void escape(std::string_view what) {
    ++pos_;
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char c = here();
    if (const std::size_t i = kNames.find(c); i != kNames.npos && pos_ < in_.size()) {
      text_ += kMeant[i];
      ++pos_;
      return;
    }
    if (c != 'u') fail(what, "invalid string: forbidden character after backslash");
    char32_t code_point = code_unit(what);
    if (code_point >= 0xD800 && code_point < 0xE000) {
      const bool pair = code_point < 0xDC00 && in_.substr(pos_, 2) == "\\u";
      if (pair) ++pos_;
      const char32_t low = pair ? code_unit(what) : 0;
      if (low < 0xDC00 || low > 0xDFFF)
        fail(what, "invalid string: a surrogate must be one of a pair");
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
    }
    utf8::append(text_, code_point);
  }

  /// The value of uXXXX at the place, which it passes.
  char32_t code_unit(std::string_view what) {
    ++pos_;
    std::uint32_t value = 0;
    const std::string_view hex = in_.substr(std::min(pos_, in_.size()), 4);
    const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (hex.size() < 4 || result.ec != std::errc() || result.ptr != hex.data() + 4)
      fail(what, "invalid string: '\\u' must be followed by 4 hex digits");
    pos_ += 4;
    return value;
  }

  std::string_view in_;
  JsonEvents& events_;
  std::size_t pos_ = 0;
  int depth_ = 0;
  std::string text_;  // the string read last
};

}  // namespace detail

NANOVLLM_INLINE void read_json(std::string_view text, JsonEvents& events) {
  detail::JsonReader(text, events).run();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
