#pragma once
/// What beams take over from each other when candidates are chosen.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/sched/step_room.hpp"

namespace nanovllm {

/// A copy of what a beam's parent has, taken before any beam changes. Empty where the parent is the
/// beam itself.
struct BeamMove {
  std::vector<TokenId> tokens{};
  std::vector<BlockId> block_table{};  ///< of one that runs, if its parent does, too
  std::int32_t num_computed_tokens = 0;
  std::int32_t num_published_tokens = 0;
};

/// The moves of `slots`, with room for the tokens that the beams get. Throws std::bad_alloc before
/// anything is changed. O(slots · tokens).
[[nodiscard]] inline std::vector<BeamMove> moves_of(std::span<const BeamSlot> slots) {
  std::vector<BeamMove> moves(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Sequence& parent = *slots[i].parent;
    const std::size_t num_tokens = parent.tokens.size() + 1;
    if (slots[i].sequence == &parent) {
      grow(slots[i].sequence->tokens, num_tokens);
      continue;
    }
    BeamMove& move = moves[i];
    move.tokens.reserve(num_tokens);
    move.tokens = parent.tokens;
    if (slots[i].sequence->status != SequenceStatus::running) continue;
    move.block_table = parent.block_table;
    move.num_computed_tokens = parent.num_computed_tokens;
    move.num_published_tokens = parent.num_published_tokens;
  }
  return moves;
}

/// Beam `s`, which holds no blocks any more, takes what `move` has.
inline void take_over(Sequence& s, BeamMove& move) noexcept {
  s.tokens.swap(move.tokens);
  s.block_table.swap(move.block_table);
  s.num_computed_tokens = move.num_computed_tokens;
  s.num_published_tokens = move.num_published_tokens;
}

}  // namespace nanovllm
