#pragma once
/// Does a plan fit the sequences and the pool, and do outcomes fit the plan? These checks guard the
/// scheduler against a mistaken policy or engine; bad requests never get this far.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "nanovllm/core/error.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/pool_forecast.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {
namespace detail {

/// Throws Error unless `s` is in the plan that has `mark` for the first time, and in the queue that
/// its status names.
inline void check_listed(Sequence& s, std::uint64_t mark) {
  check(s.arrival != 0, "begin: request ", s.id, " is in no queue");
  check(std::exchange(s.mark, mark) != mark, "begin: request ", s.id, " is in the plan twice");
}

/// Throws Error unless `p` continues its sequence where it is.
template <class Blocks>
void check_planned(const PlannedSequence& p) {
  const Sequence& s = *p.sequence;
  check(s.status != SequenceStatus::finished, "begin: request ", s.id, " is finished");
  const bool is_new = s.status == SequenceStatus::waiting;
  const PrefixMatch& prefix = p.prefix;
  check(is_new || (prefix.blocks.empty() && !prefix.copy_tail), "begin: request ", s.id,
        " runs and cannot adopt blocks");
  const std::int32_t in_blocks =
      static_cast<std::int32_t>(prefix.blocks.size()) * Blocks::block_size();
  const std::int32_t in_tail = prefix.num_tokens - in_blocks;
  check(prefix.copy_tail ? in_tail > 0 && in_tail < Blocks::block_size() : in_tail == 0,
        "begin: request ", s.id, " is to adopt ", prefix.num_tokens, " tokens, ", in_blocks,
        " of them in whole blocks, with", prefix.copy_tail ? " a" : "out a", " block to be copied");
  const std::int32_t begin = is_new ? prefix.num_tokens : s.num_computed_tokens;
  const std::int32_t num_guesses = p.num_logits > 1 ? p.num_logits - 1 : 0;
  check(p.begin == begin && p.begin < p.end && p.end - num_guesses <= s.num_tokens(),
        "begin: request ", s.id, " of ", s.num_tokens(), " tokens must go on at token ", begin,
        ", but the plan is [", p.begin, ", ", p.end, ") with ", p.num_logits, " logits");
  check(p.end < s.max_total_tokens, "begin: request ", s.id, " has all its ", s.max_total_tokens,
        " tokens, and nothing to compute");
  check(is_new ? !s.has_pending_token() : !s.is_unsettled(), "begin: request ", s.id,
        " cannot be in a step before it is known how its ", is_new ? "last token" : "tokens",
        " were drawn");
  check(p.num_logits >= 0 && (p.num_logits > 0) == (p.end - num_guesses == s.num_tokens()),
        "begin: request ", s.id, " must sample exactly if the plan reaches its last token");
}

}  // namespace detail

/// Throws Error unless `plan` fits its sequences and `config`, with `num_running` sequences running
/// before it, not counting those that are ending. `mark` is a number of this plan's own.
template <class Blocks>
void check_plan(const StepPlan& plan, std::size_t num_running, const BatchConfig& config,
                std::uint64_t mark) {
  for (Sequence* s : plan.preempted) {
    detail::check_listed(*s, mark);
    check(s->status == SequenceStatus::running && (!s->is_complete() || s->is_unsettled()),
          "begin: request ", s->id, " is to be preempted but does not run, or is ending");
  }
  std::size_t num_left = num_running - plan.preempted.size();
  std::int32_t num_tokens = 0;
  for (const PlannedSequence& p : plan.sequences) {
    detail::check_listed(*p.sequence, mark);
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

/// Throws Error unless the pool has the blocks that `plan` takes.
template <class Blocks>
void check_blocks(const StepPlan& plan, const Blocks& blocks) {
  PoolForecast<Blocks> forecast(blocks);
  for (const Sequence* s : plan.preempted) forecast.release(s->block_table);
  for (const PlannedSequence& p : plan.sequences) {
    for (const BlockId block : p.prefix.blocks) blocks.check_adoptable(block);
    if (p.prefix.copy_tail) blocks.check_adoptable(*p.prefix.copy_tail);
    forecast.adopt(p.prefix);
  }
  for (const PlannedSequence& p : plan.sequences) {
    const std::size_t num_held = p.sequence->block_table.size() + p.prefix.blocks.size();
    forecast.allocate(Blocks::blocks_for(p.end) - static_cast<std::int32_t>(num_held));
  }
  check(forecast.num_free() >= 0, "begin: the plan needs ", -forecast.num_free(),
        " blocks more than are free");
}

/// Throws Error unless `plan` is the oldest step under way and `outcomes` has, in plan order, one
/// entry for every sequence that sampled and has not ended meanwhile.
inline void check_outcomes(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
  std::size_t next = 0;
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    const bool has_ended = s.status == SequenceStatus::finished;
    if (p.num_logits > 0 && next < outcomes.size() && outcomes[next].sequence == &s) {
      const std::size_t count = outcomes[next++].tokens.size();
      check(has_ended || (count >= 1 && count <= static_cast<std::size_t>(p.num_logits)),
            "commit: request ", s.id, " sampled ", p.num_logits, " tokens, but its outcome has ",
            count);
    } else {
      check(p.num_logits == 0 || has_ended, "commit: request ", s.id,
            " sampled but has no outcome");
    }
    if (has_ended) continue;
    check(s.status == SequenceStatus::waiting || s.num_computed_tokens >= p.end, "commit: request ",
          s.id, " is at token ", s.num_computed_tokens, ", the plan at ", p.end);
    const std::int32_t num_before = p.num_logits > 0 ? p.end - p.num_logits + 1 : p.end;
    check(s.num_known_tokens() >= num_before, "commit: request ", s.id,
          " is in an older step, too");
    check(p.num_logits == 0 || (s.num_known_tokens() == num_before &&
                                s.pending.size() >= static_cast<std::size_t>(p.num_logits)),
          "commit: request ", s.id, " has its token ", num_before, " already");
  }
  check(next == outcomes.size(), "commit: outcome ", next, " of ", outcomes.size(),
        " belongs to no sequence that sampled, or is out of order");
}

/// Throws Error unless `plan` can be the newest step under way.
inline void check_newest(const StepPlan& plan) {
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    if (s.status == SequenceStatus::finished) continue;
    check(s.status == SequenceStatus::waiting || s.num_computed_tokens <= p.end, "cancel: request ",
          s.id, " is in a newer step, too");
    check(p.num_logits == 0 || (s.num_tokens() == p.end + 1 &&
                                s.pending.size() >= static_cast<std::size_t>(p.num_logits)),
          "cancel: request ", s.id, " is not in the newest step");
  }
}

}  // namespace nanovllm
