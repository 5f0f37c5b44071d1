#pragma once
/// Automata made of a step function.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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

}  // namespace nanovllm
