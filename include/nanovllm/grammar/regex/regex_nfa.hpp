#pragma once
/// Regular expressions as automata over the bytes of UTF-8.

#include <cstddef>
#include <string_view>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/grammar/bytes/byte_nfa.hpp"
#include "nanovllm/grammar/regex/regex_parser.hpp"

namespace nanovllm {

/// States that a pattern may need; x{1000} needs those of x a thousand times.
inline constexpr std::size_t kMaxRegexStates = 500'000;

/// The automaton of a pattern. Throws RequestError when it needs more than kMaxRegexStates.
[[nodiscard]] ByteNfa make_nfa(const RegexNode& pattern,
                               const CompileBudget& budget = CompileBudget());

/// The automaton of a regular expression, which is to match the whole text. Throws RequestError.
[[nodiscard]] inline ByteDfa compile_regex(std::string_view pattern,
                                           const CompileBudget& budget = CompileBudget()) {
  return ByteDfa(make_nfa(parse_regex(pattern), budget), budget);
}

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

namespace detail {

/// Builds from the end: what a part leads to is there before the part.
class NfaBuilder {
 public:
  explicit NfaBuilder(CompileBudget budget) : budget_(std::move(budget)) {}

  [[nodiscard]] ByteNfa run(const RegexNode& pattern) {
    const StateId accept = add({.kind = Kind::accept});
    nfa_.start = part(pattern, accept);
    return std::move(nfa_);
  }

 private:
  using StateId = ByteNfa::StateId;
  using Kind = ByteNfa::State::Kind;

  /// The state from which `node` and then `next` is read.
  StateId part(const RegexNode& node, StateId next) {
    count();  // x{1000}{1000} takes its time even where x is empty
    switch (node.kind) {
      case RegexNode::Kind::characters: return characters(node.characters, next);
      case RegexNode::Kind::sequence:
        for (auto p = node.parts.rbegin(); p != node.parts.rend(); ++p) next = part(*p, next);
        return next;
      case RegexNode::Kind::choice: {
        StateId all = part(node.parts.back(), next);
        for (auto p = node.parts.rbegin() + 1; p != node.parts.rend(); ++p)
          all = split(part(*p, next), all);
        return all;
      }
      case RegexNode::Kind::repeat: return repeat(node, next);
      case RegexNode::Kind::text_begin: return add({.kind = Kind::text_begin, .next = next});
      case RegexNode::Kind::text_end: return add({.kind = Kind::text_end, .next = next});
    }
    return next;
  }

  StateId repeat(const RegexNode& node, StateId next) {
    const RegexNode& body = node.parts.front();
    StateId entry = next;
    if (node.max == RegexNode::kUnlimited) {
      entry = split(-1, next);
      const StateId again = part(body, entry);
      nfa_.states[static_cast<std::size_t>(entry)].next = again;
    }
    for (int i = node.min; i < node.max; ++i) entry = split(part(body, entry), next);
    for (int i = 0; i < node.min; ++i) entry = part(body, entry);
    return entry;
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
    return all >= 0 ? all : add({.kind = Kind::reject});
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
  std::map<std::tuple<std::uint8_t, std::uint8_t, StateId>, StateId> shared_;
  std::size_t work_ = 0;
};

}  // namespace detail

NANOVLLM_INLINE ByteNfa make_nfa(const RegexNode& pattern, const CompileBudget& budget) {
  return detail::NfaBuilder(budget).run(pattern);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
