#pragma once
/// Regular expressions as automata over the bytes of UTF-8.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

/// States that a pattern may need; x{1000} needs those of x a thousand times.
inline constexpr std::size_t kMaxRegexStates = 500'000;

namespace detail {

/// Whether every match passes an anchor of this kind. Nothing is then read beyond it.
inline bool always_passes(const RegexNode& pattern, RegexNode::Kind anchor) {
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

/// Whether a pattern has ^ or $ anywhere.
[[nodiscard]] inline bool has_anchors(const RegexNode& pattern) {
  using Kind = RegexNode::Kind;
  return pattern.kind == Kind::text_begin || pattern.kind == Kind::text_end ||
         std::any_of(pattern.parts.begin(), pattern.parts.end(), has_anchors);
}

/// A pattern that as a whole matches the texts in which `pattern` occurs. A JSON Schema's `pattern`
/// is searched for so, by ECMA 262: what is not anchored may have any text before or after it.
[[nodiscard]] inline RegexNode search_pattern(RegexNode pattern) {
  using Kind = RegexNode::Kind;
  const bool begins = detail::always_passes(pattern, Kind::text_begin);
  const bool ends = detail::always_passes(pattern, Kind::text_end);
  RegexNode out{.kind = Kind::sequence};
  if (!begins) out.parts.push_back(RegexNode::any_text());
  out.parts.push_back(std::move(pattern));
  if (!ends) out.parts.push_back(RegexNode::any_text());
  return out;
}

namespace detail {

/// Builds from the end: what a part leads to is there before the part. What cannot lead to the end
/// is left out.
class NfaBuilder {
 public:
  explicit NfaBuilder(CompileBudget budget) : budget_(std::move(budget)) {}

  [[nodiscard]] ByteNfa run(const RegexNode& pattern, bool at_begin = true) {
    looks_ahead_ = looks_ahead(pattern);
    add({.kind = Kind::accept});
    add({.kind = Kind::reject});
    nfa_.start = part(pattern, kAccept, at_begin);
    return std::move(nfa_);
  }

 private:
  using StateId = ByteNfa::StateId;
  using Kind = ByteNfa::State::Kind;

  static constexpr StateId kAccept = 0, kReject = 1;

  /// The state from which `node` and then `next` is read. `at_begin`: this is at the begin of the
  /// text for sure.
  StateId part(const RegexNode& node, StateId next, bool at_begin) {
    count();  // x{1000}{1000} takes its time even where x is empty
    if (next == kReject) return kReject;
    switch (node.kind) {
      case RegexNode::Kind::characters: return characters(node.characters, next);
      case RegexNode::Kind::sequence: {
        std::vector<bool> begins(node.parts.size(), false);  // [part]
        for (std::size_t i = 0; looks_ahead_ && i < begins.size(); ++i) {
          begins[i] = at_begin;
          at_begin = is_behind_begin(node.parts[i], at_begin);
        }
        for (std::size_t i = begins.size(); i-- > 0;) next = part(node.parts[i], next, begins[i]);
        return next;
      }
      case RegexNode::Kind::choice: {
        StateId all = part(node.parts.back(), next, at_begin);
        for (auto p = node.parts.rbegin() + 1; p != node.parts.rend(); ++p)
          all = split(part(*p, next, at_begin), all);
        return all;
      }
      case RegexNode::Kind::repeat: return repeat(node, next, at_begin);
      case RegexNode::Kind::look_ahead: return look_ahead(node, next, at_begin);
      case RegexNode::Kind::text_begin: return add({.kind = Kind::text_begin, .next = next});
      case RegexNode::Kind::text_end:
        return may_end(next) ? add({.kind = Kind::text_end, .next = next}) : kReject;
    }
    return next;
  }

  StateId repeat(const RegexNode& node, StateId next, bool at_begin) {
    const RegexNode& body = node.parts.front();
    StateId entry = next;
    if (node.max == RegexNode::kUnlimited) {
      entry = split(-1, next);
      const StateId again = part(body, entry, false);
      nfa_.states[static_cast<std::size_t>(entry)].next = again == kReject ? next : again;
    }
    for (int i = node.max; i-- > node.min;)
      entry = split(part(body, entry, at_begin && i == 0), next);
    for (int i = node.min; i-- > 0;) entry = part(body, entry, at_begin && i == 0);
    return entry;
  }

  /// What follows is read by an automaton of the texts that `next` reads and the look-ahead allows.
  StateId look_ahead(const RegexNode& node, StateId next, bool at_begin) {
    budget_.spend(nfa_.states.size());
    ByteNfa rest = nfa_;
    rest.start = next;
    const ByteNfa wanted = NfaBuilder(budget_).run(node.parts.front(), at_begin);
    check<RequestError>(at_begin || (!reaches_begin(rest) && !reaches_begin(wanted)),
                        "a look-ahead that is not at the begin of the text is to have no ^ in it "
                        "or after it");
    std::optional<ByteDfa> all = ByteDfa::make_if_any(rest, budget_);
    const std::optional<ByteDfa> these = ByteDfa::make_if_any(wanted, budget_);
    if (all && these) {
      all = filtered_texts(*all, *these, node.is_negative, budget_);
    } else if (!node.is_negative) {
      all.reset();
    }
    return all ? embed(*all) : kReject;
  }

  /// States that read what `dfa` does.
  StateId embed(const ByteDfa& dfa) {
    const auto first = static_cast<StateId>(nfa_.states.size());
    for (std::size_t i = 0; i < dfa.num_states(); ++i) add({.kind = Kind::split});
    for (std::size_t i = 0; i < dfa.num_states(); ++i) {
      const auto state = static_cast<ByteDfa::StateId>(i);
      StateId all = dfa.accepts(state) ? kAccept : -1;
      for (int low = 0, high = 0; low < 256; low = high + 1) {
        const ByteDfa::StateId to = dfa.next(state, static_cast<std::uint8_t>(low));
        for (high = low; high < 255; ++high)
          if (dfa.next(state, static_cast<std::uint8_t>(high + 1)) != to) break;
        if (to == ByteDfa::kDead) continue;
        either(all, add({.kind = Kind::bytes,
                         .low = static_cast<std::uint8_t>(low),
                         .high = static_cast<std::uint8_t>(high),
                         .next = first + to}));
      }
      ByteNfa::State& entry = nfa_.states[static_cast<std::size_t>(first + state)];
      entry.next = entry.other = all;
    }
    return first;
  }

  /// Whether the text may end at `state`, if it ends there.
  [[nodiscard]] bool may_end(StateId state) const {
    return state == kAccept || reaches(nfa_, state, Kind::accept, false);
  }

  /// Whether ^ may be met.
  [[nodiscard]] bool reaches_begin(const ByteNfa& nfa) const {
    return reaches(nfa, nfa.start, Kind::text_begin, true);
  }

  /// Whether a state of a kind is met from another, by bytes as well or by nothing.
  [[nodiscard]] bool reaches(const ByteNfa& nfa, StateId from, Kind kind, bool by_bytes) const {
    std::unordered_set<StateId> seen;
    std::vector<StateId> todo{from};
    while (!todo.empty()) {
      const StateId at = todo.back();
      todo.pop_back();
      if (at < 0 || !seen.insert(at).second) continue;
      budget_.spend(kPartCost);
      const ByteNfa::State& state = nfa.states[static_cast<std::size_t>(at)];
      if (state.kind == kind) return true;
      if (state.kind == Kind::bytes && !by_bytes) continue;
      todo.push_back(state.next);
      todo.push_back(state.other);
    }
    return false;
  }

  [[nodiscard]] static bool looks_ahead(const RegexNode& node) {
    return node.kind == RegexNode::Kind::look_ahead ||
           std::any_of(node.parts.begin(), node.parts.end(), looks_ahead);
  }

  /// Whether what comes after `node` is at the begin of the text for sure.
  [[nodiscard]] static bool is_behind_begin(const RegexNode& node, bool at_begin) {
    switch (node.kind) {
      case RegexNode::Kind::text_begin: return true;
      case RegexNode::Kind::text_end:
      case RegexNode::Kind::look_ahead: return at_begin;
      case RegexNode::Kind::sequence:
        for (const RegexNode& part : node.parts) at_begin = is_behind_begin(part, at_begin);
        return at_begin;
      case RegexNode::Kind::choice:
        return std::all_of(node.parts.begin(), node.parts.end(),
                           [&](const RegexNode& part) { return is_behind_begin(part, at_begin); });
      default: return false;
    }
  }

  /// One code point of the set. Ranges of code points become sequences of ranges of bytes; those
  /// that end alike share their end.
  StateId characters(const CodePointSet& set, StateId next) {
    shared_.clear();
    StateId all = -1;
    for (const CodePointSet::Range& range : set.ranges()) {
      // Code points of one length: up to 1, 2, 3 and 4 bytes of UTF-8.
      char32_t first = range.first;
      for (const char32_t last_of_length : {0x7F, 0x7FF, 0xFFFF, 0x10FFFF}) {
        if (first > range.last || first > last_of_length) continue;
        const char32_t last = std::min(range.last, last_of_length);
        std::string low, high;
        utf8::append(low, first);
        utf8::append(high, last);
        either(all, byte_strings(low, high, 0, next));
        first = last + 1;
      }
    }
    return all >= 0 ? all : kReject;
  }

  /// Reads what lies between two sequences of UTF-8 of one length, from byte `i` on.
  StateId byte_strings(std::string_view low, std::string_view high, std::size_t i, StateId next) {
    const auto first = static_cast<std::uint8_t>(low[i]), last = static_cast<std::uint8_t>(high[i]);
    if (i + 1 == low.size()) return bytes(first, last, next);
    const std::string least =
        std::string(low.substr(0, i + 1)) + std::string(low.size() - i - 1, '\x80');
    const std::string most =
        std::string(low.substr(0, i + 1)) + std::string(low.size() - i - 1, '\xBF');
    if (first == last) return bytes(first, last, byte_strings(low, high, i + 1, next));
    // The first byte whose continuations are not all in, those where all are, the last byte.
    StateId all = -1;
    const bool whole_first = low.substr(i + 1) == std::string_view(least).substr(i + 1);
    const bool whole_last = high.substr(i + 1) == std::string_view(most).substr(i + 1);
    if (!whole_first) either(all, bytes(first, first, byte_strings(low, most, i + 1, next)));
    const int begin = first + (whole_first ? 0 : 1), end = last - (whole_last ? 0 : 1);
    if (begin <= end) {
      either(all, bytes(static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end),
                        byte_strings(least, most, i + 1, next)));
    }
    if (!whole_last) either(all, bytes(last, last, byte_strings(least, high, i + 1, next)));
    return all;
  }

  /// The state that reads one byte; of one set of characters there is one for each range and next.
  StateId bytes(std::uint8_t low, std::uint8_t high, StateId next) {
    StateId& state = shared_.try_emplace({low, high, next}, -1).first->second;
    if (state < 0) state = add({.kind = Kind::bytes, .low = low, .high = high, .next = next});
    return state;
  }

  /// `all` becomes what leads to it and to `state`.
  void either(StateId& all, StateId state) { all = all < 0 ? state : split(state, all); }

  StateId split(StateId next, StateId other) {
    if (next == kReject) return other;
    if (other == kReject) return next;
    return add({.kind = Kind::split, .next = next, .other = other});
  }

  StateId add(const ByteNfa::State& state) {
    count();
    nfa_.states.push_back(state);
    return static_cast<StateId>(nfa_.states.size() - 1);
  }

  void count() {
    budget_.spend(kPartCost);
    check<RequestError>(++work_ <= 2 * kMaxRegexStates, "the regular expression needs more than ",
                        kMaxRegexStates, " states before it is made deterministic");
  }

  static constexpr std::size_t kPartCost = 8;  // of the budget's steps

  CompileBudget budget_;
  ByteNfa nfa_;
  bool looks_ahead_ = false;  // somewhere in the pattern
  std::map<std::tuple<std::uint8_t, std::uint8_t, StateId>, StateId> shared_;
  std::size_t work_ = 0;
};

}  // namespace detail

/// The automaton of a pattern. Throws RequestError when it needs more than kMaxRegexStates.
[[nodiscard]] inline ByteNfa make_nfa(const RegexNode& pattern,
                                      const CompileBudget& budget = CompileBudget()) {
  return detail::NfaBuilder(budget).run(pattern);
}

/// The automaton of a regular expression, which is to match the whole text. Throws RequestError.
[[nodiscard]] inline ByteDfa compile_regex(std::string_view pattern,
                                           const CompileBudget& budget = CompileBudget()) {
  return ByteDfa(make_nfa(parse_regex(pattern), budget), budget);
}

}  // namespace nanovllm
