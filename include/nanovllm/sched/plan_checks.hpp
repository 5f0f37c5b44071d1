#pragma once
/// Does a plan fit the sequences, and do outcomes fit the plan? These checks guard the scheduler
/// against a mistaken policy or engine; bad requests never get this far.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {
namespace detail {

/// Throws Error unless `p` continues its sequence where it is, with the blocks that this takes.
template <class Blocks>
void check_planned(const PlannedSequence& p) {
  const Sequence& s = *p.sequence;
  check(s.status != SequenceStatus::finished, "begin: request ", s.id, " is finished");
  const bool is_new = s.status == SequenceStatus::waiting;
  const auto num_hits = static_cast<std::int32_t>(p.cached_blocks.size());
  check(is_new || num_hits == 0, "begin: request ", s.id, " runs and cannot adopt blocks");
  const std::int32_t begin = is_new ? num_hits * Blocks::block_size() : s.num_computed_tokens;
  check(p.begin == begin && p.begin < p.end && p.end <= s.num_tokens(), "begin: request ", s.id,
        " of ", s.num_tokens(), " tokens must go on at token ", begin, ", but the plan is [",
        p.begin, ", ", p.end, ")");
  check(p.end < s.max_total_tokens, "begin: request ", s.id, " has all its ", s.max_total_tokens,
        " tokens, and nothing to compute");
  check(!is_new || !s.has_pending_token(), "begin: request ", s.id,
        " cannot be admitted before its last token is drawn");
  check(p.samples == (p.end == s.num_tokens()), "begin: request ", s.id,
        " must sample exactly if the plan reaches its last token");
  const auto num_held = static_cast<std::int32_t>(s.block_table.size()) + num_hits;
  check(num_held + p.num_new_blocks == Blocks::blocks_for(p.end), "begin: request ", s.id,
        " needs ", Blocks::blocks_for(p.end), " blocks, but has ", num_held, " and gets ",
        p.num_new_blocks);
}

}  // namespace detail

/// Throws Error unless `plan` fits its sequences and `config`, with `num_running` sequences running
/// before it, not counting those that are ending.
template <class Blocks>
void check_plan(const StepPlan& plan, std::size_t num_running, const BatchConfig& config) {
  for (const Sequence* s : plan.preempted) {
    check(s->status == SequenceStatus::running && !s->is_complete(), "begin: request ", s->id,
          " is to be preempted but does not run, or is ending");
  }
  std::size_t num_left = num_running - plan.preempted.size();
  std::int32_t num_tokens = 0;
  for (const PlannedSequence& p : plan.sequences) {
    detail::check_planned<Blocks>(p);
    num_left += p.sequence->status == SequenceStatus::waiting ? 1 : 0;
    num_tokens += p.num_tokens();
  }
  check(num_tokens == plan.num_tokens && num_tokens <= config.max_num_batched_tokens,
        "begin: the plan has ", num_tokens, " tokens, says ", plan.num_tokens, " and may have ",
        config.max_num_batched_tokens);
  check(num_left <= static_cast<std::size_t>(config.max_num_seqs), "begin: ", num_left,
        " sequences would run, at most ", config.max_num_seqs, " may");
}

/// Throws Error unless `plan` is the oldest step under way and `outcomes` has, in plan order, one
/// entry for every sequence that sampled and has not ended meanwhile.
inline void check_outcomes(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
  std::size_t next = 0;
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    if (p.samples && next < outcomes.size() && outcomes[next].sequence == &s) {
      ++next;
    } else {
      check(!p.samples || s.status == SequenceStatus::finished, "commit: request ", s.id,
            " sampled but has no outcome");
    }
    if (s.status == SequenceStatus::finished) continue;
    check(s.status == SequenceStatus::waiting || s.num_computed_tokens >= p.end, "commit: request ",
          s.id, " is at token ", s.num_computed_tokens, ", the plan at ", p.end);
    const auto end = static_cast<std::size_t>(p.end);
    check(!is_pending(s.tokens[end - 1]), "commit: request ", s.id, " is in an older step, too");
    check(!p.samples || (s.tokens.size() > end && is_pending(s.tokens[end])), "commit: request ",
          s.id, " has its token ", p.end, " already");
  }
  check(next == outcomes.size(), "commit: outcome ", next, " of ", outcomes.size(),
        " belongs to no sequence that sampled, or is out of order");
}

/// Throws Error unless `plan` can be the newest step under way.
inline void check_newest(const StepPlan& plan) {
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    check(s.status != SequenceStatus::running || s.num_computed_tokens <= p.end, "cancel: request ",
          s.id, " is in a newer step, too");
  }
}

}  // namespace nanovllm
