#pragma once
/// JSON strings of bounded length among those that an automaton reads.

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/bytes/byte_dfa.hpp"

namespace nanovllm {

/// The JSON strings of `strings` that have min to max characters, as GrammarTerminal::json_string
/// counts them; no upper bound where max < 0. A state of `strings` becomes one state for each
/// number of characters that has to be distinguished. Throws RequestError if there are no such
/// strings, and as DfaExplorer does.
[[nodiscard]] ByteDfa strings_of_length(const ByteDfa& strings, std::int32_t min, std::int32_t max,
                                        const CompileBudget& budget);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <compare>

#include "nanovllm/grammar/bytes/dfa_completions.hpp"
#include "nanovllm/grammar/bytes/dfa_explorer.hpp"
#include "nanovllm/grammar/ebnf/grammar_terminal.hpp"

namespace nanovllm {

NANOVLLM_INLINE ByteDfa strings_of_length(const ByteDfa& strings, std::int32_t min,
                                          std::int32_t max, const CompileBudget& budget) {
  constexpr std::int32_t kAnyLength = -1;  // the length will be within the bounds
  struct State {
    ByteDfa::StateId text;
    GrammarTerminal::State string;

    auto operator<=>(const State&) const = default;
  };
  const GrammarTerminal json = GrammarTerminal::json_string();
  const GrammarTerminal bounded = GrammarTerminal::json_string(min, max);
  const DfaCompletions follows = completions(strings);
  const auto is_free = [&](const State& at) {
    if (at.string.length < min) return false;
    if (max < 0) return true;
    // A character has at least one byte, and the closing quote is one byte more.
    const std::uint32_t longest = follows.longest[static_cast<std::size_t>(at.text)];
    return longest != DfaCompletions::kUnlimited &&
           std::int64_t{longest} - 1 <= std::int64_t{max} - at.string.length;
  };
  return DfaExplorer::explore(
      DfaExplorer::common_kinds(strings, json.dfa()), State{ByteDfa::kStart, {}},
      [&](State& at, std::uint8_t byte) {
        at.text = strings.next(at.text, byte);
        if (at.text == ByteDfa::kDead) return false;
        if (at.string.length == kAnyLength) {
          at.string.dfa = json.dfa().next(at.string.dfa, byte);
          return at.string.dfa != ByteDfa::kDead;
        }
        if (!bounded.step(at.string, byte)) return false;
        if (bounded.is_between(at.string) && is_free(at)) at.string.length = kAnyLength;
        return true;
      },
      [&](const State& at) { return strings.accepts(at.text) && bounded.accepts(at.string); },
      budget);
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
