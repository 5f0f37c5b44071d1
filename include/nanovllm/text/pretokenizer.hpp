#pragma once
/// Splits text into the pieces that byte-pair encoding may not merge across, with the regular
/// expression that tokenizer.json states, through PCRE2's just-in-time compiler.
///
/// The pattern is translated to PCRE2's dialect from Oniguruma's, which tokenizer.json files are
/// written in. The two read most of a pattern alike. What they read differently is either rewritten
/// (`\s`, `\v` and the categories L, M and N, see text/unicode.hpp) or refused by name, so that a
/// pattern that loads means what it means to the reference.

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>
#include <cstddef>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"
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

namespace detail {

struct Pcre2Free {
  void operator()(pcre2_code_8* p) const { pcre2_code_free_8(p); }
  void operator()(pcre2_match_data_8* p) const { pcre2_match_data_free_8(p); }
  void operator()(pcre2_match_context_8* p) const { pcre2_match_context_free_8(p); }
  void operator()(pcre2_compile_context_8* p) const { pcre2_compile_context_free_8(p); }
  void operator()(pcre2_jit_stack_8* p) const { pcre2_jit_stack_free_8(p); }
};

template <class T>
using Pcre2Ptr = std::unique_ptr<T, Pcre2Free>;

[[nodiscard]] inline std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR8, 256> text{};
  pcre2_get_error_message_8(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Major version of the Unicode tables inside PCRE2.
[[nodiscard]] inline int pcre2_unicode_version() {
  std::array<char, 64> text{};
  pcre2_config_8(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return std::atoi(text.data());
}

}  // namespace detail

/// What one thread needs to match any number of patterns.
class RegexScratch {
 public:
  RegexScratch()
      : match_(pcre2_match_data_create_8(1, nullptr)),
        context_(pcre2_match_context_create_8(nullptr)),
        stack_(pcre2_jit_stack_create_8(32 << 10, 4 << 20, nullptr)) {
    check<Error>(match_ != nullptr && context_ != nullptr, "PCRE2 is out of memory");
    // Without a separate stack (no JIT on this machine) PCRE2 works as well.
    if (stack_) pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
  }

 private:
  friend class SplitPattern;

  /// Going back through a long run takes a step for each character, so the default of ten million
  /// steps a match, which stops patterns that take exponential time, grows with the text.
  void limit_steps(std::size_t text_size) {
    const std::size_t limit = 10'000'000 + 4 * text_size;
    pcre2_set_match_limit_8(context_.get(),
                            static_cast<std::uint32_t>(std::min<std::size_t>(limit, UINT32_MAX)));
  }

  detail::Pcre2Ptr<pcre2_match_data_8> match_;
  detail::Pcre2Ptr<pcre2_match_context_8> context_;
  detail::Pcre2Ptr<pcre2_jit_stack_8> stack_;
};

/// One `Split` step of a pre-tokeniser with behaviour "Isolated": every match is a piece, and so is
/// every stretch between matches. Immutable and thread-safe; each thread brings a RegexScratch.
class SplitPattern {
 public:
  /// Compiles a regular expression in Oniguruma's dialect, see `to_pcre2()`. Throws LoadError when
  /// the pattern is not valid or not supported.
  [[nodiscard]] static SplitPattern regex(std::string_view pattern) {
    return SplitPattern(to_pcre2(pattern, detail::pcre2_unicode_version() >= 16), pattern,
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE);
  }

  /// A pattern that matches `text` itself.
  [[nodiscard]] static SplitPattern literal(std::string_view text) {
    return SplitPattern(std::string(text), text, PCRE2_UTF | PCRE2_LITERAL);
  }

  /// Calls `piece(std::string_view)` for each piece from left to right; together they are `text`,
  /// which must be valid UTF-8. Throws RequestError when the pattern exceeds PCRE2's match limit.
  template <class Piece>
  void split(std::string_view text, RegexScratch& scratch, Piece&& piece) const {
    scratch.limit_steps(text.size());
    std::size_t done = 0;    // pieces up to here are out
    std::size_t search = 0;  // the next match begins here or later
    constexpr auto kNone = static_cast<std::size_t>(-1);
    for (std::size_t last_end = kNone; search <= text.size();) {
      std::size_t begin, end;
      if (!find(text, search, scratch, begin, end)) break;
      if (begin == end && begin == last_end) {  // an empty match right after a match: step over
        search += begin < text.size() ? utf8::decode(text, begin).size : 1;
        continue;
      }
      if (done < begin) piece(text.substr(done, begin - done));
      if (begin < end) piece(text.substr(begin, end - begin));
      done = search = last_end = end;
    }
    if (done < text.size()) piece(text.substr(done));
  }

 private:
  SplitPattern(const std::string& translated, std::string_view original, std::uint32_t options) {
    detail::Pcre2Ptr<pcre2_compile_context_8> context(pcre2_compile_context_create_8(nullptr));
    check<Error>(context != nullptr, "PCRE2 is out of memory");
    pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
    int error = 0;
    std::size_t offset = 0;
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                                options, &error, &offset, context.get()));
    if (code_ == nullptr) {
      throw LoadError(
          concat("the pre-tokenizer's pattern '", original,
                 "' is not a valid regular expression: ", detail::pcre2_message(error)));
    }
    jit_ = pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, std::size_t& begin,
            std::size_t& end) const {
    const auto match = jit_ ? pcre2_jit_match_8 : pcre2_match_8;
    const int result =
        match(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), from,
              PCRE2_NO_UTF_CHECK, scratch.match_.get(), scratch.context_.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) {  // not check(): the message costs more than a match
      throw RequestError(concat("the pre-tokenizer's pattern gave up on a text of ", text.size(),
                                " bytes: ", detail::pcre2_message(result)));
    }
    const std::size_t* bounds = pcre2_get_ovector_pointer_8(scratch.match_.get());
    begin = bounds[0];
    end = bounds[1];
    return true;
  }

  detail::Pcre2Ptr<pcre2_code_8> code_;
  bool jit_ = false;
};

}  // namespace nanovllm
