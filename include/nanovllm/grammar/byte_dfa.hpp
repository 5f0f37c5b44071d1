#pragma once
/// Deterministic automata over bytes: what says in constant time whether a byte may come next.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/byte_nfa.hpp"

namespace nanovllm {

/// An automaton in which every state can still be completed to a match: a byte that leads to a
/// state has a text behind it that matches, and one that does not leads to kDead. Immutable.
class ByteDfa {
 public:
  using StateId = std::int32_t;
  static constexpr StateId kDead = -1;
  static constexpr StateId kStart = 0;

  /// What a pattern may need at the most. States times kinds of bytes (those that the pattern tells
  /// apart) make the table; four bytes each.
  static constexpr std::size_t kMaxTransitions = std::size_t{1} << 23;
  /// Steps that making it deterministic may take: about a second.
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 26;

  /// Makes `nfa` deterministic. Throws RequestError when that needs more than kMaxTransitions or an
  /// undue amount of work, or when no text matches. A pattern of n characters may need 2^n states:
  /// (a|b)*a(a|b){n}.
  explicit ByteDfa(const ByteNfa& nfa) {
    std::size_t steps_left = kMaxSteps;
    make(nfa, steps_left);
  }
  /// The same within `steps_left` steps, which it takes its own from.
  ByteDfa(const ByteNfa& nfa, std::size_t& steps_left) { make(nfa, steps_left); }

  [[nodiscard]] StateId next(StateId state, std::uint8_t byte) const {
    return transitions_[static_cast<std::size_t>(state) * num_kinds_ + kind_[byte]];
  }

  /// Where `bytes` lead from `state`, which may be kDead.
  [[nodiscard]] StateId next(StateId state, std::string_view bytes) const {
    for (std::size_t i = 0; i < bytes.size() && state != kDead; ++i)
      state = next(state, static_cast<std::uint8_t>(bytes[i]));
    return state;
  }

  /// Whether the text may end here.
  [[nodiscard]] bool accepts(StateId state) const {
    return (flags_[static_cast<std::size_t>(state)] & kAccepts) != 0;
  }

  /// Whether any byte may follow.
  [[nodiscard]] bool goes_on(StateId state) const {
    return (flags_[static_cast<std::size_t>(state)] & kGoesOn) != 0;
  }

  [[nodiscard]] std::size_t num_states() const { return flags_.size(); }

  /// A number for each state. States of one number can read the same texts of up to `depth` bytes,
  /// so what reads no more than that need not tell them apart: of x{1,500} most states are alike.
  /// They may be told apart all the same, where finding out would take long.
  [[nodiscard]] std::vector<StateId> alike_to_depth(std::size_t depth) const;

  /// Bytes of memory.
  [[nodiscard]] std::size_t size_bytes() const {
    return transitions_.size() * sizeof(StateId) + flags_.size() + sizeof(*this);
  }

 private:
  static constexpr std::uint8_t kAccepts = 1, kGoesOn = 2;

  void make(const ByteNfa& nfa, std::size_t& steps_left);
  void drop_dead_ends();

  std::array<std::uint8_t, 256> kind_{};  // bytes of one kind lead to the same state from any
  std::size_t num_kinds_ = 0;
  std::vector<StateId> transitions_;  // [state][kind]
  std::vector<std::uint8_t> flags_;   // [state]
};

/// Whether some text matches both. Throws RequestError where finding out takes an undue amount of
/// work.
[[nodiscard]] bool have_common_text(const ByteDfa& a, const ByteDfa& b);

/// The same out of a budget of pairs of states that several questions share.
[[nodiscard]] bool have_common_text(const ByteDfa& a, const ByteDfa& b, std::size_t& pairs_left);

/// The automaton of a regular expression, which is to match the whole text. Throws RequestError.
[[nodiscard]] inline ByteDfa compile_regex(std::string_view pattern) {
  return ByteDfa(make_nfa(parse_regex(pattern)));
}

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/byte_dfa.inc"
#endif
