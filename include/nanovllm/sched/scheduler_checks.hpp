#pragma once
/// What guards the scheduler: whether a request may enter its queues, whether a plan fits the
/// sequences and the pool, whether outcomes fit the plan, and what is true of the queues between
/// two calls. What fails of a plan is a fault of a policy or of the engine; bad requests never get
/// so far.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/sched/pool_forecast.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// False if a step under way draws the last token that running sequence `s` may have. One of which
/// a single step draws several may keep fewer, and goes on until that is known.
[[nodiscard]] inline bool goes_on(const Sequence& s, int num_under_way) noexcept {
  return !s.is_complete() || (num_under_way == 1 && s.is_unsettled());
}

[[nodiscard]] inline std::size_t num_going_on(std::span<Sequence* const> running,
                                              int num_under_way) noexcept {
  if (num_under_way == 0) return running.size();
  return static_cast<std::size_t>(
      std::count_if(running.begin(), running.end(),
                    [&](const Sequence* s) { return goes_on(*s, num_under_way); }));
}

/// Throws RequestError unless `s` can be served by a pool in which a sequence can reach
/// `capacity_tokens`; Error if it is not fresh.
void check_request(const Sequence& s, std::int32_t capacity_tokens);

/// Throws Error naming the broken invariant. O(blocks + sequences).
/// @param owners      of further blocks.
/// @param ref_counts  of every block of the pool.
/// @param block_size  tokens a block.
void check_queues(std::span<Sequence* const> running, const WaitingQueue& waiting,
                  const BlockOwners& owners, std::span<const std::int32_t> ref_counts,
                  std::int32_t block_size, const BatchConfig& config, int num_under_way);

/// Throws Error unless `plan` fits its sequences and `config`, with `num_running` sequences running
/// before it, not counting those that are ending. `mark` is a number of this plan's own.
/// @param block_size  tokens a block.
void check_plan(const StepPlan& plan, std::size_t num_running, const BatchConfig& config,
                std::uint64_t mark, std::int32_t block_size);

/// Throws Error unless the pool has the blocks that `plan` takes.
template <class Blocks>
void check_blocks(const StepPlan& plan, const Blocks& blocks) {
  PoolForecast<Blocks> forecast(blocks);
  for (const Sequence* s : plan.preempted) forecast.release(s->block_table);
  for (const PlannedSequence& p : plan.sequences) {
    if (p.fork_of == nullptr) {
      blocks.check_adoptable(p.prefix);
    } else {
      blocks.check_shareable(p.prefix);
    }
    forecast.adopt(p.prefix);
  }
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    if (forecast.must_copy(s)) forecast.copy_last_block(s);
    const std::size_t num_there = s.block_table.size() + p.prefix.blocks.size();
    forecast.allocate(Blocks::blocks_for(p.end) - static_cast<std::int32_t>(num_there));
  }
  check(forecast.num_free() >= 0, "begin: the plan needs ", -forecast.num_free(),
        " blocks more than are free");
}

/// Throws Error unless `plan` is the oldest step under way and `outcomes` has, in plan order, one
/// entry for every sequence that sampled and has not ended meanwhile.
void check_outcomes(const StepPlan& plan, std::span<const StepOutcome> outcomes);

/// Throws Error unless `plan` can be the newest step under way.
void check_newest(const StepPlan& plan);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <utility>

#include "nanovllm/core/math.hpp"

namespace nanovllm {

NANOVLLM_INLINE void check_request(const Sequence& s, std::int32_t capacity_tokens) {
  check<RequestError>(s.num_tokens() >= 1 && s.num_prompt_tokens == s.num_tokens(), "request ",
                      s.id, ": the prompt must have at least one token, and num_prompt_tokens = ",
                      s.num_prompt_tokens, " must count its ", s.num_tokens());
  check<RequestError>(s.num_tokens() < capacity_tokens, "request ", s.id, ": a prompt of ",
                      s.num_tokens(), " tokens does not fit into the KV cache, which holds ",
                      capacity_tokens - 1);
  check<RequestError>(
      s.max_total_tokens > s.num_tokens() && s.max_total_tokens <= capacity_tokens, "request ",
      s.id, ": max_total_tokens must be in (", s.num_tokens(), ", ", capacity_tokens,
      "], the prompt's length and what the KV cache has room for, got ", s.max_total_tokens);
  check(s.status == SequenceStatus::waiting && s.arrival == 0, "request ", s.id,
        " was added before");
}

namespace detail {

/// Tokens are pending in steps under way alone, and a sequence that has all its tokens is done.
NANOVLLM_INLINE void check_tokens(const Sequence& s, int num_under_way) {
  check(num_under_way > 0 || s.pending.empty(), "scheduler: request ", s.id, " has ",
        s.pending.size(), " pending tokens, but no step is under way");
  check(s.num_tokens() <= s.max_total_tokens && (s.has_pending_token() || !s.is_complete()),
        "scheduler: request ", s.id, " goes on with ", s.num_tokens(), " of ", s.max_total_tokens,
        " tokens");
}

}  // namespace detail

NANOVLLM_INLINE void check_queues(std::span<Sequence* const> running, const WaitingQueue& waiting,
                                  const BlockOwners& owners,
                                  std::span<const std::int32_t> ref_counts, std::int32_t block_size,
                                  const BatchConfig& config, int num_under_way) {
  waiting.check_invariants();
  for (const Sequence* s : waiting) {
    check(s->status == SequenceStatus::waiting && s->block_table.empty() &&
              s->num_computed_tokens == 0 && !s->awaits_choice,
          "scheduler: request ", s->id, " waits, but holds blocks or has another status");
    detail::check_tokens(*s, num_under_way);
  }
  std::vector<std::int32_t> num_holders(ref_counts.size(), 0);
  std::vector<const Sequence*> last_holder(ref_counts.size(), nullptr);
  const auto count_blocks = [&](const Sequence& s) {
    const auto num_blocks = static_cast<std::int32_t>(s.block_table.size());
    check(num_blocks == ceil_div(s.num_computed_tokens, block_size), "scheduler: request ", s.id,
          " holds ", num_blocks, " blocks for ", s.num_computed_tokens, " computed tokens");
    for (const BlockId block : s.block_table) {
      check(std::exchange(last_holder[static_cast<std::size_t>(block)], &s) != &s,
            "scheduler: request ", s.id, " holds block ", block, " twice");
      ++num_holders[static_cast<std::size_t>(block)];
    }
  };
  for (const auto& owner : owners) {
    for (const Sequence* s : owner->sequences()) {
      check(s->status == SequenceStatus::parked && s->num_computed_tokens <= s->num_known_tokens(),
            "scheduler: a parked sequence has another status, or keeps ", s->num_computed_tokens,
            " of ", s->num_known_tokens(), " tokens");
      count_blocks(*s);
    }
  }
  for (const Sequence* s : running) {
    check(s->status == SequenceStatus::running, "scheduler: request ", s->id,
          " is in the running queue with another status");
    count_blocks(*s);
    detail::check_tokens(*s, num_under_way);
    check(s->num_computed_tokens + (s->awaits_choice ? 0 : 1) <= s->num_tokens(),
          "scheduler: request ", s->id, " runs with ", s->num_computed_tokens, " of ",
          s->num_tokens(), " tokens computed");
  }
  for (std::size_t block = 0; block < ref_counts.size(); ++block) {
    check(num_holders[block] == ref_counts[block], "scheduler: block ", block, " is in ",
          num_holders[block], " block tables, but has reference count ", ref_counts[block]);
  }
  const std::size_t num_going_on = nanovllm::num_going_on(running, num_under_way);
  check(num_going_on <= static_cast<std::size_t>(config.max_num_seqs), "scheduler: ", num_going_on,
        " sequences run, at most ", config.max_num_seqs, " may");
}

namespace detail {

/// Throws Error unless `s` is in the plan that has `mark` for the first time, and in the queue that
/// its status names.
NANOVLLM_INLINE void check_listed(Sequence& s, std::uint64_t mark) {
  check(s.arrival != 0, "begin: request ", s.id, " is in no queue");
  check(std::exchange(s.mark, mark) != mark, "begin: request ", s.id, " is in the plan twice");
}

/// Whether `prefix` is in the blocks of `source`, and is the beginning of `s`.
NANOVLLM_INLINE bool is_fork(const PrefixMatch& prefix, const Sequence& source, const Sequence& s) {
  const auto& table = source.block_table;
  return source.num_computed_tokens >= prefix.num_tokens &&
         std::min(source.num_known_tokens(), s.num_known_tokens()) >= prefix.num_tokens &&
         table.size() >= prefix.blocks.size() + (prefix.copy_tail ? 1 : 0) &&
         std::equal(prefix.blocks.begin(), prefix.blocks.end(), table.begin()) &&
         (!prefix.copy_tail || *prefix.copy_tail == table[prefix.blocks.size()]) &&
         std::equal(s.tokens.begin(), s.tokens.begin() + prefix.num_tokens, source.tokens.begin());
}

/// Throws Error unless the numbers of `prefix`, which `s` is to adopt, agree.
NANOVLLM_INLINE void check_prefix(const PrefixMatch& prefix, const Sequence& s,
                                  std::int32_t block_size) {
  if (!prefix.outside.empty()) return;  // see Outside::check_admitted
  const std::int32_t in_blocks = prefix.num_shared_tokens(block_size);
  const std::int32_t behind = prefix.num_tokens - in_blocks;
  check(prefix.copy_tail ? behind > 0 && behind < block_size : behind == 0, "begin: request ", s.id,
        " is to adopt ", prefix.num_tokens, " tokens, ", in_blocks,
        " of them in whole blocks, with", prefix.copy_tail ? " a" : "out a", " block to be copied");
}

/// Throws Error unless `p` continues its sequence where it is.
NANOVLLM_INLINE void check_planned(const PlannedSequence& p, std::int32_t block_size) {
  const Sequence& s = *p.sequence;
  check(s.status != SequenceStatus::finished, "begin: request ", s.id, " is finished");
  check(!s.awaits_choice, "begin: request ", s.id, " awaits a choice among the beams' candidates");
  const bool is_new = s.status == SequenceStatus::waiting;
  const PrefixMatch& prefix = p.prefix;
  if (is_new) {
    check_prefix(prefix, s, block_size);
    check(p.fork_of == nullptr || (prefix.outside.empty() && is_fork(prefix, *p.fork_of, s)),
          "begin: request ", s.id, " is to share ", prefix.num_tokens,
          " tokens with a sequence that has not computed them");
  } else {
    check(prefix.num_tokens == 0 && prefix.blocks.empty() && !prefix.copy_tail &&
              prefix.outside.empty() && p.fork_of == nullptr,
          "begin: request ", s.id, " runs and cannot adopt blocks");
  }
  const std::int32_t begin = is_new ? prefix.num_tokens : s.num_computed_tokens;
  const std::int32_t num_draws = p.rows.count(RowKind::draw);
  check(p.begin == begin && p.begin < p.end && p.end - std::max(num_draws - 1, 0) <= s.num_tokens(),
        "begin: request ", s.id, " of ", s.num_tokens(), " tokens must go on at token ", begin,
        ", but the plan is [", p.begin, ", ", p.end, ") with ", num_draws, " logits");
  check(p.end < s.max_total_tokens, "begin: request ", s.id, " has all its ", s.max_total_tokens,
        " tokens, and nothing to compute");
  check(is_new ? !s.has_pending_token() : !s.is_unsettled(), "begin: request ", s.id,
        " cannot be in a step before it is known how its ", is_new ? "last token" : "tokens",
        " were drawn");
  check(!s.is_chosen || num_draws <= 1, "begin: request ", s.id,
        ", a beam, cannot guess what it draws");
  const RowUses wanted = s.rows_in(p.begin, p.end);
  const auto agrees = [&](RowKind kind) { return p.rows.of(kind) == wanted.of(kind); };
  check(agrees(RowKind::draw) && agrees(RowKind::hidden), "begin: request ", s.id, " must ",
        s.output == RowKind::hidden ? "give its hidden state" : "sample",
        " exactly if the plan reaches its last token");
  check(agrees(RowKind::score) && (s.scores.count == 0 || p.begin <= s.scores.first || !is_new),
        "begin: request ", s.id, " wants the logits of its prompt from token ",
        s.num_prompt_tokens - 1 - s.scores.count, " on, but the plan is [", p.begin, ", ", p.end,
        ") with ", p.rows.count(RowKind::score), " of them");
}

}  // namespace detail

NANOVLLM_INLINE void check_plan(const StepPlan& plan, std::size_t num_running,
                                const BatchConfig& config, std::uint64_t mark,
                                std::int32_t block_size) {
  for (Sequence* s : plan.preempted) {
    detail::check_listed(*s, mark);
    check(s->status == SequenceStatus::running && (!s->is_complete() || s->is_unsettled()),
          "begin: request ", s->id, " is to be preempted but does not run, or is ending");
  }
  std::size_t num_left = num_running - plan.preempted.size();
  std::int32_t num_tokens = 0, num_logits = 0, num_scores = 0;
  for (const PlannedSequence& p : plan.sequences) {
    detail::check_listed(*p.sequence, mark);
    detail::check_planned(p, block_size);
    num_left += p.sequence->status == SequenceStatus::waiting ? 1 : 0;
    num_tokens += p.num_tokens();
    num_logits += p.rows.num_logits();
    num_scores += p.rows.count(RowKind::score);
  }
  check(num_tokens == plan.num_tokens && num_tokens <= config.max_num_batched_tokens,
        "begin: the plan has ", num_tokens, " tokens, says ", plan.num_tokens, " and may have ",
        config.max_num_batched_tokens);
  check(num_scores == 0 || num_logits <= config.num_logits(), "begin: the plan has ", num_logits,
        " rows of logits, at most ", config.num_logits(), " may be");
  check(num_left <= static_cast<std::size_t>(config.max_num_seqs), "begin: ", num_left,
        " sequences would run, at most ", config.max_num_seqs, " may");
}

NANOVLLM_INLINE void check_outcomes(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
  std::size_t next = 0;
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    const bool has_ended = s.status == SequenceStatus::finished;
    const std::int32_t num_outputs = p.rows.num_outputs();
    if (num_outputs > 0 && next < outcomes.size() && outcomes[next].sequence == &s) {
      const std::size_t count = outcomes[next++].tokens.size();
      const std::int32_t num_draws = p.rows.count(RowKind::draw);
      const bool fits = s.is_chosen || s.output == RowKind::hidden
                            ? count == 0
                            : count >= 1 && count <= static_cast<std::size_t>(num_draws);
      check(has_ended || fits, "commit: request ", s.id, s.is_chosen ? ", a beam," : "",
            " sampled ", num_draws, " tokens, but its outcome has ", count);
    } else {
      check(num_outputs == 0 || has_ended, "commit: request ", s.id, " has no outcome");
    }
    if (has_ended) continue;
    check(s.status == SequenceStatus::waiting || s.num_computed_tokens >= p.end, "commit: request ",
          s.id, " is at token ", s.num_computed_tokens, ", the plan at ", p.end);
    const std::int32_t num_before = num_outputs > 0 ? p.end - num_outputs + 1 : p.end;
    check(s.num_known_tokens() >= num_before, "commit: request ", s.id,
          " is in an older step, too");
    check(
        num_outputs == 0 || (s.num_known_tokens() == num_before && s.pending.size() >= num_outputs),
        "commit: request ", s.id, " has its token ", num_before, " already");
  }
  check(next == outcomes.size(), "commit: outcome ", next, " of ", outcomes.size(),
        " belongs to no sequence that sampled, or is out of order");
}

NANOVLLM_INLINE void check_newest(const StepPlan& plan) {
  for (const PlannedSequence& p : plan.sequences) {
    const Sequence& s = *p.sequence;
    if (s.status == SequenceStatus::finished) continue;
    check(s.status == SequenceStatus::waiting || s.num_computed_tokens <= p.end, "cancel: request ",
          s.id, " is in a newer step, too");
    const std::int32_t num_outputs = p.rows.num_outputs();
    check(num_outputs == 0 || (s.num_tokens() == p.end + 1 && s.pending.size() >= num_outputs),
          "cancel: request ", s.id, " is not in the newest step");
  }
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
