#pragma once
/// Patterns whose anchors are replaced by what they ask for.
///
/// A JSON Schema's `pattern` is searched for in a string, as ECMA 262 does it: what is not anchored
/// may have any text before or behind it. Where ^ and $ stand within groups, alternatives and
/// repetitions, each way through the pattern has its own open ends: `^(a|b$)` is "a" with any text
/// behind it, or "b" alone.

#include <cstddef>
#include <optional>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/regex/regex_parser.hpp"

namespace nanovllm {

/// Whether a pattern has ^ or $ anywhere.
[[nodiscard]] bool has_anchors(const RegexNode& pattern);

/// A pattern without anchors that as a whole matches the texts in which `pattern` occurs; nothing
/// if there is no such text, as with `a^b`. Throws RequestError if it would have more than
/// `max_nodes` parts, which needs anchors in nested repetitions.
[[nodiscard]] std::optional<RegexNode> search_pattern(const RegexNode& pattern,
                                                      std::size_t max_nodes = 100'000);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <array>
#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

namespace detail {

/// Splits a pattern by the anchors that a match passes: none, ^, $, or both. What is read before ^
/// or behind $ is empty, so each of the four is a pattern without anchors.
class AnchorSplitter {
 public:
  explicit AnchorSplitter(std::size_t max_nodes) : nodes_left_(max_nodes) {}

  [[nodiscard]] std::optional<RegexNode> run(const RegexNode& pattern) {
    const Parts parts = split(pattern);
    std::optional<RegexNode> out;
    for (unsigned passed = 0; passed < kNumParts; ++passed) {
      if (!parts.match[passed]) continue;
      RegexNode option{.kind = Kind::sequence};
      if (!(passed & kBegin)) option.parts.push_back(any_text());
      option.parts.push_back(*parts.match[passed]);
      if (!(passed & kEnd)) option.parts.push_back(any_text());
      add(out, std::move(option));
    }
    return out;
  }

 private:
  using Kind = RegexNode::Kind;
  using Match = std::optional<RegexNode>;  // no text where it is unset

  static constexpr unsigned kBegin = 1, kEnd = 2, kNumParts = 4;

  /// [anchors passed]: what is read on the way, and whether that may be nothing.
  struct Parts {
    std::array<Match, kNumParts> match{};
    std::array<bool, kNumParts> may_be_empty{};

    [[nodiscard]] bool has(unsigned passed) const { return match[passed].has_value(); }
  };

  [[nodiscard]] static RegexNode any_text() {
    RegexNode any{.kind = Kind::repeat};
    any.parts.push_back({.kind = Kind::characters, .characters = CodePointSet::all()});
    return any;
  }

  [[nodiscard]] Parts split(const RegexNode& node) {
    Parts out;
    if (node.kind == Kind::text_begin || node.kind == Kind::text_end)
      return empty(node.kind == Kind::text_begin ? kBegin : kEnd);
    if (!has_anchors(node)) {
      out.match[0] = copy(node);
      out.may_be_empty[0] = may_be_empty(node);
      return out;
    }
    switch (node.kind) {
      case Kind::sequence:
        out = empty(0);
        for (const RegexNode& part : node.parts) out = joined(out, split(part));
        return out;
      case Kind::choice:
        for (const RegexNode& part : node.parts) out = either(std::move(out), split(part));
        return out;
      default: return repeated(split(node.parts.front()), node.min, node.max);
    }
  }

  /// Nothing, by the way of these anchors.
  [[nodiscard]] static Parts empty(unsigned passed) {
    Parts out;
    out.match[passed] = RegexNode{.kind = Kind::sequence};
    out.may_be_empty[passed] = true;
    return out;
  }

  [[nodiscard]] Parts either(Parts a, const Parts& b) {
    for (unsigned passed = 0; passed < kNumParts; ++passed) {
      if (b.has(passed)) add(a.match[passed], copy(*b.match[passed]));
      a.may_be_empty[passed] = a.may_be_empty[passed] || b.may_be_empty[passed];
    }
    return a;
  }

  /// One behind the other. Nothing is read before a ^ of the second or behind a $ of the first.
  [[nodiscard]] Parts joined(const Parts& a, const Parts& b) {
    Parts out;
    for (unsigned first = 0; first < kNumParts; ++first) {
      for (unsigned second = 0; second < kNumParts; ++second) {
        if (!a.has(first) || !b.has(second)) continue;
        const bool a_is_empty = second & kBegin, b_is_empty = first & kEnd;
        if ((a_is_empty && !a.may_be_empty[first]) || (b_is_empty && !b.may_be_empty[second]))
          continue;
        RegexNode both{.kind = Kind::sequence};
        if (!a_is_empty) append(both, *a.match[first]);
        if (!b_is_empty) append(both, *b.match[second]);
        out.may_be_empty[first | second] |= a.may_be_empty[first] && b.may_be_empty[second];
        add(out.match[first | second], std::move(both));
      }
    }
    return out;
  }

  /// `part` min to max times. Turns that read nothing and pass an anchor may come as often as they
  /// like before all others (^) or behind them ($); of the others only the first can pass ^, and
  /// only the last can pass $.
  [[nodiscard]] Parts repeated(const Parts& part, int min, int max) {
    const auto fewer = [&](int count) {
      return max == RegexNode::kUnlimited ? max : std::max(max - count, 0);
    };
    const auto at_least = [&](int count) { return max == RegexNode::kUnlimited || max >= count; };
    Parts out = turns(part, min, max);
    const bool begins = part.may_be_empty[kBegin], ends = part.may_be_empty[kEnd];
    if (at_least(1) && begins)
      out = either(std::move(out), joined(empty(kBegin), turns(part, 0, fewer(1))));
    if (at_least(1) && ends)
      out = either(std::move(out), joined(turns(part, 0, fewer(1)), empty(kEnd)));
    if (at_least(2) && begins && ends) {
      const Parts middle = turns(part, 0, fewer(2));
      out = either(std::move(out), joined(joined(empty(kBegin), middle), empty(kEnd)));
    }
    if (at_least(1) && part.may_be_empty[kBegin | kEnd])
      out = either(std::move(out), empty(kBegin | kEnd));
    return out;
  }

  /// The same where each turn reads something or passes no anchor.
  [[nodiscard]] Parts turns(const Parts& part, int min, int max) {
    Parts out;
    if (min == 0) out = empty(0);
    if (max == 0) return out;
    if (min <= 1) out = either(std::move(out), part);
    if (max == 1) return out;
    Parts middle = empty(0);
    const int most = max == RegexNode::kUnlimited ? max : max - 2;
    if (part.has(0) && most != 0) {
      RegexNode again{.kind = Kind::repeat, .min = std::max(min - 2, 0), .max = most};
      again.parts.push_back(copy(*part.match[0]));
      middle.match[0] = std::move(again);
      middle.may_be_empty[0] = min <= 2 || part.may_be_empty[0];
    } else if (min > 2) {
      return out;
    }
    return either(std::move(out), joined(joined(part, middle), part));
  }

  [[nodiscard]] static bool may_be_empty(const RegexNode& node) {
    const auto is_empty = [](const RegexNode& part) { return may_be_empty(part); };
    switch (node.kind) {
      case Kind::characters: return false;
      case Kind::sequence: return std::all_of(node.parts.begin(), node.parts.end(), is_empty);
      case Kind::choice: return std::any_of(node.parts.begin(), node.parts.end(), is_empty);
      case Kind::repeat: return node.min == 0 || is_empty(node.parts.front());
      default: return true;
    }
  }

  static void add(Match& to, RegexNode option) {
    if (!to) {
      to = std::move(option);
    } else if (to->kind == Kind::choice) {
      to->parts.push_back(std::move(option));
    } else {
      RegexNode all{.kind = Kind::choice};
      all.parts.push_back(std::move(*to));
      all.parts.push_back(std::move(option));
      to = std::move(all);
    }
  }

  void append(RegexNode& sequence, const RegexNode& part) {
    if (part.kind != Kind::sequence) return sequence.parts.push_back(copy(part));
    for (const RegexNode& each : part.parts) sequence.parts.push_back(copy(each));
  }

  /// A copy, which counts against the limit.
  [[nodiscard]] RegexNode copy(const RegexNode& node) {
    count(node);
    return node;
  }

  void count(const RegexNode& node) {
    check<RequestError>(nodes_left_ > 0, "a pattern has anchors in too many places");
    --nodes_left_;
    for (const RegexNode& part : node.parts) count(part);
  }

  std::size_t nodes_left_;
};

}  // namespace detail

NANOVLLM_INLINE bool has_anchors(const RegexNode& pattern) {
  using Kind = RegexNode::Kind;
  return pattern.kind == Kind::text_begin || pattern.kind == Kind::text_end ||
         std::any_of(pattern.parts.begin(), pattern.parts.end(), has_anchors);
}

NANOVLLM_INLINE std::optional<RegexNode> search_pattern(const RegexNode& pattern,
                                                        std::size_t max_nodes) {
  return detail::AnchorSplitter(max_nodes).run(pattern);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
