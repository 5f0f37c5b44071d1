#pragma once
/// JSON strings: those of bounded length that an automaton reads, and those whose values match a
/// pattern.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// What the states of an automaton of JSON strings know of characters: with it, and a count of
/// those read so far, one automaton reads strings of any bounds. An escape is one character, and so
/// is a pair of escapes that spells a character beyond U+FFFF.
class StringLengths {
 public:
  static constexpr std::int32_t kNone = -1;

  /// Nothing where `strings` reads other texts than JSON strings, or comes to one state within and
  /// between characters. Throws RequestError beyond the budget.
  /// @param most_needed the largest number that shortest() is asked for.
  [[nodiscard]] static std::optional<StringLengths> make(const ByteDfa& strings,
                                                         std::int32_t most_needed,
                                                         const CompileBudget& budget);

  /// Whether `state` is in a string between two characters, before the first or after the last.
  [[nodiscard]] bool is_between(ByteDfa::StateId state) const {
    return is_between_[static_cast<std::size_t>(state)] != 0;
  }

  /// Characters that the shortest way from `state` to the end has, of the ways with `needed` and
  /// more; kNone where there is none.
  [[nodiscard]] std::int32_t shortest(ByteDfa::StateId state, std::int32_t needed) const {
    const std::int32_t row = needed < num_rows_ ? needed : num_rows_ - 1;
    const std::int32_t found =
        rows_[static_cast<std::size_t>(row) * is_between_.size() + static_cast<std::size_t>(state)];
    return found == kNone ? kNone : found + (needed - row);
  }

  /// From so many needed characters on, shortest() grows by one for each.
  [[nodiscard]] std::int32_t linear_from() const { return num_rows_ - 1; }
  /// The largest shortest(state, 0).
  [[nodiscard]] std::int32_t longest_way() const { return longest_way_; }

  [[nodiscard]] std::size_t size_bytes() const {
    return is_between_.size() + rows_.size() * sizeof(std::int32_t);
  }

 private:
  struct Step {
    ByteDfa::StateId to;
    std::int32_t characters;  ///< that it completes: 0 or 1
  };
  using Steps = std::vector<std::vector<Step>>;  // [state], each once

  [[nodiscard]] bool find_places(const ByteDfa& strings, Steps& steps);
  /// States in an order in which those within a character come after those that they lead to
  /// without completing it. `sources[i]` are those that lead to state i.
  [[nodiscard]] static std::vector<std::size_t> backwards(
      const Steps& steps, const std::vector<std::vector<std::size_t>>& sources);
  void find_shortest(const ByteDfa& strings, const Steps& steps, std::int32_t most_needed,
                     const CompileBudget& budget);

  std::vector<std::uint8_t> is_between_;  // [state]
  std::vector<std::int32_t> rows_;        // [needed][state]
  std::int32_t num_rows_ = 0, longest_way_ = 0;
};

/// Any JSON string. Escapes of surrogates come in pairs.
[[nodiscard]] inline const ByteDfa& json_string_dfa() {
  static const ByteDfa dfa = compile_regex(
      "\"([^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/bfnrt]|u([0-9A-CE-Fa-ce-f][0-9A-Fa-f]|[Dd][0-7])"
      "[0-9A-Fa-f]{2}|u[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))*\"");
  return dfa;
}

inline std::optional<StringLengths> StringLengths::make(const ByteDfa& strings,
                                                        std::int32_t most_needed,
                                                        const CompileBudget& budget) {
  budget.spend(4 * strings.num_states() * strings.num_kinds());
  StringLengths out;
  Steps steps(strings.num_states());
  if (!out.find_places(strings, steps)) return std::nullopt;
  out.find_shortest(strings, steps, most_needed, budget);
  return out;
}

/// By following any JSON string beside `strings`.
inline bool StringLengths::find_places(const ByteDfa& strings, Steps& steps) {
  constexpr ByteDfa::StateId kDead = ByteDfa::kDead, kStart = ByteDfa::kStart;
  const ByteDfa& json = json_string_dfa();
  const DfaExplorer::Kinds kinds = DfaExplorer::common_kinds(strings, json);
  std::vector<ByteDfa::StateId> place(strings.num_states(), kDead);  // in any JSON string
  std::vector<ByteDfa::StateId> todo{kStart};
  place[0] = kStart;
  const auto is_between = [&](ByteDfa::StateId state) {
    const ByteDfa::StateId end = json.next(state, std::uint8_t{'"'});
    return end != kDead && json.accepts(end);
  };
  while (!todo.empty()) {
    const ByteDfa::StateId at = todo.back();
    todo.pop_back();
    std::vector<Step>& mine = steps[static_cast<std::size_t>(at)];
    int next_kind = 0;
    for (int i = 0; i < 256; ++i) {
      const auto byte = static_cast<std::uint8_t>(i);
      if (kinds[byte] < next_kind) continue;  // as a byte before it
      ++next_kind;
      const ByteDfa::StateId to = strings.next(at, byte);
      if (to == kDead) continue;
      const ByteDfa::StateId json_to = json.next(place[static_cast<std::size_t>(at)], byte);
      ByteDfa::StateId& known = place[static_cast<std::size_t>(to)];
      if (json_to == kDead || (known != kDead && is_between(known) != is_between(json_to)))
        return false;
      if (known == kDead) todo.push_back(to);
      if (known == kDead) known = json_to;
      if (known != json_to) return false;
      const std::int32_t characters = at != kStart && is_between(json_to) ? 1 : 0;
      if (std::none_of(mine.begin(), mine.end(), [&](const Step& step) { return step.to == to; }))
        mine.push_back({to, characters});
    }
  }
  for (std::size_t i = 0; i < place.size(); ++i) {
    const bool accepts = strings.accepts(static_cast<ByteDfa::StateId>(i));
    if (accepts != json.accepts(place[i])) return false;
    is_between_.push_back(is_between(place[i]) ? 1 : 0);
  }
  return true;
}

inline std::vector<std::size_t> StringLengths::backwards(
    const Steps& steps, const std::vector<std::vector<std::size_t>>& sources) {
  std::vector<std::size_t> num_open, order;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    num_open.push_back(static_cast<std::size_t>(std::count_if(
        steps[i].begin(), steps[i].end(), [](const Step& step) { return step.characters == 0; })));
    if (num_open[i] == 0) order.push_back(i);
  }
  for (std::size_t at = 0; at < order.size(); ++at)
    for (const std::size_t source : sources[order[at]])
      for (const Step& step : steps[source])
        if (static_cast<std::size_t>(step.to) == order[at] && step.characters == 0 &&
            --num_open[source] == 0)
          order.push_back(source);
  check<RequestError>(order.size() == steps.size(), "a character of a string has no end");
  return order;
}

inline void StringLengths::find_shortest(const ByteDfa& strings, const Steps& steps,
                                         std::int32_t most_needed, const CompileBudget& budget) {
  const std::size_t n = steps.size();
  const auto index = [](ByteDfa::StateId state) { return static_cast<std::size_t>(state); };
  std::size_t num_steps = 0;
  std::vector<std::vector<std::size_t>> sources(n);
  for (std::size_t i = 0; i < n; ++i) {
    num_steps += steps[i].size();
    for (const Step& step : steps[i]) sources[index(step.to)].push_back(i);
  }
  const std::vector<std::size_t> order = backwards(steps, sources);

  // Row 0 by breadth first from the ends; each further row from the one before.
  rows_.assign(n, kNone);
  std::vector<std::size_t> layer, next;
  for (std::size_t i = 0; i < n; ++i)
    if (strings.accepts(static_cast<ByteDfa::StateId>(i))) layer.push_back(i);
  for (std::int32_t characters = 0; !layer.empty(); ++characters, layer.swap(next), next.clear()) {
    for (std::size_t at = 0; at < layer.size(); ++at) {
      if (rows_[layer[at]] != kNone) continue;
      rows_[layer[at]] = longest_way_ = characters;
      for (const std::size_t source : sources[layer[at]])
        for (const Step& step : steps[source])
          if (index(step.to) == layer[at]) (step.characters ? next : layer).push_back(source);
    }
  }
  for (num_rows_ = 1; num_rows_ <= most_needed; ++num_rows_) {
    budget.spend(2 * (n + num_steps));
    const std::size_t row = rows_.size(), before = row - n;
    rows_.resize(row + n, kNone);
    bool is_linear = true;
    for (const std::size_t i : order) {
      std::int32_t best = kNone;
      for (const Step& step : steps[i]) {
        const std::int32_t rest = rows_[(step.characters ? before : row) + index(step.to)];
        if (rest != kNone && (best == kNone || rest + step.characters < best))
          best = rest + step.characters;
      }
      rows_[row + i] = best;
      const std::int32_t old = rows_[before + i];
      is_linear = is_linear && best == (old == kNone ? kNone : old + 1);
    }
    if (!is_linear) continue;
    rows_.resize(row);
    return;
  }
}

/// The JSON strings of `strings` that have min to max characters; no upper bound where max < 0. A
/// state of `strings` becomes one state for each number of characters that has to be distinguished.
/// Throws RequestError if there are no such strings, and as DfaExplorer does.
[[nodiscard]] inline ByteDfa strings_of_length(const ByteDfa& strings, std::int32_t min,
                                               std::int32_t max, const CompileBudget& budget) {
  constexpr std::int32_t kAnyLength = -1;  // the length will be within the bounds
  struct State {
    ByteDfa::StateId text, string;
    std::int32_t length;

    auto operator<=>(const State&) const = default;
  };
  const ByteDfa& json = json_string_dfa();
  const DfaCompletions follows = completions(strings);
  const auto is_between = [&](ByteDfa::StateId state) {
    const ByteDfa::StateId end = json.next(state, std::uint8_t{'"'});
    return end != ByteDfa::kDead && json.accepts(end);
  };
  const auto is_free = [&](const State& at) {
    if (at.length < min) return false;
    if (max < 0) return true;
    // A character has at least one byte, and the closing quote is one byte more.
    const std::uint32_t longest = follows.longest[static_cast<std::size_t>(at.text)];
    return longest != DfaCompletions::kUnlimited &&
           std::int64_t{longest} - 1 <= std::int64_t{max} - at.length;
  };
  return DfaExplorer::explore(
      DfaExplorer::common_kinds(strings, json), State{ByteDfa::kStart, ByteDfa::kStart, 0},
      [&](State& at, std::uint8_t byte) {
        const bool is_first = at.string == ByteDfa::kStart;
        at.text = strings.next(at.text, byte);
        at.string = json.next(at.string, byte);
        if (at.text == ByteDfa::kDead || at.string == ByteDfa::kDead) return false;
        if (at.length == kAnyLength) return true;
        if (json.accepts(at.string)) return at.length >= min;
        if (!is_between(at.string)) return max < 0 || at.length < max;
        if (!is_first && max >= 0 && at.length == max) return false;
        if (!is_first && (max >= 0 || at.length < min)) ++at.length;
        if (is_free(at)) at.length = kAnyLength;
        return true;
      },
      [&](const State& at) { return strings.accepts(at.text) && json.accepts(at.string); }, budget);
}

namespace detail {

inline RegexNode one_of(CodePointSet set) {
  return {.kind = RegexNode::Kind::characters, .characters = std::move(set)};
}

/// A backslash, and what JSON has after it for one of `set`.
inline RegexNode json_escapes(const CodePointSet& set) {
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
inline RegexNode in_json(RegexNode node) {
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

/// The JSON strings, in quotes, whose values match the regular expression, in the dialect of
/// api/grammar/regex/regex_parser.hpp. One with anchors is searched for, as ECMA 262 does it: any
/// text may come before and after where it has none. A pattern without any anchor is the string as
/// a whole. Where there is a choice, a character is spelt as itself, and quotes, backslashes and
/// control characters by their escapes. Throws RequestError as parse_regex and ByteDfa do.
[[nodiscard]] inline ByteDfa json_strings_of_pattern(std::string_view pattern,
                                                     const CompileBudget& budget) {
  RegexNode root = parse_regex(pattern, true);
  if (has_anchors(root)) root = search_pattern(std::move(root));
  return ByteDfa(make_nfa(detail::in_json(std::move(root)), budget), budget).in_quotes();
}

}  // namespace nanovllm
