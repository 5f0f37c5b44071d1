#pragma once
/// Patterns that are searched for.
///
/// A JSON Schema's `pattern` is searched for in a string, as ECMA 262 does it: what is not anchored
/// may have any text before or after it.

#include <utility>

#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// Whether a pattern has ^ or $ anywhere.
[[nodiscard]] bool has_anchors(const RegexNode& pattern);

/// A pattern that as a whole matches the texts in which `pattern` occurs.
[[nodiscard]] RegexNode search_pattern(RegexNode pattern);

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>

namespace nanovllm {

namespace detail {

/// Whether every match passes an anchor of this kind. Nothing is then read beyond it.
NANOVLLM_GRAMMAR_INLINE bool always_passes(const RegexNode& pattern, RegexNode::Kind anchor) {
  const auto passes = [&](const RegexNode& part) { return always_passes(part, anchor); };
  switch (pattern.kind) {
    case RegexNode::Kind::sequence:
      return std::any_of(pattern.parts.begin(), pattern.parts.end(), passes);
    case RegexNode::Kind::choice:
      return std::all_of(pattern.parts.begin(), pattern.parts.end(), passes);
    case RegexNode::Kind::repeat: return pattern.min > 0 && passes(pattern.parts.front());
    default: return pattern.kind == anchor;
  }
}

}  // namespace detail

NANOVLLM_GRAMMAR_INLINE bool has_anchors(const RegexNode& pattern) {
  using Kind = RegexNode::Kind;
  return pattern.kind == Kind::text_begin || pattern.kind == Kind::text_end ||
         std::any_of(pattern.parts.begin(), pattern.parts.end(), has_anchors);
}

NANOVLLM_GRAMMAR_INLINE RegexNode search_pattern(RegexNode pattern) {
  using Kind = RegexNode::Kind;
  const bool begins = detail::always_passes(pattern, Kind::text_begin);
  const bool ends = detail::always_passes(pattern, Kind::text_end);
  RegexNode out{.kind = Kind::sequence};
  if (!begins) out.parts.push_back(RegexNode::any_text());
  out.parts.push_back(std::move(pattern));
  if (!ends) out.parts.push_back(RegexNode::any_text());
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
