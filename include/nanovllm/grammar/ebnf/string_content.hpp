#pragma once
/// The contents of JSON strings that match a pattern, as a piece of a grammar.

#include <string>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"

namespace nanovllm::ebnf {

/// The text between the quotes of a JSON string whose value matches the regular expression, in the
/// dialect of grammar/regex/regex_parser.hpp. A pattern with anchors is searched for, as
/// ECMA 262 does it: any text may come before and behind where it has none. A pattern without any
/// anchor is the string as a whole. Where there is a choice, a character is spelt as itself, and
/// quotes, backslashes and control characters by their escapes.
///
/// Throws RequestError as parse_regex and search_pattern do, and where no text matches.
[[nodiscard]] std::string string_content(std::string_view pattern);

}  // namespace nanovllm::ebnf

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/grammar/ebnf/ebnf_text.hpp"
#include "nanovllm/grammar/regex/regex_anchors.hpp"
#include "nanovllm/grammar/regex/regex_parser.hpp"

namespace nanovllm::ebnf {

namespace detail {

/// Writes a parsed pattern without anchors as what JSON spells the strings with.
class ContentWriter {
 public:
  [[nodiscard]] static std::string write(const RegexNode& node) {
    switch (node.kind) {
      case RegexNode::Kind::characters: return characters(node.characters);
      case RegexNode::Kind::sequence: {
        std::string out;
        for (const RegexNode& part : node.parts) {
          if (!out.empty()) out += ' ';
          out += write(part);
        }
        return out.empty() ? "\"\"" : "(" + out + ")";
      }
      case RegexNode::Kind::choice: {
        std::vector<std::string> options;
        for (const RegexNode& part : node.parts) options.push_back(write(part));
        return either(options);
      }
      case RegexNode::Kind::repeat: return repeat(write(node.parts.front()), node.min, node.max);
      default: return "\"\"";  // anchors, which are gone
    }
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

}  // namespace detail

NANOVLLM_INLINE std::string string_content(std::string_view pattern) {
  RegexNode root = parse_regex(pattern, true);
  if (has_anchors(root)) {
    std::optional<RegexNode> found = search_pattern(root);
    check<RequestError>(found.has_value(),
                        "no text matches a pattern with anchors in these places");
    root = std::move(*found);
  }
  return detail::ContentWriter::write(root);
}

}  // namespace nanovllm::ebnf

#endif  // NANOVLLM_BODIES
