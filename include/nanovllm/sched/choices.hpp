#pragma once
/// Sequences whose next tokens are chosen among the candidates of all of a request, and what they
/// become by it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_room.hpp"

namespace nanovllm {

/// What a sequence becomes when candidates are chosen.
struct Choice {
  Sequence* sequence = nullptr;      ///< gets the tokens and the blocks of `parent`, and `token`
  const Sequence* parent = nullptr;  ///< one of the same request, maybe `sequence` itself
  TokenId token = 0;
};

/// Throws Error unless the `choices` are of different sequences that await one, with tokens left to
/// compute.
/// @param mark  a number of this choice's own.
void check_choices(std::span<const Choice> choices, std::uint64_t mark);

/// The sequences of a scheduler whose tokens are chosen (`Sequence::is_chosen`). They share blocks
/// with each other, full ones and the last one. If several must write to a shared block, all but
/// the last to write get a copy when a step begins.
///
/// @tparam States  a SequenceStates.
template <class States>
class Choices {
 public:
  /// `states` must outlive this.
  explicit Choices(States& states) : states_(states) {}

  /// Applies a choice among candidates: each named sequence becomes its parent with one token more,
  /// and continues. It shares its parent's blocks if both run; otherwise it waits to be computed,
  /// except what its siblings and the prefix cache have. Sequences of the request that are not
  /// named keep awaiting a choice. Throws Error, having changed nothing, if a sequence or its
  /// parent awaits none, is named twice, or would have nothing left to compute. O(choices ·
  /// tokens).
  void apply(std::span<const Choice> choices) {
    check_choices(choices, states_.next_mark());
    std::vector<Move> moves = moves_of(choices);  // the last that may fail
    // First everything is taken that will be, then what they had goes back.
    for (const Move& move : moves) states_.blocks().share(move.shared);
    for (std::size_t i = 0; i < choices.size(); ++i) place(choices[i], moves[i]);
  }

  /// The candidates of `s` are known: there is nothing to compute of it until one is chosen.
  void await_choice(Sequence& s) noexcept {
    const bool waits = s.status == SequenceStatus::waiting;
    if (waits) states_.leave_queue(s);
    s.awaits_choice = true;
    if (waits) states_.wait(s);
  }

  /// Running sequences that await a choice lose their blocks and places, so that siblings that have
  /// not drawn yet are admitted. Returns whether there were any.
  bool preempt() noexcept {
    const std::int64_t before = states_.num_preemptions();
    for (std::size_t i = states_.running().size(); i-- > 0;) {
      if (states_.running()[i]->awaits_choice) states_.preempt(*states_.running()[i]);
    }
    return states_.num_preemptions() > before;
  }

  /// Whether sequences that await a choice take all `num_places` places of running sequences.
  [[nodiscard]] bool take_all(std::int32_t num_places) const noexcept {
    return states_.num_running() == num_places &&
           std::ranges::all_of(states_.running(),
                               [](const Sequence* s) { return s->awaits_choice; });
  }

 private:
  /// A copy of what a sequence's parent has, taken before any changes. Empty where the parent is
  /// the sequence itself.
  struct Move {
    std::vector<TokenId> tokens{};
    PrefixMatch shared{};  ///< its block table, of one that runs, if its parent does, too
    std::int32_t num_computed_tokens = 0;
    std::int32_t num_published_tokens = 0;
  };

  /// The moves of `choices`, with room for the tokens that the sequences get.
  [[nodiscard]] static std::vector<Move> moves_of(std::span<const Choice> choices) {
    std::vector<Move> moves(choices.size());
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Sequence& parent = *choices[i].parent;
      const std::size_t num_tokens = parent.tokens.size() + 1;
      if (choices[i].sequence == &parent) {
        grow(choices[i].sequence->tokens, num_tokens);
        continue;
      }
      Move& move = moves[i];
      move.tokens.reserve(num_tokens);
      move.tokens = parent.tokens;
      if (choices[i].sequence->status != SequenceStatus::running) continue;
      move.shared.blocks = parent.block_table;
      move.num_computed_tokens = parent.num_computed_tokens;
      move.num_published_tokens = parent.num_published_tokens;
    }
    return moves;
  }

  void place(const Choice& choice, Move& move) noexcept {
    Sequence& s = *choice.sequence;
    if (choice.parent != &s) {
      states_.drop_blocks(s, 0);
      s.tokens.swap(move.tokens);
      s.block_table.swap(move.shared.blocks);
      s.num_computed_tokens = move.num_computed_tokens;
      s.num_published_tokens = move.num_published_tokens;
    }
    s.tokens.push_back(choice.token);
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

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/core/error.hpp"

namespace nanovllm {

NANOVLLM_INLINE void check_choices(std::span<const Choice> choices, std::uint64_t mark) {
  const auto awaits = [](const Sequence& s) {
    return s.is_chosen && s.awaits_choice && s.status != SequenceStatus::finished;
  };
  for (const Choice& choice : choices) {
    Sequence& s = *choice.sequence;
    check(awaits(s) && awaits(*choice.parent), "beams: request ", s.id, " or its parent, request ",
          choice.parent->id, ", does not await a choice");
    check(std::exchange(s.mark, mark) != mark, "beams: request ", s.id, " gets two slots");
    check(choice.parent->num_known_tokens() + 1 < s.max_total_tokens, "beams: request ", s.id,
          " would have all its ", s.max_total_tokens, " tokens, and nothing to compute");
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
