#pragma once
/// Beam search in the scheduler: beams that await a choice, and what they become by it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/beam_slot.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_room.hpp"

namespace nanovllm {

/// The beams (`Sequence::is_beam`) of a scheduler. They share blocks with each other, full ones and
/// the last one. If several must write to a shared block, all but the last to write get a copy when
/// a step begins.
///
/// @tparam States  a SequenceStates.
template <class States>
class Beams {
 public:
  /// `states` must outlive this.
  explicit Beams(States& states) : states_(states) {}

  /// Applies a choice among the candidates of beams: each named beam becomes its parent with one
  /// token more, and continues. It shares its parent's blocks if both run; otherwise it waits to be
  /// computed, except what its siblings and the prefix cache have. Beams of the request that are
  /// not named keep awaiting a choice. Throws Error, having changed nothing, if a sequence or its
  /// parent awaits none, is named twice, or would have nothing left to compute.
  /// O(slots · tokens).
  void reorder(std::span<const BeamSlot> slots) {
    check_beam_slots(slots, states_.next_mark());
    std::vector<Move> moves = moves_of(slots);  // the last that may fail
    // First everything is taken that will be, then what they had goes back.
    for (const Move& move : moves) states_.blocks().share(move.shared);
    for (std::size_t i = 0; i < slots.size(); ++i) place(slots[i], moves[i]);
  }

  /// The candidates of `s` are known: there is nothing to compute of it until one is chosen.
  void await_choice(Sequence& s) noexcept {
    const bool waits = s.status == SequenceStatus::waiting;
    if (waits) states_.leave_queue(s);
    s.awaits_choice = true;
    if (waits) states_.wait(s);
  }

  /// Running beams that await a choice lose their blocks and places, so that siblings that have not
  /// drawn yet are admitted. Returns whether there were any.
  bool preempt() noexcept {
    const std::int64_t before = states_.num_preemptions();
    for (std::size_t i = states_.running().size(); i-- > 0;) {
      if (states_.running()[i]->awaits_choice) states_.preempt(*states_.running()[i]);
    }
    return states_.num_preemptions() > before;
  }

  /// Whether beams that await a choice take all `num_places` places of running sequences.
  [[nodiscard]] bool take_all(std::int32_t num_places) const noexcept {
    return states_.num_running() == num_places &&
           std::ranges::all_of(states_.running(),
                               [](const Sequence* s) { return s->awaits_choice; });
  }

 private:
  /// A copy of what a beam's parent has, taken before any beam changes. Empty where the parent is
  /// the beam itself.
  struct Move {
    std::vector<TokenId> tokens{};
    PrefixMatch shared{};  ///< its block table, of one that runs, if its parent does, too
    std::int32_t num_computed_tokens = 0;
    std::int32_t num_published_tokens = 0;
  };

  /// The moves of `slots`, with room for the tokens that the beams get.
  [[nodiscard]] static std::vector<Move> moves_of(std::span<const BeamSlot> slots) {
    std::vector<Move> moves(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Sequence& parent = *slots[i].parent;
      const std::size_t num_tokens = parent.tokens.size() + 1;
      if (slots[i].sequence == &parent) {
        grow(slots[i].sequence->tokens, num_tokens);
        continue;
      }
      Move& move = moves[i];
      move.tokens.reserve(num_tokens);
      move.tokens = parent.tokens;
      if (slots[i].sequence->status != SequenceStatus::running) continue;
      move.shared.blocks = parent.block_table;
      move.num_computed_tokens = parent.num_computed_tokens;
      move.num_published_tokens = parent.num_published_tokens;
    }
    return moves;
  }

  void place(const BeamSlot& slot, Move& move) noexcept {
    Sequence& s = *slot.sequence;
    if (slot.parent != &s) {
      states_.drop_blocks(s, 0);
      s.tokens.swap(move.tokens);
      s.block_table.swap(move.shared.blocks);
      s.num_computed_tokens = move.num_computed_tokens;
      s.num_published_tokens = move.num_published_tokens;
    }
    s.tokens.push_back(slot.token);
    if (s.status == SequenceStatus::awaiting_choice) {
      states_.leave_queue(s);
      s.awaits_choice = false;
      states_.wait(s);
      return;
    }
    s.awaits_choice = false;
    if (s.block_table.empty()) states_.preempt(s);  // as its parent was
  }

  States& states_;
};

}  // namespace nanovllm
