#include "nanovllm/text/pretokenizer.hpp"

#include <random>
#include <vector>

#include "catch.hpp"
#include "tokenizer_builder.hpp"

namespace nv = nanovllm;
namespace utf8 = nanovllm::utf8;
using nanovllm_test::kQwenPattern;
using nanovllm_test::mentions;
using Pieces = std::vector<std::string>;

namespace {

Pieces pieces(const nv::SplitPattern& pattern, std::string_view text) {
  nv::RegexScratch scratch;
  Pieces out;
  pattern.split(text, scratch, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

Pieces pieces(std::string_view regex, std::string_view text) {
  return pieces(nv::SplitPattern::regex(regex), text);
}

std::string refusal(std::string_view regex) {
  try {
    (void)nv::SplitPattern::regex(regex);
    return {};
  } catch (const nv::LoadError& error) {
    return error.what();
  }
}

/// How many code points are pieces of their own, in text of each code point and a neutral "-".
std::size_t count_matches(std::string_view regex) {
  const nv::SplitPattern pattern = nv::SplitPattern::regex(regex);
  nv::RegexScratch scratch;
  std::size_t count = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "-";
    utf8::append(text, c);
    std::size_t n = 0;
    pattern.split(text, scratch, [&](std::string_view) { ++n; });
    count += n == 2;
  }
  return count;
}

/// Qwen's pattern, written out by hand: the oracle for the regular expression.
class QwenMatcher {
 public:
  explicit QwenMatcher(std::string_view text) : text_(text) {}

  Pieces run() {
    Pieces out;
    for (std::size_t i = 0; i < text_.size();) {
      const std::size_t end = match(i);
      out.emplace_back(text_.substr(i, end - i));
      i = end;
    }
    return out;
  }

 private:
  bool letter(std::size_t i) const {
    const auto category = category_at(i);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           nv::unicode::contains(nv::unicode::kLettersSince14, at(i));
  }
  bool number(std::size_t i) const {
    const auto category = category_at(i);
    return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) ||
           nv::unicode::contains(nv::unicode::kNumbersSince14, at(i));
  }
  bool space(std::size_t i) const { return i < text_.size() && nv::unicode::is_white_space(at(i)); }
  bool line_end(std::size_t i) const {
    return i < text_.size() && (text_[i] == '\r' || text_[i] == '\n');
  }
  bool other(std::size_t i) const {
    return i < text_.size() && !space(i) && !letter(i) && !number(i);
  }

  char32_t at(std::size_t i) const {
    return i < text_.size() ? utf8::decode(text_, i).code_point : 0;
  }
  int category_at(std::size_t i) const {
    return i < text_.size() ? utf8proc_category(static_cast<utf8proc_int32_t>(at(i))) : 0;
  }
  std::size_t next(std::size_t i) const { return i + utf8::decode(text_, i).size; }

  std::size_t match(std::size_t i) const {
    if (text_[i] == '\'') {
      for (std::string_view suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
        std::size_t j = i + 1, k = 0;
        for (; k < suffix.size() && (at(j) | 0x20) == static_cast<char32_t>(suffix[k]); ++k)
          j = next(j);
        if (k == suffix.size()) return j;
        if (suffix == "s" && at(i + 1) == 0x17F) return next(i + 1);  // the long s
      }
    }
    std::size_t j = letter(i) || number(i) || line_end(i) ? i : next(i);
    if (letter(j)) {
      while (letter(j)) j = next(j);
      return j;
    }
    if (number(i)) return next(i);
    j = text_[i] == ' ' ? i + 1 : i;
    if (other(j)) {
      while (other(j)) j = next(j);
      while (line_end(j)) ++j;
      return j;
    }
    return white_space(i);
  }

  /// Through the last line end of the run; else all but its last character if text follows.
  std::size_t white_space(std::size_t i) const {
    std::size_t end = i, last = i, after_line_end = 0;
    while (space(end)) {
      if (line_end(end)) after_line_end = end + 1;
      last = end;
      end = next(end);
    }
    if (after_line_end != 0) return after_line_end;
    return end == text_.size() || last == i ? end : last;
  }

  std::string_view text_;
};

std::string random_text(std::mt19937& random) {
  static constexpr char32_t kPool[] = {
      'a',    'B',    's',     'S',    't',     'r',     'e',     'v',     'l',     'm',      'd',
      'D',    '\'',   '\'',    0x17F,  0x2019,  ' ',     ' ',     ' ',     '\n',    '\r',     '\t',
      0xB,    0x1C,   0x85,    0xA0,   0x180E,  0x2003,  0x200B,  0x3000,  '0',     '7',      0x663,
      0xBD,   0x2167, '.',     ',',    '!',     '(',     '_',     0x301,   0x94D,   0xE9,     0x416,
      0x4F60, 0xAC00, 0x1F999, 0x1C89, 0x10D40, 0x11F02, 0x2EBF0, 0x31350, 0x1D2C0, 0x10FFFF, 0};
  std::string text;
  for (std::size_t n = random() % 16; n > 0; --n) {
    utf8::append(text, random() % 8 != 0 ? kPool[random() % std::size(kPool)]
                                         : static_cast<char32_t>(random() % 0xD800));
  }
  return text;
}

}  // namespace

TEST_CASE("Qwen's pattern cuts as its rules written by hand do", "[pretokenizer]") {
  const nv::SplitPattern pattern = nv::SplitPattern::regex(kQwenPattern);
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const std::string text = random_text(random);
    REQUIRE(pieces(pattern, text) == QwenMatcher(text).run());
  }
}

TEST_CASE("Qwen's pattern on sentences", "[pretokenizer]") {
  CHECK(pieces(kQwenPattern, "Hello, world!") == Pieces{"Hello", ",", " world", "!"});
  CHECK(pieces(kQwenPattern, "I'M we'll don't 'S") ==
        Pieces{"I", "'M", " we", "'ll", " don", "'t", " '", "S"});
  CHECK(pieces(kQwenPattern, "in 1984") == Pieces{"in", " ", "1", "9", "8", "4"});
  CHECK(pieces(kQwenPattern, "a   b  \n\n  c") == Pieces{"a", "  ", " b", "  \n\n", " ", " c"});
  CHECK(pieces(kQwenPattern, "x;\r\n\ty") == Pieces{"x", ";\r\n", "\ty"});
  CHECK(pieces(kQwenPattern, "").empty());
}

TEST_CASE("Classes are Unicode 16.0 and white space has 25 members", "[pretokenizer]") {
  const std::size_t letters = count_matches("\\p{L}"), numbers = count_matches("\\p{N}"),
                    marks = count_matches("\\p{M}");
  if (nv::detail::pcre2_unicode_version() <= 16) {
    CHECK(letters == 141028);
    CHECK(numbers == 1911);
    CHECK(marks == 2501);
  } else {  // see docs/tokenizer.md
    CHECK(letters > 141028);
    CHECK(numbers >= 1911);
    CHECK(marks >= 2501);
  }
  CHECK(count_matches("[\\p{L}]") == letters);
  CHECK(count_matches("\\s") == 25);
  CHECK(count_matches("[\\s]") == 25);
  CHECK(count_matches("(?<=-)\\P{N}") == 0x110000 - 0x800 - numbers);
}

TEST_CASE("Oniguruma's dialect is kept where PCRE2's differs", "[pretokenizer]") {
  CHECK(pieces("\\v",
               "a\x0b"
               "b\nc") == Pieces{"a", "\x0b", "b\nc"});
  CHECK(pieces("^b", "a\nb") == Pieces{"a\n", "b"});
  CHECK(pieces("a$", "ba\nc") == Pieces{"b", "a", "\nc"});
  CHECK(pieces(".+", "a\rb\nc") == Pieces{"a\rb", "\n", "c"});
  CHECK(pieces("(?i:'s)", "it'\u017F") == Pieces{"it", "'\u017F"});
  CHECK(pieces("\\s", "a\u180Eb") == Pieces{"a\u180Eb"});
  CHECK(pieces("[^\\s]+", "a\u180Eb c") == Pieces{"a\u180Eb", " ", "c"});
  CHECK(pieces("\\S", " a ") == Pieces{" ", "a", " "});
  CHECK(pieces("\\p{N}{1,3}", "12345") == Pieces{"123", "45"});
  CHECK(pieces("[\\[\\]\\-]", "a[b]-") == Pieces{"a", "[", "b", "]", "-"});
}

TEST_CASE("What does not match is a piece too, and empty matches only cut", "[pretokenizer]") {
  CHECK(pieces("b", "abcb") == Pieces{"a", "b", "c", "b"});
  CHECK(pieces("x", "abc") == Pieces{"abc"});
  CHECK(pieces("b*", "abbc") == Pieces{"a", "bb", "c"});
  CHECK(pieces("(?=\u4F60)", "a\u4F60\u4F60") == Pieces{"a", "\u4F60", "\u4F60"});
  CHECK(pieces("", "a\u4F60") == Pieces{"a", "\u4F60"});
  CHECK(pieces(nv::SplitPattern::literal("a.\\"), "xa.\\ab") == Pieces{"x", "a.\\", "ab"});
}

TEST_CASE("Patterns that could mean something else are refused by name", "[pretokenizer]") {
  for (const char* pattern :
       {"\\w+",   "\\d",     "\\b",      "\\h",     "\\R",      "\\X",   "\\K",   "\\1",
        "\\G",    "\\x41",   "\\p{Han}", "\\p{^L}", "\\pL",     "\\p{L", "(?i)a", "(?<name>a)",
        "(?m:a)", "(*UTF)a", "a{,3}",    "a{2}+",   "a{2}?",    "a{x}",  "a{",    "[[:alpha:]]",
        "[a&&b]", "[]",      "[^]",      "[\\S]",   "[\\P{L}]", "[\\w]"}) {
    INFO(pattern);
    const std::string message = refusal(pattern);
    CHECK(mentions(message, "supported"));
    CHECK(mentions(message, pattern));
  }
  for (const char* pattern : {"(a", "a)", "[a", "a**", "\\", "*"}) {
    INFO(pattern);
    CHECK(mentions(refusal(pattern), "not a valid regular expression"));
  }
  CHECK(refusal("(a|b)+?(?:c)(?=d)(?!e)(?<=f)(?<!g)(?>h){2}i{2,}j{2,3}\\.\\n[a-z^]").empty());
}

TEST_CASE("A pattern that takes exponential time gives up with an error", "[pretokenizer]") {
  CHECK_THROWS_AS(pieces("(a*)*[bc]", std::string(5000, 'a')), nv::RequestError);
}

TEST_CASE("Megabytes of one kind of character pass through Qwen's pattern", "[pretokenizer]") {
  for (const char* unit : {" ", "\n", "a", "!", "\u4F60", "1", " \n", "'"}) {
    std::string text;
    while (text.size() < (16u << 20)) text += unit;
    nv::RegexScratch scratch;
    std::size_t size = 0;
    nv::SplitPattern::regex(kQwenPattern).split(text, scratch, [&](std::string_view piece) {
      size += piece.size();
    });
    CHECK(size == text.size());
  }
}
