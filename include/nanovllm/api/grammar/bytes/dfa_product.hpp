#pragma once
/// Automata made of a step function, what two automata have in common, and the texts that may
/// follow in each state.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

/// Makes a ByteDfa of whatever has states and reads bytes.
class DfaExplorer {
 public:
  /// Kinds of bytes, numbered from 0 without gaps: bytes of one kind lead to the same state from
  /// any.
  using Kinds = std::array<std::uint8_t, 256>;

  /// Every state that `step` leads to from `start` becomes one of the automaton. `State` has an
  /// order.
  /// @param step       step(state, byte): changes the state; false where the byte cannot be read.
  /// @param accepts    accepts(state): whether the text may end there.
  /// @param budget each call of `step` takes kStepCost of it. Throws RequestError when it is used
  ///               up, when the automaton has more than ByteDfa::kMaxTransitions, or when it reads
  ///               no text to an end.
  template <class State, class Step, class Accepts>
  [[nodiscard]] static ByteDfa explore(const Kinds& kinds, const State& start, Step&& step,
                                       Accepts&& accepts, const CompileBudget& budget) {
    std::optional<ByteDfa> out = explore_if_any(kinds, start, step, accepts, budget);
    check<RequestError>(out.has_value(), ByteDfa::kNoText);
    return std::move(*out);
  }

  /// The same; nothing where no text is read to an end.
  template <class State, class Step, class Accepts>
  [[nodiscard]] static std::optional<ByteDfa> explore_if_any(const Kinds& kinds, const State& start,
                                                             Step&& step, Accepts&& accepts,
                                                             const CompileBudget& budget) {
    ByteDfa out;
    out.kind_ = kinds;
    std::vector<std::uint8_t> byte_of;  // [kind]
    for (std::size_t byte = 0; byte < kinds.size(); ++byte)
      if (kinds[byte] == byte_of.size()) byte_of.push_back(static_cast<std::uint8_t>(byte));
    out.num_kinds_ = byte_of.size();
    std::map<State, ByteDfa::StateId> numbers{{start, ByteDfa::kStart}};
    std::vector<State> states{start};
    for (std::size_t at = 0; at < states.size(); ++at) {
      check<RequestError>((at + 1) * out.num_kinds_ <= ByteDfa::kMaxTransitions,
                          "an automaton needs more than ", ByteDfa::kMaxTransitions,
                          " transitions");
      out.flags_.push_back(accepts(states[at]) ? ByteDfa::kAccepts : 0);
      for (const std::uint8_t byte : byte_of) {
        budget.spend(kStepCost);
        State next = states[at];
        if (!step(next, byte)) {
          out.transitions_.push_back(ByteDfa::kDead);
          continue;
        }
        const auto [found, is_new] =
            numbers.try_emplace(next, static_cast<ByteDfa::StateId>(states.size()));
        if (is_new) states.push_back(std::move(next));
        out.transitions_.push_back(found->second);
      }
    }
    if (!out.drop_dead_ends()) return std::nullopt;
    return out;
  }

  static constexpr std::size_t kStepCost = 4;

  /// The kinds of bytes that either of two automata tells apart.
  [[nodiscard]] static Kinds common_kinds(const ByteDfa& a, const ByteDfa& b) {
    Kinds out{};
    std::map<std::pair<std::uint8_t, std::uint8_t>, std::uint8_t> numbers;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(i);
      out[i] =
          numbers
              .try_emplace({a.kind(byte), b.kind(byte)}, static_cast<std::uint8_t>(numbers.size()))
              .first->second;
    }
    return out;
  }
};

/// [state]: the texts that lead from there to an accepting state.
struct DfaCompletions {
  static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> longest;    ///< bytes of the longest; kUnlimited if there is none
  std::vector<std::uint32_t> num_texts;  ///< how many; kUnlimited for 2^32 - 1 and more
};

/// Whether some text matches both. Throws RequestError if that takes more than the budget.
[[nodiscard]] inline bool have_common_text(const ByteDfa& a, const ByteDfa& b,
                                           const CompileBudget& budget = CompileBudget()) {
  using StateId = ByteDfa::StateId;
  std::unordered_map<std::uint64_t, bool> seen;
  std::vector<std::pair<StateId, StateId>> open{{ByteDfa::kStart, ByteDfa::kStart}};
  while (!open.empty()) {
    const auto [left, right] = open.back();
    open.pop_back();
    if (a.accepts(left) && b.accepts(right)) return true;
    budget.spend(256);
    for (int byte = 0; byte < 256; ++byte) {
      const StateId next = a.next(left, static_cast<std::uint8_t>(byte));
      const StateId other = b.next(right, static_cast<std::uint8_t>(byte));
      if (next == ByteDfa::kDead || other == ByteDfa::kDead) continue;
      const auto key = (static_cast<std::uint64_t>(next) << 32) | static_cast<std::uint32_t>(other);
      if (!seen.try_emplace(key, true).second) continue;
      open.emplace_back(next, other);
    }
  }
  return false;
}

/// The texts of `a` that `b` matches, or with `is_negative` those that it does not; nothing where
/// there are none. Throws as DfaExplorer does.
[[nodiscard]] inline std::optional<ByteDfa> filtered_texts(const ByteDfa& a, const ByteDfa& b,
                                                           bool is_negative,
                                                           const CompileBudget& budget) {
  constexpr ByteDfa::StateId kDead = ByteDfa::kDead;
  using Pair = std::pair<ByteDfa::StateId, ByteDfa::StateId>;
  return DfaExplorer::explore_if_any(
      DfaExplorer::common_kinds(a, b), Pair{ByteDfa::kStart, ByteDfa::kStart},
      [&](Pair& at, std::uint8_t byte) {
        at.first = a.next(at.first, byte);
        if (at.second != kDead) at.second = b.next(at.second, byte);
        return at.first != kDead && (is_negative || at.second != kDead);
      },
      [&](const Pair& at) {
        const bool is_matched = at.second != kDead && b.accepts(at.second);
        return a.accepts(at.first) && is_matched != is_negative;
      },
      budget);
}

/// The texts that both match. Throws RequestError where there are none, and as DfaExplorer does.
[[nodiscard]] inline ByteDfa common_texts(const ByteDfa& a, const ByteDfa& b,
                                          const CompileBudget& budget) {
  std::optional<ByteDfa> out = filtered_texts(a, b, false, budget);
  check<RequestError>(out.has_value(), "the regular expression matches no text at all");
  return std::move(*out);
}

/// Linear in the automaton's transitions.
[[nodiscard]] inline DfaCompletions completions(const ByteDfa& dfa) {
  constexpr std::uint32_t kUnlimited = DfaCompletions::kUnlimited;
  const std::size_t n = dfa.num_states();
  std::vector<std::uint8_t> byte_of(dfa.num_kinds());
  std::array<std::uint32_t, 256> num_bytes{};  // [kind]
  for (int byte = 0; byte < 256; ++byte) {
    const std::uint8_t kind = dfa.kind(static_cast<std::uint8_t>(byte));
    byte_of[kind] = static_cast<std::uint8_t>(byte);
    ++num_bytes[kind];
  }
  // Backwards from the states without successors. A state on a loop, or leading to one, stays
  // unlimited.
  std::vector<std::uint32_t> num_open(n, 0);
  std::vector<std::vector<std::uint32_t>> sources(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (const std::uint8_t byte : byte_of) {
      const ByteDfa::StateId next = dfa.next(static_cast<ByteDfa::StateId>(i), byte);
      if (next == ByteDfa::kDead) continue;
      ++num_open[i];
      sources[static_cast<std::size_t>(next)].push_back(static_cast<std::uint32_t>(i));
    }
  }
  DfaCompletions out{std::vector<std::uint32_t>(n, kUnlimited),
                     std::vector<std::uint32_t>(n, kUnlimited)};
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < n; ++i)
    if (num_open[i] == 0) todo.push_back(i);
  while (!todo.empty()) {
    const std::size_t at = todo.back();
    todo.pop_back();
    const auto state = static_cast<ByteDfa::StateId>(at);
    std::uint64_t count = dfa.accepts(state) ? 1 : 0;
    std::uint32_t longest = 0;
    for (std::size_t kind = 0; kind < byte_of.size(); ++kind) {
      const ByteDfa::StateId next = dfa.next(state, byte_of[kind]);
      if (next == ByteDfa::kDead) continue;
      const auto to = static_cast<std::size_t>(next);
      longest = std::max(longest, out.longest[to] + 1);
      count += std::uint64_t{out.num_texts[to]} * num_bytes[kind];
    }
    out.longest[at] = longest;
    out.num_texts[at] = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kUnlimited));
    for (const std::uint32_t source : sources[at])
      if (--num_open[source] == 0) todo.push_back(source);
  }
  return out;
}

}  // namespace nanovllm
