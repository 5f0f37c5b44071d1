#pragma once
/// A hash of what a Jinja template means rather than of how it is laid out.

#include <cstdint>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm {

/// Equal for two templates that differ only in comments, indentation, line ends, quotes, the
/// spelling of literals, and `x.name` against `x['name']` (the same unless `name` is a method of
/// x). Templates of other meaning have other fingerprints, except with a chance of 2^-64, as long
/// as one of them has no raw block. The value is stable and may be stored.
[[nodiscard]] std::uint64_t jinja_fingerprint(std::string_view jinja);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstddef>
#include <string>

namespace nanovllm {

namespace detail {

/// Splits a template as Jinja's lexer does (with trim_blocks and lstrip_blocks, as Hugging Face
/// sets them) and hashes the pieces: text after whitespace control, tags, names, operators, and
/// string literals by value. Comments and blanks inside tags leave no trace; `x['name']` counts as
/// `x.name`. What it does not understand (odd escapes, raw blocks, unclosed tags) enters the hash
/// as further pieces, so that no template with such things equals one without.
class JinjaHasher {
 public:
  explicit JinjaHasher(std::string_view source) : source_(normalise_newlines(source)) {
    std::size_t begin = 0;
    while (true) {
      const std::size_t tag = find_tag(begin);
      add_text(begin, tag);
      if (tag == std::string::npos) break;
      begin = source_[tag + 1] == '#' ? skip_comment(tag) : add_tag(tag);
    }
  }

  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  static constexpr std::string_view kBlank = " \t\n\r\f\v";

  /// Every line end becomes '\n', and one at the end of the template is dropped.
  static std::string normalise_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
      const bool crlf = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
      if (crlf) continue;
      out += source[i] == '\r' ? '\n' : source[i];
    }
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  [[nodiscard]] std::size_t find_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i != std::string::npos;
         i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return std::string::npos;
  }

  [[nodiscard]] char at(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }

  /// Hashes the text in [begin, end) as it is after whitespace control by the tags around it.
  void add_text(std::size_t begin, std::size_t end) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    bool at_line_start = begin == 0;
    if (strip_next_) {
      text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    } else if (trim_newline_ && text.starts_with('\n')) {
      text.remove_prefix(1);
      at_line_start = true;
    }
    if (end != std::string::npos && at(end + 2) == '-') {
      text = text.substr(0, text.find_last_not_of(kBlank) + 1);
    } else if (end != std::string::npos && at(end + 1) != '{' && at(end + 2) != '+') {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == text.npos ? 0 : newline + 1;
      if ((line > 0 || at_line_start) && text.find_first_not_of(" \t", line) == text.npos)
        text = text.substr(0, line);
    }
    if (!text.empty()) add('t', text);
  }

  /// Notes how the tag that ends at `close` ("-%}", "}}", …) strips what follows it.
  void note_end(std::size_t close, bool block) {
    strip_next_ = close > 0 && source_[close - 1] == '-';
    trim_newline_ = block && !(close > 0 && source_[close - 1] == '+');
  }

  std::size_t skip_comment(std::size_t tag) {
    const std::size_t close = source_.find("#}", tag + 2);
    if (close == std::string::npos) {
      add('?', std::string_view(source_).substr(tag));
      strip_next_ = trim_newline_ = false;
      return source_.size();
    }
    note_end(close, true);
    return close + 2;
  }

  /// Hashes the tag at `tag` and returns where it ends.
  std::size_t add_tag(std::size_t tag) {
    const bool block = source_[tag + 1] == '%';
    const std::string_view close = block ? "%}" : "}}";
    add('(', close);
    std::size_t i = tag + 2;
    if (at(i) == '-') ++i;
    while (i < source_.size()) {
      const std::string_view rest = std::string_view(source_).substr(i);
      if (kBlank.find(rest[0]) != kBlank.npos) {
        ++i;
      } else if (rest.starts_with(close) || (rest[0] == '-' && rest.substr(1).starts_with(close))) {
        i += rest[0] == '-' ? 1 : 0;
        note_end(i, block);
        add(')', {});
        return i + 2;
      } else {
        i += add_token(rest);
      }
    }
    add('?', {});
    return i;
  }

  /// Hashes the token at the start of `rest` and returns its length.
  std::size_t add_token(std::string_view rest) {
    if (const std::size_t key = subscript_length(rest); key > 0) {
      add('o', ".");
      add('n', rest.substr(2, key - 4));
      return key;
    }
    if (rest[0] == '"' || rest[0] == '\'') return add_string(rest);
    std::size_t length = 0;
    while (length < rest.size() && is_word(rest[length])) ++length;
    if (length > 0) {
      add('n', rest.substr(0, length));
      return length;
    }
    for (const std::string_view op : {"==", "!=", ">=", "<=", "//", "**"}) {
      if (!rest.starts_with(op)) continue;
      add('o', op);
      return 2;
    }
    add('o', rest.substr(0, 1));
    return 1;
  }

  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           static_cast<unsigned char>(c) >= 0x80;
  }

  /// Length of `['name']` at the start of `rest`, or 0.
  static std::size_t subscript_length(std::string_view rest) {
    if (rest.size() < 5 || rest[0] != '[' || (rest[1] != '\'' && rest[1] != '"')) return 0;
    if (rest[2] >= '0' && rest[2] <= '9') return 0;  // x['0'] is a key, x.0 an index
    std::size_t end = 2;
    while (end < rest.size() && is_word(rest[end])) ++end;
    const bool closed =
        end > 2 && rest.substr(end, 1) == rest.substr(1, 1) && rest.substr(end + 1, 1) == "]";
    return closed ? end + 2 : 0;
  }

  /// Hashes a string literal by its value, or as spelt when it has an escape other than the common
  /// ones.
  std::size_t add_string(std::string_view rest) {
    std::string value;
    bool plain = true;
    for (std::size_t i = 1; i < rest.size(); ++i) {
      if (rest[i] == rest[0]) {
        if (plain)
          add('s', value);
        else
          add('?', rest.substr(0, i + 1));
        return i + 1;
      }
      if (rest[i] != '\\' || i + 1 == rest.size()) {
        value += rest[i];
        continue;
      }
      switch (const char c = rest[++i]) {
        case 'n': value += '\n'; break;
        case 't': value += '\t'; break;
        case 'r': value += '\r'; break;
        case '\\':
        case '\'':
        case '"': value += c; break;
        default: plain = false;
      }
    }
    add('?', rest);
    return rest.size();
  }

  /// FNV-1a over kind, length and bytes, so that pieces cannot run into each other.
  void add(char kind, std::string_view bytes) {
    const auto mix = [this](std::uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3u; };
    mix(static_cast<unsigned char>(kind));
    for (int shift = 0; shift < 64; shift += 8) mix((bytes.size() >> shift) & 0xffu);
    for (const char c : bytes) mix(static_cast<unsigned char>(c));
  }

  std::string source_;
  std::uint64_t hash_ = 0xcbf29ce484222325u;
  bool strip_next_ = false;    // the previous tag ended in "-%}"
  bool trim_newline_ = false;  // the previous tag was a block or a comment
};

}  // namespace detail

NANOVLLM_INLINE std::uint64_t jinja_fingerprint(std::string_view jinja) {
  return detail::JinjaHasher(jinja).hash();
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
