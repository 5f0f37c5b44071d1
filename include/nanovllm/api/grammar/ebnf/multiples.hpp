#pragma once
/// Multiples of a whole number, as decimal integers.

#include <compare>
#include <cstddef>
#include <cstdint>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/api/grammar/bytes/dfa_explorer.hpp"

namespace nanovllm {

/// The decimal integers that `step` divides, without needless zeros and without "-0": a state for
/// each remainder. step >= 1. Throws RequestError as DfaExplorer does.
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

}  // namespace nanovllm
