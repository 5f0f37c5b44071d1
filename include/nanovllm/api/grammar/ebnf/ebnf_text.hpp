#pragma once
/// Pieces of grammars in the notation of api/grammar/ebnf/ebnf_parser.hpp: literals, character
/// sets, choices and repetitions. Each function gives an expression that can stand anywhere in a
/// rule.

#include <array>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/api/grammar/bytes/code_point_set.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm::ebnf {

namespace detail {

inline void append_code_point(std::string& out, char32_t c) {
  constexpr std::u32string_view kSyntax = U"\"\\[]-^";
  const bool is_plain = c >= ' ' && c <= '~' && kSyntax.find(c) == kSyntax.npos;
  if (is_plain) {
    out += static_cast<char>(c);
    return;
  }
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(),
                c <= 0xFFFF ? "\\u%04X" : "\\U%08X",  // \x takes as many digits as follow
                static_cast<unsigned>(c));
  out += text.data();
}

}  // namespace detail

/// One of the options, which are not empty; nothing where there are none.
[[nodiscard]] inline std::string either(const std::vector<std::string>& options) {
  if (options.size() < 2) return options.empty() ? "" : options.front();
  std::string out = "(";
  for (const std::string& option : options) {
    if (out.size() > 1) out += " | ";
    out += option;
  }
  return out + ")";
}

/// One part after the other; those that are empty, as texts or as expressions, are left out.
[[nodiscard]] inline std::string sequence(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (std::string_view part : parts) {
    if (part.empty() || part == "\"\"") continue;
    if (!out.empty()) out += ' ';
    out += part;
  }
  return out.empty() ? "\"\"" : "(" + out + ")";
}

/// The text itself, in quotes. It must be UTF-8.
[[nodiscard]] inline std::string literal(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const utf8::Char c = utf8::decode(text, i);
    detail::append_code_point(out, c.code_point);
    i += c.size;
  }
  return out + '"';
}

/// One code point of the set, as a class in brackets. The set must not be empty.
[[nodiscard]] inline std::string character_class(const CodePointSet& set) {
  std::string out = "[";
  for (const CodePointSet::Range& range : set.ranges()) {
    detail::append_code_point(out, range.first);
    if (range.last == range.first) continue;
    out += '-';
    detail::append_code_point(out, range.last);
  }
  return out + "]";
}

/// `expression` min to max times; no end where max < 0.
[[nodiscard]] inline std::string repeat(const std::string& expression, long long min,
                                        long long max) {
  if (max == 0) return "\"\"";
  if (min == 1 && max == 1) return expression;
  if (min == 0 && max < 0) return "(" + expression + ")*";
  if (min == 1 && max < 0) return "(" + expression + ")+";
  if (min == 0 && max == 1) return "(" + expression + ")?";
  return "(" + expression + "){" + std::to_string(min) + "," +
         (max < 0 ? "" : std::to_string(max)) + "}";
}

}  // namespace nanovllm::ebnf
