#pragma once
/// Random regular expressions and texts, and PCRE2's opinion of whether one matches the other.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm_test {

/// Patterns over the letters a b c 1 _, é (two bytes), € (three), 😀 (four) and a line feed.
struct RandomRegex {
  explicit RandomRegex(unsigned seed, bool is_finite = false) : random(seed), finite(is_finite) {}

  std::mt19937 random;
  bool finite;  ///< no text has more than kMaxChars characters, nor others than the first six

  static constexpr int kMaxChars = 5;

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

  std::string letter() {
    static const std::vector<std::string> letters{"a", "b", "c", "1", "_", "é", "€", "😀", "\n"};
    return letters[static_cast<std::size_t>(below(finite ? 6 : 9))];
  }

  std::string text(int max_letters) {
    std::string out;
    for (int i = below(max_letters + 1); i > 0; --i) out += letter();
    return out;
  }

  /// One character.
  std::string atom() {
    if (finite) return below(3) == 0 ? "[" + letter() + letter() + "]" : letter();
    switch (below(10)) {
      case 0: return ".";
      case 1: return std::vector<std::string>{"\\d", "\\D", "\\w", "\\W", "\\s", "\\S"}[below(6)];
      case 2: return "[" + letter() + "-" + "\\x{1F600}" + "]";
      case 3: return "[^" + letter() + letter() + "]";
      case 4: return "[a-c" + letter() + "\\d]";
      case 5:
        return std::vector<std::string>{"\\n",
                                        "\\x61",
                                        "\\x{20AC}",
                                        "\\.",
                                        "[\\x{700}-\\x{FFFF}]",
                                        "[^\\x{81}-\\x{10FFF0}]"}[below(6)];
      default: return letter();
    }
  }

  /// At most `budget` characters long if finite.
  std::string pattern(int depth, int budget = kMaxChars) {
    if (depth == 0 || budget == 1) return budget == 0 ? "" : atom();
    switch (below(6)) {
      case 0: return atom();
      case 1: return "(" + pattern(depth - 1, budget) + "|" + pattern(depth - 1, budget) + ")";
      case 2: {
        if (finite) return "(?:" + pattern(depth - 1, budget / 2) + "){0,2}";
        static const std::vector<std::string> quantifiers{"*",    "+",     "?",      "{2}",
                                                          "{1,}", "{0,2}", "{1,3}?", "+?"};
        return "(?:" + pattern(depth - 1) + ")" +
               quantifiers[static_cast<std::size_t>(below(static_cast<int>(quantifiers.size())))];
      }
      case 3:
        if (below(4) == 0)
          return "(?<n" + std::to_string(counter_++) + ">" + pattern(depth - 1, budget) + ")";
        if (below(8) == 0 && !finite)
          return "(?:^|" + atom() + ")" + pattern(depth - 1) + "(?:$|" + atom() + ")";
        [[fallthrough]];
      default: {
        const int left = finite ? 1 + below(budget - 1) : budget;
        return pattern(depth - 1, left) + pattern(depth - 1, finite ? budget - left : budget);
      }
    }
  }

 private:
  int counter_ = 0;
};

/// A pattern as PCRE2 reads it, matched against whole texts.
class Pcre2Oracle {
 public:
  explicit Pcre2Oracle(const std::string& pattern)
      : match_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context_.get(), 20'000);
    int error = 0;
    std::size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                              &error, &offset, nullptr));
  }

  [[nodiscard]] bool is_valid() const { return code_ != nullptr; }

  /// Nothing where PCRE2 gives up or `text` is not UTF-8.
  [[nodiscard]] std::optional<bool> matches(std::string_view text) const {
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                   text.size(), 0, 0, match_.get(), context_.get());
    if (result == PCRE2_ERROR_NOMATCH) return false;
    if (result < 0) return std::nullopt;
    return true;
  }

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
  std::unique_ptr<pcre2_match_context, Free> context_;
};

}  // namespace nanovllm_test
