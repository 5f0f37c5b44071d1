#pragma once
/// A choice among the candidates of beams.

#include <cstdint>
#include <span>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// What a beam becomes when candidates are chosen.
struct BeamSlot {
  Sequence* sequence = nullptr;      ///< gets the tokens and the blocks of `parent`, and `token`
  const Sequence* parent = nullptr;  ///< one of the same request, maybe `sequence` itself
  TokenId token = 0;
};

/// Throws Error unless the `slots` are of different beams that await a choice, with tokens left to
/// compute.
/// @param mark  a number of this choice's own.
void check_beam_slots(std::span<const BeamSlot> slots, std::uint64_t mark);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void check_beam_slots(std::span<const BeamSlot> slots, std::uint64_t mark) {
  const auto awaits = [](const Sequence& s) {
    return s.is_beam && s.awaits_choice && s.status != SequenceStatus::finished;
  };
  for (const BeamSlot& slot : slots) {
    Sequence& s = *slot.sequence;
    check(awaits(s) && awaits(*slot.parent), "beams: request ", s.id, " or its parent, request ",
          slot.parent->id, ", does not await a choice");
    check(std::exchange(s.mark, mark) != mark, "beams: request ", s.id, " gets two slots");
    check(slot.parent->num_known_tokens() + 1 < s.max_total_tokens, "beams: request ", s.id,
          " would have all its ", s.max_total_tokens, " tokens, and nothing to compute");
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
