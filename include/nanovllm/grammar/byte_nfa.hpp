#pragma once
/// Regular expressions as nondeterministic automata over the bytes of UTF-8.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/grammar/regex_parser.hpp"

namespace nanovllm {

/// States and how they lead on. A text matches if its bytes lead from `start` to an `accept` state.
struct ByteNfa {
  using StateId = std::int32_t;

  struct State {
    enum class Kind : std::uint8_t {
      bytes,       ///< to `next` by one byte in low…high
      split,       ///< to `next` and to `other`, by nothing
      text_begin,  ///< to `next` by nothing, before the first byte of the text
      text_end,    ///< to `next` by nothing, behind the last byte of the text
      accept,      ///< the text may end here
      reject,      ///< leads nowhere
    };

    Kind kind;
    std::uint8_t low = 0, high = 0;
    StateId next = -1, other = -1;
  };

  std::vector<State> states;
  StateId start = 0;
};

/// States that a pattern may need; x{1000} needs those of x a thousand times.
inline constexpr std::size_t kMaxRegexStates = 500'000;

/// The automaton of a pattern. Throws RequestError when it needs more than kMaxRegexStates.
[[nodiscard]] ByteNfa make_nfa(const RegexNode& pattern);

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/grammar/byte_nfa.inc"
#endif
