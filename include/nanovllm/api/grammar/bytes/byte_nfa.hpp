#pragma once
/// Nondeterministic automata over the bytes of UTF-8. regex/regex_nfa.hpp makes them.

#include <cstdint>
#include <vector>

namespace nanovllm {

/// States and how they lead on. A text matches if its bytes lead from `start` to an `accept` state.
struct ByteNfa {
  using StateId = std::int32_t;

  struct State {
    enum class Kind : std::uint8_t {
      bytes,       ///< to `next` by one byte in low…high
      split,       ///< to `next` and to `other`, by nothing
      text_begin,  ///< to `next` by nothing, before the first byte of the text
      text_end,    ///< to `next` by nothing, after the last byte of the text
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

}  // namespace nanovllm
