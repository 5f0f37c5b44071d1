#pragma once
/// The regular parts of a grammar: what one automaton reads, from its first byte to its last, and
/// what such automata are made of.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/compile_budget.hpp"
#include "nanovllm/api/grammar/bytes/dfa_product.hpp"
#include "nanovllm/api/grammar/ebnf/ebnf_parser.hpp"
#include "nanovllm/api/grammar/ebnf/json_strings.hpp"
#include "nanovllm/api/grammar/regex/regex_nfa.hpp"
#include "nanovllm/api/grammar/regex/regex_parser.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/utf8.hpp"

namespace nanovllm {

/// A ByteDfa, and for JSON strings the number of their characters: a counter, so that bounds
/// multiply no states. Every state that can be reached can be completed to an end. Immutable.
class GrammarTerminal {
 public:
  struct State {
    ByteDfa::StateId dfa = ByteDfa::kStart;
    std::int32_t length = 0;  ///< characters of a string so far, where they are counted

    auto operator<=>(const State&) const = default;
  };
  static constexpr std::int32_t kUnlimited = -1;

  /// What `dfa` reads.
  /// @param depth bytes of the longest token that is to be told whether it can be read.
  GrammarTerminal(ByteDfa dfa, std::size_t depth, const CompileBudget& budget = CompileBudget());

  /// A JSON string of min to max characters (StringLengths), 0 <= min <= max.
  [[nodiscard]] static GrammarTerminal json_string(std::int32_t min = 0,
                                                   std::int32_t max = kUnlimited);

  /// Those of the JSON strings that `dfa` reads that have min to max characters. Throws
  /// RequestError where there are none.
  [[nodiscard]] static GrammarTerminal json_string(ByteDfa dfa, std::int32_t min, std::int32_t max,
                                                   std::size_t depth, const CompileBudget& budget);

  /// A JSON string in which only quotes, backslashes and \b \f \n \r \t are escaped: one text for
  /// each value.
  [[nodiscard]] static GrammarTerminal json_key();

  /// Text up to the first `end`, and that.
  [[nodiscard]] static GrammarTerminal text_until(std::string_view end);

  /// Reads a byte. False where it cannot be read; `state` is unspecified then.
  [[nodiscard]] bool step(State& state, std::uint8_t byte) const {
    if (ends_at_first_ && accepts(state)) return false;
    const ByteDfa::StateId from = state.dfa;
    state.dfa = dfa_->next(from, byte);
    if (state.dfa == ByteDfa::kDead) return false;
    return !lengths_ || count(state, from);
  }

  [[nodiscard]] bool accepts(State state) const { return dfa_->accepts(state.dfa); }

  [[nodiscard]] bool goes_on(State state) const {
    return dfa_->goes_on(state.dfa) && !(ends_at_first_ && accepts(state));
  }

  /// Whether so many bytes may follow somewhere, as within a string, that a walk over the
  /// vocabulary takes long; and where it ends, it ends: TerminalMasks are for such.
  [[nodiscard]] bool is_wide() const { return is_wide_; }
  [[nodiscard]] static bool is_wide(const ByteDfa& dfa);
  /// Whether it is any JSON string within bounds.
  [[nodiscard]] bool is_json_string() const { return is_any_string_; }
  [[nodiscard]] bool counts() const { return lengths_ != nullptr; }

  /// A negative number for terminals that all grammars share (any string, any key); otherwise 0.
  [[nodiscard]] int shared_id() const { return is_any_string_ ? -1 : is_key_ ? -2 : 0; }

  /// Whether it is any JSON string that `state` is in, between two characters.
  [[nodiscard]] bool is_between(State state) const {
    return is_any_string_ && lengths_->is_between(state.dfa);
  }

  /// Characters that are still needed, and that there is room for, where they are counted.
  [[nodiscard]] std::int32_t needed(State state) const {
    return std::max(min_ - state.length, std::int32_t{0});
  }
  [[nodiscard]] std::int32_t room(State state) const {
    return max_ == kUnlimited ? kAny : max_ - state.length;
  }

  /// States of one key can read the same, as far as texts of `depth` bytes are concerned; not above
  /// the constructor's.
  using Key = std::tuple<ByteDfa::StateId, std::int32_t, std::int32_t>;
  [[nodiscard]] Key key(State state, std::size_t depth) const;

  [[nodiscard]] const ByteDfa& dfa() const { return *dfa_; }

  /// Bytes of memory; what strings share is left out.
  [[nodiscard]] std::size_t size_bytes() const {
    return sizeof(*this) + alike_.size() * sizeof(ByteDfa::StateId) +
           (is_any_string_ ? 0 : dfa_->size_bytes() + (lengths_ ? lengths_->size_bytes() : 0));
  }

 private:
  static constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();

  explicit GrammarTerminal(std::shared_ptr<const ByteDfa> dfa) : dfa_(std::move(dfa)) {}

  [[nodiscard]] bool count(State& state, ByteDfa::StateId from) const {
    const bool is_counted = max_ != kUnlimited || state.length < min_;
    if (is_counted && from != ByteDfa::kStart && lengths_->is_between(state.dfa)) ++state.length;
    return can_end(state);
  }

  [[nodiscard]] bool can_end(State state) const {
    const std::int32_t rest = lengths_->shortest(state.dfa, needed(state));
    return rest != StringLengths::kNone && rest <= room(state);
  }

  std::shared_ptr<const ByteDfa> dfa_;
  std::shared_ptr<const StringLengths> lengths_;
  std::vector<ByteDfa::StateId> alike_;  // [state], or empty where all states are told apart
  bool ends_at_first_ = false, is_wide_ = false, is_any_string_ = false, is_key_ = false;
  std::int32_t min_ = 0, max_ = kUnlimited;
};

inline bool GrammarTerminal::is_wide(const ByteDfa& dfa) {
  constexpr int kMany = 16;
  bool reads_many = false;
  for (std::size_t i = 0; i < dfa.num_states(); ++i) {
    const auto state = static_cast<ByteDfa::StateId>(i);
    if (dfa.accepts(state) && dfa.goes_on(state)) return false;
    for (int byte = 0, count = 0; byte < 256 && !reads_many; ++byte) {
      count += dfa.next(state, static_cast<std::uint8_t>(byte)) != ByteDfa::kDead;
      reads_many = count >= kMany;
    }
  }
  return reads_many;
}

inline GrammarTerminal::GrammarTerminal(ByteDfa dfa, std::size_t depth, const CompileBudget& budget)
    : dfa_(std::make_shared<const ByteDfa>(std::move(dfa))), is_wide_(is_wide(*dfa_)) {
  constexpr std::size_t kFew = 32;  // each may have its own mask
  if (is_wide_ && dfa_->num_states() > kFew) alike_ = dfa_->alike_to_depth(depth, budget);
}

inline GrammarTerminal GrammarTerminal::json_string(std::int32_t min, std::int32_t max) {
  static const auto lengths = std::make_shared<const StringLengths>(
      *StringLengths::make(json_string_dfa(), 2, CompileBudget()));
  GrammarTerminal out(std::shared_ptr<const ByteDfa>(lengths, &json_string_dfa()));
  out.lengths_ = lengths;
  out.is_wide_ = out.is_any_string_ = true;
  out.min_ = min;
  out.max_ = max;
  return out;
}

inline GrammarTerminal GrammarTerminal::json_string(ByteDfa dfa, std::int32_t min, std::int32_t max,
                                                    std::size_t depth,
                                                    const CompileBudget& budget) {
  std::optional<StringLengths> lengths = StringLengths::make(dfa, min, budget);
  if (!lengths) {
    dfa = common_texts(dfa, json_string_dfa(), budget);
    lengths = StringLengths::make(dfa, min, budget);
    check<RequestError>(lengths.has_value(), "the length of such strings cannot be counted");
  }
  GrammarTerminal out(std::move(dfa), depth, budget);
  out.lengths_ = std::make_shared<const StringLengths>(std::move(*lengths));
  out.min_ = min;
  out.max_ = max;
  check<RequestError>(out.can_end({}), "it matches no text of ", min, " to ",
                      max == kUnlimited ? "any number of" : std::to_string(max), " characters");
  return out;
}

inline GrammarTerminal GrammarTerminal::json_key() {
  static const auto dfa = std::make_shared<const ByteDfa>(
      compile_regex("\"([^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\bfnrt])*\""));
  GrammarTerminal out(dfa);
  out.is_wide_ = out.is_key_ = true;
  return out;
}

inline GrammarTerminal GrammarTerminal::text_until(std::string_view end) {
  GrammarTerminal out(
      std::make_shared<const ByteDfa>(compile_regex("(.|\\n)*" + escape_regex(end))));
  out.is_wide_ = out.ends_at_first_ = true;
  return out;
}

inline GrammarTerminal::Key GrammarTerminal::key(State state, std::size_t depth) const {
  const ByteDfa::StateId alike =
      alike_.empty() ? state.dfa : alike_[static_cast<std::size_t>(state.dfa)];
  if (!lengths_) return {alike, 0, 0};
  const auto most = static_cast<std::int32_t>(depth) + 1;  // no token has as many characters
  const std::int32_t more = needed(state);
  // Where the bounds are far enough they make no difference.
  const bool is_far = room(state) >= most + lengths_->longest_way();
  if (more == 0 && is_far) return {alike, kAny, 0};
  if (more >= most + lengths_->linear_from())
    return {state.dfa, max_ == kUnlimited ? kAny : max_ - min_, kAny};
  return {state.dfa, room(state), more};
}

/// The decimal integers that `step` divides, without needless zeros and without "-0". step >= 1.
/// Throws RequestError as DfaExplorer does.
/// A state for each remainder.
[[nodiscard]] inline ByteDfa multiples_of(std::int32_t step, const CompileBudget& budget) {
  struct State {
    enum Phase : std::uint8_t { begin, sign, zero, digits } phase = begin;
    std::int32_t rest = 0;

    auto operator<=>(const State&) const = default;
  };
  DfaExplorer::Kinds kinds{};
  kinds['-'] = 1;
  for (int digit = 0; digit < 10; ++digit)
    kinds[static_cast<std::size_t>('0' + digit)] = static_cast<std::uint8_t>(2 + digit);
  return DfaExplorer::explore(
      kinds, State{},
      [step](State& at, std::uint8_t byte) {
        if (byte == '-') {
          const bool is_first = at.phase == State::begin;
          at.phase = State::sign;
          return is_first;
        }
        if (byte < '0' || byte > '9' || at.phase == State::zero) return false;
        if (at.phase != State::digits && byte == '0') {
          if (at.phase == State::sign) return false;
          at.phase = State::zero;
          return true;
        }
        at.phase = State::digits;
        at.rest = static_cast<std::int32_t>((std::int64_t{10} * at.rest + (byte - '0')) % step);
        return true;
      },
      [](const State& at) {
        return at.phase == State::zero || (at.phase == State::digits && at.rest == 0);
      },
      budget);
}

/// A part of `grammar` with the rules that it names, at most `depth_left` within each other. Throws
/// RequestError for deeper ones, for parts that are not regular, and beyond the budget.
[[nodiscard]] inline RegexNode regular_part(const EbnfGrammar& grammar, const EbnfNode& node,
                                            std::size_t depth_left, const CompileBudget& budget) {
  using Regex = RegexNode::Kind;
  constexpr std::size_t kNodeCost = 10;  // of the budget's steps
  budget.spend(kNodeCost + node.text.size());
  RegexNode out;
  switch (node.kind) {
    case EbnfNode::Kind::literal:
      for (std::size_t i = 0; i < node.text.size();) {
        const utf8::Char c = utf8::decode(node.text, i);
        i += c.size;
        out.parts.push_back({.kind = Regex::characters, .characters = CodePointSet(c.code_point)});
      }
      return out;
    case EbnfNode::Kind::characters:
      return {.kind = Regex::characters, .characters = node.characters};
    case EbnfNode::Kind::reference:
      check<RequestError>(depth_left > 0, "a regular part of the grammar leads back to itself");
      return regular_part(grammar, grammar.rules[static_cast<std::size_t>(node.rule)],
                          depth_left - 1, budget);
    case EbnfNode::Kind::terminal:
      check<RequestError>(node.parts.size() == 1, "a part of an automaton is to have no '&'");
      return regular_part(grammar, node.parts.front(), depth_left, budget);
    case EbnfNode::Kind::string:
    case EbnfNode::Kind::until:
    case EbnfNode::Kind::key:
    case EbnfNode::Kind::multiple:
    case EbnfNode::Kind::pattern:
    case EbnfNode::Kind::unused:
      throw RequestError("a regular part of the grammar is to have no part such as $string");
    case EbnfNode::Kind::sequence: break;
    case EbnfNode::Kind::choice: out.kind = Regex::choice; break;
    case EbnfNode::Kind::repeat:
      out.kind = Regex::repeat;
      out.min = node.min;
      out.max = node.max;
      break;
  }
  for (const EbnfNode& part : node.parts)
    out.parts.push_back(regular_part(grammar, part, depth_left, budget));
  return out;
}

}  // namespace nanovllm
