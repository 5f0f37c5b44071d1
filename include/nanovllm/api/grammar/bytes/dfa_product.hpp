#pragma once
/// What two automata have in common.

#include <optional>

#include "nanovllm/api/grammar/bytes/byte_dfa.hpp"
#include "nanovllm/core/separate.hpp"

namespace nanovllm {

/// Whether some text matches both. Throws RequestError if that takes more than the budget.
[[nodiscard]] bool have_common_text(const ByteDfa& a, const ByteDfa& b,
                                    const CompileBudget& budget = CompileBudget());

/// The texts that both match. Throws RequestError where there are none, and as DfaExplorer does.
[[nodiscard]] ByteDfa common_texts(const ByteDfa& a, const ByteDfa& b, const CompileBudget& budget);

/// The texts of `a` that `b` matches, or with `is_negative` those that it does not; nothing where
/// there are none. Throws as DfaExplorer does.
[[nodiscard]] std::optional<ByteDfa> filtered_texts(const ByteDfa& a, const ByteDfa& b,
                                                    bool is_negative, const CompileBudget& budget);

}  // namespace nanovllm

#if NANOVLLM_GRAMMAR_BODIES

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/api/grammar/bytes/dfa_explorer.hpp"
#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_GRAMMAR_INLINE bool have_common_text(const ByteDfa& a, const ByteDfa& b,
                                              const CompileBudget& budget) {
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

NANOVLLM_GRAMMAR_INLINE std::optional<ByteDfa> filtered_texts(const ByteDfa& a, const ByteDfa& b,
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

NANOVLLM_GRAMMAR_INLINE ByteDfa common_texts(const ByteDfa& a, const ByteDfa& b,
                                             const CompileBudget& budget) {
  std::optional<ByteDfa> out = filtered_texts(a, b, false, budget);
  check<RequestError>(out.has_value(), "the regular expression matches no text at all");
  return std::move(*out);
}

}  // namespace nanovllm

#endif  // NANOVLLM_GRAMMAR_BODIES
