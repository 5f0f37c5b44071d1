#pragma once
/// The texts that may follow in each state of an automaton.

#include <cstdint>
#include <limits>
#include <vector>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// [state]: the texts that lead from there to an accepting state.
struct DfaCompletions {
  static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> longest;    ///< bytes of the longest; kUnlimited if there is none
  std::vector<std::uint32_t> num_texts;  ///< how many; kUnlimited for 2^32 - 1 and more
};

/// Linear in the automaton's transitions.
[[nodiscard]] DfaCompletions completions(const ByteDfa& dfa);

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <algorithm>
#include <array>
#include <cstddef>

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE DfaCompletions completions(const ByteDfa& dfa) {
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

#endif  // NANOVLLM_GRAMMAR_BODIES
