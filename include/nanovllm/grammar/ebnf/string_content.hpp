#pragma once
/// The contents of JSON strings that match a pattern, as a piece of a grammar.

#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::ebnf {

/// What stands between the quotes of a JSON string whose value matches the regular expression, in
/// the dialect of grammar/regex/regex_parser.hpp. A pattern with ^ at its begin alone, or $ at its end
/// alone, is open at the other end; every other is the string as a whole. Where there is a choice a
/// character is spelt as itself, and quotes, backslashes and control characters by their escapes.
///
/// Throws RequestError as parse_regex does, and for an anchor that is neither at the begin nor at
/// the end.
[[nodiscard]] std::string string_content(std::string_view pattern);

}  // namespace nanovllm::ebnf

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/grammar/regex/regex_parser.hpp"

namespace nanovllm::ebnf {

namespace detail {

/// Writes a parsed pattern as what JSON spells the strings with.
class ContentWriter {
 public:
  /// `node` with nothing but itself to match. `at_begin`, `at_end`: whether an anchor here says what
  /// is so anyway.
  [[nodiscard]] static std::string write(const RegexNode& node, bool at_begin, bool at_end) {
    switch (node.kind) {
      case RegexNode::Kind::characters: return characters(node.characters);
      case RegexNode::Kind::sequence: {
        std::string out;
        for (std::size_t i = 0; i < node.parts.size(); ++i) {
          if (!out.empty()) out += ' ';
          out += write(node.parts[i], at_begin && i == 0, at_end && i + 1 == node.parts.size());
        }
        return out.empty() ? "\"\"" : "(" + out + ")";
      }
      case RegexNode::Kind::choice: {
        std::vector<std::string> options;
        for (const RegexNode& part : node.parts) options.push_back(write(part, at_begin, at_end));
        return either(options);
      }
      case RegexNode::Kind::repeat:
        return repeat(write(node.parts.front(), false, false), node.min, node.max);
      case RegexNode::Kind::text_begin:
        check<RequestError>(at_begin, "a ^ that is not at the begin of a pattern is not supported");
        return "\"\"";
      case RegexNode::Kind::text_end:
        check<RequestError>(at_end, "a $ that is not at the end of a pattern is not supported");
        return "\"\"";
    }
    return {};
  }

 private:
  [[nodiscard]] static bool contains(const CodePointSet& set, char32_t c) {
    return std::any_of(set.ranges().begin(), set.ranges().end(),
                       [&](const auto& range) { return range.first <= c && c <= range.last; });
  }

  [[nodiscard]] static std::string characters(const CodePointSet& set) {
    CodePointSet plain;
    for (const CodePointSet::Range& range : set.ranges()) {
      // What JSON does not spell as itself lies below the space, and the two below.
      char32_t first = std::max<char32_t>(range.first, 0x20);
      for (const char32_t special : {U'"', U'\\'}) {
        if (special < first || special > range.last) continue;
        if (first < special) plain.add(first, special - 1);
        first = special + 1;
      }
      if (first <= range.last) plain.add(first, range.last);
    }
    std::vector<std::string> options;
    if (!plain.ranges().empty()) options.push_back(character_class(plain));
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kEscapes = "\"\\bfnrt";
    CodePointSet escapes;
    for (std::size_t i = 0; i < kEscaped.size(); ++i)
      if (contains(set, static_cast<char32_t>(kEscaped[i])))
        escapes.add(static_cast<char32_t>(kEscapes[i]), static_cast<char32_t>(kEscapes[i]));
    if (!escapes.ranges().empty()) options.push_back("(\"\\\\\" " + character_class(escapes) + ")");
    if (options.empty()) {  // control characters alone, which one does not ask for otherwise
      for (char32_t c = 0; c < 0x20; ++c) {
        if (!contains(set, c)) continue;
        std::array<char, 16> text{};
        std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(c));
        options.push_back(literal(text.data()));
      }
    }
    check<RequestError>(!options.empty(), "a pattern has a class of no characters");
    return either(options);
  }
};

/// Whether the pattern, or each of its alternatives, begins or ends with an anchor.
NANOVLLM_INLINE bool is_anchored(const RegexNode& node, bool at_begin) {
  using Kind = RegexNode::Kind;
  if (node.kind == Kind::sequence) {
    if (node.parts.empty()) return false;
    return is_anchored(at_begin ? node.parts.front() : node.parts.back(), at_begin);
  }
  if (node.kind == Kind::choice) {
    return std::all_of(node.parts.begin(), node.parts.end(),
                       [&](const RegexNode& part) { return is_anchored(part, at_begin); });
  }
  return node.kind == (at_begin ? Kind::text_begin : Kind::text_end);
}

/// The alternatives of a pattern, which anchors belong to.
NANOVLLM_INLINE std::span<const RegexNode> alternatives(const RegexNode& pattern) {
  const RegexNode* node = &pattern;
  while (node->kind == RegexNode::Kind::sequence && node->parts.size() == 1)
    node = &node->parts.front();
  if (node->kind == RegexNode::Kind::choice) return node->parts;
  return {node, 1};
}

}  // namespace detail

NANOVLLM_INLINE std::string string_content(std::string_view pattern) {
  const RegexNode root = parse_regex(pattern, true);
  CodePointSet any = CodePointSet::all();
  const std::string rest =
      repeat(detail::ContentWriter::write({.kind = RegexNode::Kind::characters, .characters = any},
                                          false, false),
             0, -1);
  std::vector<std::string> options;
  for (const RegexNode& node : detail::alternatives(root)) {
    const bool has_begin = detail::is_anchored(node, true);
    const bool has_end = detail::is_anchored(node, false);
    std::string content = detail::ContentWriter::write(node, true, true);
    if (has_begin && !has_end) content = "(" + content + " " + rest + ")";
    if (!has_begin && has_end) content = "(" + rest + " " + content + ")";
    options.push_back(std::move(content));
  }
  return either(options);
}

}  // namespace nanovllm::ebnf

#endif  // NANOVLLM_BODIES
