#pragma once
/// Makes room for all that a step will append anywhere, so that nothing can fail once it begins or
/// ends.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Makes room in `list` for `size` elements, and for as many again when it must move.
template <class T>
void grow(std::vector<T>& list, std::size_t size) {
  if (list.capacity() < size) list.reserve(std::max(size, 2 * list.capacity()));
}

/// Makes room for what `plan` appends to its sequences, to the `running` queue and to its lists of
/// copies, which it empties.
template <class Blocks>
void make_room(StepPlan& plan, std::vector<Sequence*>& running, const Outside<Blocks>& outside) {
  std::size_t num_admitted = 0, num_copies = 0, num_up = 0;
  for (const PlannedSequence& p : plan.sequences) {
    Sequence& s = *p.sequence;
    num_admitted += s.status == SequenceStatus::waiting ? 1 : 0;
    num_copies += p.prefix.copy_tail || p.begin % Blocks::block_size() > 0 ? 1 : 0;
    num_up += p.prefix.outside.size();
    grow(s.block_table, static_cast<std::size_t>(Blocks::blocks_for(p.end)));
  }
  for (const Sequence* s : plan.preempted) num_copies += s->block_table.size();
  grow(running, running.size() + num_admitted);
  plan.copies_down.clear();
  plan.block_copies.clear();
  plan.copies_up.clear();
  grow(plan.block_copies, num_copies);
  grow(plan.copies_up, num_up);
  outside.make_room(plan);
}

/// Makes room for the tokens of `outcomes`.
inline void make_room(std::span<const StepOutcome> outcomes) {
  for (const StepOutcome& outcome : outcomes) {
    std::vector<TokenId>& tokens = outcome.sequence->tokens;
    grow(tokens, tokens.size() + outcome.tokens.size());
  }
}

}  // namespace nanovllm
