#pragma once
/// JSON strings whose values match a pattern.

#include <string_view>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// The JSON strings, in quotes, whose values match the regular expression, in the dialect of
/// api/grammar/regex/regex_parser.hpp. One with anchors is searched for, as ECMA 262 does it: any
/// text may come before and after where it has none. A pattern without any anchor is the string as
/// a whole. Where there is a choice, a character is spelt as itself, and quotes, backslashes and
/// control characters by their escapes. Throws RequestError as parse_regex and ByteDfa do.
[[nodiscard]] ByteDfa json_strings_of_pattern(std::string_view pattern,
                                              const CompileBudget& budget);

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <cstddef>
#include <utility>

#include "nanovllm/api/grammar/regex/regex_anchors.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"

namespace nanovllm {

namespace detail {

NANOVLLM_GRAMMAR_INLINE RegexNode one_of(CodePointSet set) {
  return {.kind = RegexNode::Kind::characters, .characters = std::move(set)};
}

/// A backslash, and what JSON has after it for one of `set`.
NANOVLLM_GRAMMAR_INLINE RegexNode json_escapes(const CodePointSet& set) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kEscapes = "\"\\bfnrt";
  const auto contains = [&](char32_t c) {
    return std::any_of(set.ranges().begin(), set.ranges().end(),
                       [&](const auto& range) { return range.first <= c && c <= range.last; });
  };
  const auto backslash = [](RegexNode rest) {
    RegexNode out{.kind = RegexNode::Kind::sequence};
    out.parts.push_back(one_of(CodePointSet(U'\\')));
    out.parts.push_back(std::move(rest));
    return out;
  };
  CodePointSet escapes;
  for (std::size_t i = 0; i < kEscaped.size(); ++i)
    if (contains(static_cast<unsigned char>(kEscaped[i])))
      escapes.add(CodePointSet(static_cast<unsigned char>(kEscapes[i])));
  if (!escapes.ranges().empty()) return backslash(one_of(std::move(escapes)));
  RegexNode out{.kind = RegexNode::Kind::choice};  // of other control characters: \u00XX
  out.parts.push_back(one_of({}));
  for (char32_t c = 0; c < 0x20; ++c) {
    if (!contains(c)) continue;
    RegexNode digits{.kind = RegexNode::Kind::sequence};
    for (const char32_t digit : {U'u', U'0', U'0', U"01"[c / 16], U"0123456789abcdef"[c % 16]})
      digits.parts.push_back(one_of(CodePointSet(digit)));
    out.parts.push_back(backslash(std::move(digits)));
  }
  return out;
}

/// The same pattern of what JSON spells the texts with.
NANOVLLM_GRAMMAR_INLINE RegexNode in_json(RegexNode node) {
  for (RegexNode& part : node.parts) part = in_json(std::move(part));
  if (node.kind != RegexNode::Kind::characters) return node;
  CodePointSet plain;  // what is spelt as itself
  for (const CodePointSet::Range& range : node.characters.ranges()) {
    char32_t first = std::max<char32_t>(range.first, 0x20);
    for (const char32_t special : {U'"', U'\\'}) {
      if (special < first || special > range.last) continue;
      if (first < special) plain.add(first, special - 1);
      first = special + 1;
    }
    if (first <= range.last) plain.add(first, range.last);
  }
  RegexNode escapes = json_escapes(node.characters);
  const bool has_plain = !plain.ranges().empty();
  if (has_plain && escapes.kind == RegexNode::Kind::choice) return one_of(std::move(plain));
  if (!has_plain) return escapes;
  RegexNode out{.kind = RegexNode::Kind::choice};
  out.parts.push_back(one_of(std::move(plain)));
  out.parts.push_back(std::move(escapes));
  return out;
}

}  // namespace detail

NANOVLLM_GRAMMAR_INLINE ByteDfa json_strings_of_pattern(std::string_view pattern,
                                                        const CompileBudget& budget) {
  RegexNode root = parse_regex(pattern, true);
  if (has_anchors(root)) root = search_pattern(std::move(root));
  return ByteDfa(make_nfa(detail::in_json(std::move(root)), budget), budget).in_quotes();
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
