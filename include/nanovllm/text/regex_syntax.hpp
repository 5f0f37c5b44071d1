#pragma once
/// Translates a pre-tokeniser's pattern from Oniguruma's dialect, which tokenizer.json files are
/// written in, to PCRE2's.
///
/// The two read most of a pattern alike. What they read differently is either rewritten (`\s`, `\v`
/// and the categories L, M and N, see text/unicode.hpp) or refused by name, so that a pattern that
/// loads means what it means to the reference.

#include <array>
#include <cctype>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/text/unicode.hpp"

namespace nanovllm {

/// One-shot translator; see `to_pcre2()`.
class RegexTranslator {
 public:
  /// `categories_are_current`: PCRE2 knows the characters of Unicode 16.0 by itself.
  RegexTranslator(std::string_view pattern, bool categories_are_current)
      : in_(pattern), categories_are_current_(categories_are_current) {}

  [[nodiscard]] std::string run() {
    while (pos_ < in_.size()) {
      switch (in_[pos_]) {
        case '\\': escape(); break;
        case '[': char_class(); break;
        case '(': group(); break;
        case '{': counted_quantifier(); break;
        default: out_ += in_[pos_++];
      }
    }
    return std::move(out_);
  }

 private:
  /// A leading "(*" would be a PCRE2 verb; of the "(?" forms, these mean the same to both.
  void group() {
    static constexpr std::string_view kSame[] = {"(?:",  "(?i:", "(?=", "(?!",
                                                 "(?<=", "(?<!", "(?>"};
    const std::string_view rest = in_.substr(pos_);
    if (!rest.starts_with("(?") && !rest.starts_with("(*")) return copy(1);
    for (std::string_view form : kSame) {
      if (rest.starts_with(form)) return copy(form.size());
    }
    refuse(rest.substr(0, 3), "the groups (…), (?:…), (?i:…), (?=…), (?!…), (?<=…), (?<!…), (?>…)");
  }

  /// {n}, {n,} or {n,m}; a lazy or possessive mark after it means different things.
  void counted_quantifier() {
    const std::size_t close = in_.find('}', pos_);
    const std::string_view text = in_.substr(pos_, close == in_.npos ? close : close + 1 - pos_);
    const char* expected = "the counts {n}, {n,} and {n,m} with nothing after";
    bool plain = close != in_.npos && text.size() > 2 && is_digit(text[1]);
    int commas = 0;
    for (char c : text.substr(1, text.size() - (plain ? 2 : 1))) {
      commas += c == ',';
      plain = plain && (is_digit(c) || c == ',');
    }
    if (!plain || commas > 1) refuse(text, expected);
    const char after = close + 1 < in_.size() ? in_[close + 1] : '\0';
    if (after == '?' || after == '+') refuse(in_.substr(pos_, text.size() + 1), expected);
    copy(text.size());
  }

  void char_class() {
    copy(1);
    if (pos_ < in_.size() && in_[pos_] == '^') copy(1);
    if (pos_ < in_.size() && in_[pos_] == ']') refuse("[]", "character classes that are not empty");
    in_class_ = true;
    while (pos_ < in_.size() && in_[pos_] != ']') {
      const std::string_view rest = in_.substr(pos_);
      if (rest[0] == '[') refuse("[ inside a class", "classes of characters, ranges and escapes");
      if (rest.starts_with("&&")) refuse("&& inside a class", "classes without intersections");
      if (rest[0] == '\\') {
        escape();
      } else {
        copy(1);
      }
    }
    in_class_ = false;
    if (pos_ < in_.size()) copy(1);  // PCRE2 reports a missing bracket
  }

  void escape() {
    if (pos_ + 1 == in_.size()) return copy(1);  // PCRE2 reports the lone backslash
    const char c = in_[pos_ + 1];
    const auto byte = static_cast<unsigned char>(c);
    if (std::string_view("rntfae").find(c) != std::string_view::npos ||
        (byte < 0x80 && !std::isalnum(byte))) {
      return copy(2);
    }
    if (c == 's' || c == 'S') {
      pos_ += 2;
      return put_set(unicode::kWhiteSpace, "", c == 'S');
    }
    if (c == 'v') {  // vertical tab here, all vertical white space in PCRE2
      pos_ += 2;
      out_ += "\\x0B";
      return;
    }
    if (c == 'p' || c == 'P') return property();
    refuse(in_.substr(pos_, 2),
           "the escapes \\r \\n \\t \\v \\f \\a \\e \\s \\S \\p{…} \\P{…} and escaped punctuation");
  }

  void property() {
    const char* expected = "general categories such as \\p{L}, \\p{N} or \\p{Lu}";
    const std::size_t close = in_.find('}', pos_);
    const std::string_view text = in_.substr(pos_, close == in_.npos ? close : close + 1 - pos_);
    const bool is_category =
        (text.size() == 5 || (text.size() == 6 && text[4] >= 'a' && text[4] <= 'z')) &&
        text[2] == '{' && std::string_view("LMNPSZC").find(text[3]) != std::string_view::npos;
    if (!is_category || text.back() != '}') refuse(text, expected);
    const char major = text.size() == 5 && !categories_are_current_ ? text[3] : '\0';
    const bool known_by_name = major != 'L' && major != 'M' && major != 'N';
    if (known_by_name) return copy(text.size());
    pos_ += text.size();
    const std::span<const unicode::Range> newer =
        major == 'L'   ? std::span<const unicode::Range>(unicode::kLettersSince14)
        : major == 'M' ? std::span<const unicode::Range>(unicode::kMarksSince14)
                       : std::span<const unicode::Range>(unicode::kNumbersSince14);
    put_set(newer, concat("\\p{", major, '}'), text[1] == 'P');
  }

  /// Writes `same` and the ranges as (part of) a class.
  void put_set(std::span<const unicode::Range> ranges, std::string_view same, bool negated) {
    if (in_class_ && negated)
      refuse("\\S or \\P{…} inside a class", "classes that name what they hold");
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += same;
    for (const unicode::Range& range : ranges) {
      put_code_point(range.first);
      if (range.last == range.first) continue;
      out_ += '-';
      put_code_point(range.last);
    }
    if (!in_class_) out_ += ']';
  }

  void put_code_point(char32_t code_point) {
    out_ += "\\x{";
    for (int shift = 20; shift >= 0; shift -= 4)
      out_ += "0123456789ABCDEF"[code_point >> shift & 15];
    out_ += '}';
  }

  void copy(std::size_t n) {
    out_ += in_.substr(pos_, n);
    pos_ += n;
  }

  [[noreturn]] void refuse(std::string_view what, std::string_view supported) const {
    throw LoadError(concat("the pattern '", in_, "' uses '", what, "' at byte ", pos_,
                           "; supported are ", supported));
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  std::string_view in_;
  bool categories_are_current_;
  std::size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

/// The PCRE2 spelling of an Oniguruma pattern, to be compiled with UTF, UCP and MULTILINE and a
/// newline of LF. Throws LoadError naming a construct that is not supported; a pattern that neither
/// dialect takes may pass and is for PCRE2 to refuse.
[[nodiscard]] inline std::string to_pcre2(std::string_view pattern, bool categories_are_current) {
  return RegexTranslator(pattern, categories_are_current).run();
}

}  // namespace nanovllm
