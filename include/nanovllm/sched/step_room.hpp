#pragma once
/// Room for all that a step will append anywhere, so that nothing can fail once it begins or ends,
/// and the blocks that it gives.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
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

// ---- Blocks for what a step writes: new ones, and copies of what others have, too ----

/// Gives `s`, which is in `plan`, one block more. There is a free one: `plan` has been checked.
template <class Blocks>
BlockId allocate_for(Sequence& s, StepPlan& plan, Outside<Blocks>& outside) {
  const std::optional<BlockId> block = outside.allocate(plan);
  check(block.has_value(), "begin: the prefix cache gives up none of its free blocks");
  s.block_table.push_back(*block);
  return *block;
}

/// Where others hold the block in which `p` of `plan` begins, too, its sequence gets a copy. Copies
/// for those that were just admitted are made before anything is written, so these hold nothing.
template <class Blocks>
void write_apart(PlannedSequence& p, StepPlan& plan, Blocks& blocks, Outside<Blocks>& outside) {
  Sequence& s = *p.sequence;
  const BlockId shared = s.block_table.back();
  std::int32_t num_holders = blocks.ref_count(shared);
  if (num_holders == 1) return;
  for (const PlannedSequence& other : plan.sequences)
    num_holders -= other.prefix.copy_tail == shared ? 1 : 0;
  p.copies_block = num_holders > 1;
  if (!p.copies_block) return;
  s.block_table.pop_back();
  plan.block_copies.push_back({shared, allocate_for(s, plan, outside)});
  blocks.release(std::span(&shared, 1));  // others hold it
}

/// Gives the sequence of `p`, in `plan`, which begins, the blocks for its range, and lists the
/// copies that go into them. Cannot fail: there are free ones, and room in all lists.
template <class Blocks>
void give_blocks(PlannedSequence& p, StepPlan& plan, Blocks& blocks,
                 Outside<Blocks>& outside) noexcept {
  Sequence& s = *p.sequence;
  if (p.prefix.copy_tail)
    plan.block_copies.push_back({*p.prefix.copy_tail, allocate_for(s, plan, outside)});
  for (const BlockId block : p.prefix.outside)
    plan.copies_up.push_back({block, allocate_for(s, plan, outside)});
  const bool is_apart = p.prefix.copy_tail || !p.prefix.outside.empty();
  if (p.begin % Blocks::block_size() > 0 && !is_apart) write_apart(p, plan, blocks, outside);
  while (std::ssize(s.block_table) < Blocks::blocks_for(p.end)) allocate_for(s, plan, outside);
}

/// How many tokens before the range of `p` are there if the step's copies have not been made.
[[nodiscard]] inline std::int32_t num_uncopied_tokens(const PlannedSequence& p,
                                                      std::int32_t block_size) noexcept {
  if (!p.prefix.outside.empty()) return p.prefix.num_shared_tokens(block_size);
  return p.prefix.copy_tail || p.copies_block ? p.begin / block_size * block_size : p.begin;
}

/// All of `plan` have their blocks: those that are copied from may be reused by later steps.
template <class Blocks>
void release_sources(const StepPlan& plan, Blocks& blocks) {
  for (const PlannedSequence& p : plan.sequences) {
    if (p.prefix.copy_tail) blocks.release(std::span(&*p.prefix.copy_tail, 1));
  }
}

}  // namespace nanovllm
