#pragma once
/// Queues of requests, and the steps that serve them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/continuous_batching.hpp"
#include "nanovllm/sched/plan_checks.hpp"
#include "nanovllm/sched/scheduling_policy.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Owns the queues and the block manager. One step is
///
///     StepPlan plan = scheduler.schedule();   // decides, changes nothing
///     scheduler.begin(plan);                  // preempts, adopts, allocates: block tables are set
///     … compute plan's token ranges, sample …
///     scheduler.commit(plan, outcomes);       // publishes, appends tokens, finishes and frees
///
/// Sequences belong to the caller and must stay where they are from `add` until they are finished
/// (aborted during a step: until its `commit` or `cancel`). Between those calls only the scheduler
/// writes to them. Not thread-safe: one thread calls, and may call `add` and `abort` at any time
/// but between `schedule` and `begin`.
///
/// `commit` takes what it publishes from the plan, not from the sequences' counters. So to plan
/// step N + 1 while N runs, `begin` would advance num_computed_tokens and append a placeholder
/// token to every sequence that samples, `commit` would replace the placeholder and publish for
/// those that still hold their blocks, and `in_flight_` would become a count per sequence, whose
/// blocks are given back when it falls to zero. Policies and block manager would see no difference.
///
/// @tparam Policy  decides what a step computes; a SchedulingPolicyLike.
/// @tparam Blocks  a BlockManager, or a type with its members.
template <class Policy, class Blocks>
class Scheduler {
  static_assert(SchedulingPolicyLike<Policy, Blocks>,
                "'Policy' must be default-constructible and have a static or const member "
                "plan(const SchedulerView&, const Blocks&, const BatchConfig&) that returns a "
                "StepPlan");

 public:
  /// Throws ConfigError when `config` is out of range.
  Scheduler(const BatchConfig& config, Blocks blocks)
      : config_(config), blocks_(std::move(blocks)) {
    validate(config_);
  }

  /// Most tokens, prompt and generated, that a sequence can reach with the whole pool to itself:
  /// one more than the pool holds, because the last token is sampled and never computed.
  [[nodiscard]] std::int32_t capacity_tokens() const {
    const std::int64_t tokens = std::int64_t{blocks_.num_blocks()} * Blocks::block_size() + 1;
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max()));
  }

  /// True if a prompt of `num_tokens` can be computed and yield at least one token.
  [[nodiscard]] bool can_ever_fit(std::int32_t num_tokens) const {
    return num_tokens < capacity_tokens();
  }

  /// Puts `s` at the end of the waiting queue. `s` is fresh but for its id, tokens,
  /// num_prompt_tokens and max_total_tokens. Throws RequestError, and does not take it, when it
  /// has no tokens, no room for one more, or could outgrow the pool: the caller lowers
  /// max_total_tokens to `capacity_tokens()` first.
  void add(Sequence& s) {
    check<RequestError>(s.num_tokens() >= 1 && s.num_prompt_tokens == s.num_tokens(), "request ",
                        s.id, ": the prompt must have at least one token, and num_prompt_tokens = ",
                        s.num_prompt_tokens, " must count its ", s.num_tokens());
    check<RequestError>(can_ever_fit(s.num_tokens()), "request ", s.id, ": a prompt of ",
                        s.num_tokens(), " tokens does not fit into the KV cache, which holds ",
                        capacity_tokens() - 1);
    check<RequestError>(
        s.max_total_tokens > s.num_tokens() && s.max_total_tokens <= capacity_tokens(), "request ",
        s.id, ": max_total_tokens must be in (", s.num_tokens(), ", ", capacity_tokens(),
        "], the prompt's length and what the KV cache has room for, got ", s.max_total_tokens);
    check(s.status == SequenceStatus::waiting && s.arrival == 0, "request ", s.id,
          " was added before");
    s.arrival = ++num_arrivals_;
    waiting_.push_back(&s);
  }

  /// Ends `s` now, with FinishReason::abort. During a step (after `begin`) its blocks are given
  /// back by `commit`, and it counts as running until then. Finished sequences are left alone.
  /// O(queue length).
  void abort(Sequence& s) {
    if (s.status == SequenceStatus::finished) return;
    if (s.status == SequenceStatus::waiting) {
      std::erase(waiting_, &s);
    } else if (!in_flight_) {
      std::erase(running_, &s);
      drop_blocks(s, 0);
    }
    s.status = SequenceStatus::finished;
    s.finish_reason = FinishReason::abort;
  }

  /// What the next step should compute. Pure; valid until the queues change. Empty only if there
  /// is no work.
  [[nodiscard]] StepPlan schedule() const {
    check(!in_flight_, "schedule: the step before was neither committed nor cancelled");
    return Policy{}.plan(SchedulerView{running_, waiting_}, blocks_, config_);
  }

  /// Applies `plan`, as `schedule` just made it: the preempted give back their blocks and wait, the
  /// admitted adopt their prefix-cache hits, and everybody in the plan gets the blocks for its
  /// range. Throws Error, having changed nothing, when the plan does not fit the queues. That the
  /// blocks suffice is the policy's promise, which PlanBuilder keeps; a plan that breaks it is an
  /// Error too, and `cancel` then restores order.
  void begin(const StepPlan& plan) {
    check(!in_flight_, "begin: the step before was neither committed nor cancelled");
    check_plan<Blocks>(plan, running_.size(), config_);
    in_flight_ = true;
    for (Sequence* s : plan.preempted) preempt(*s);
    // All adoptions come before the first allocation, which might evict what was found.
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->status == SequenceStatus::waiting) admit(p);
    }
    for (const PlannedSequence& p : plan.sequences) {
      for (std::int32_t i = 0; i < p.num_new_blocks; ++i) {
        const std::optional<BlockId> block = blocks_.allocate();
        check(block.has_value(), "begin: the plan needs more blocks than are free");
        p.sequence->block_table.push_back(*block);
      }
    }
  }

  /// Ends the step that `begin(plan)` started, when keys and values of all its ranges are in the
  /// pool. `outcomes` has one entry for every sequence that samples, in plan order; entries of
  /// sequences that were aborted meanwhile are ignored and may be left out.
  ///
  /// A sequence finishes with the reason of its outcome, or with FinishReason::length when it
  /// reaches max_total_tokens. Throws Error, having changed nothing, when plan, step and outcomes
  /// do not belong together.
  void commit(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
    check(in_flight_, "commit: no step has begun");
    check_outcomes(plan, outcomes);
    std::size_t next = 0;
    for (const PlannedSequence& p : plan.sequences) {
      Sequence& s = *p.sequence;
      const bool has_outcome = next < outcomes.size() && outcomes[next].sequence == &s;
      const StepOutcome* outcome = has_outcome ? &outcomes[next++] : nullptr;
      if (s.status == SequenceStatus::finished) continue;
      blocks_.publish(s.block_table, s.tokens, p.begin, p.end);
      s.num_computed_tokens = p.end;
      if (outcome != nullptr) append(s, *outcome);
    }
    end_step();
  }

  /// Ends the step that `begin(plan)` started without its results, after a failure: its sequences
  /// are as before, those it admitted stay admitted and those it preempted wait.
  void cancel(const StepPlan& plan) {
    check(in_flight_, "cancel: no step has begun");
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->status != SequenceStatus::running) continue;
      drop_blocks(*p.sequence, Blocks::blocks_for(p.sequence->num_computed_tokens));
    }
    end_step();
  }

  [[nodiscard]] bool has_work() const { return !waiting_.empty() || !running_.empty(); }
  [[nodiscard]] std::int32_t num_waiting() const {
    return static_cast<std::int32_t>(waiting_.size());
  }
  [[nodiscard]] std::int32_t num_running() const {
    return static_cast<std::int32_t>(running_.size());
  }
  /// Preemptions since the scheduler was made.
  [[nodiscard]] std::int64_t num_preemptions() const { return num_preemptions_; }
  [[nodiscard]] const BatchConfig& config() const { return config_; }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }

  /// Throws Error naming the broken invariant. O(blocks + tokens).
  void check_invariants() const;

 private:
  void preempt(Sequence& s) {
    std::erase(running_, &s);
    drop_blocks(s, 0);
    s.status = SequenceStatus::waiting;
    s.num_computed_tokens = 0;
    ++s.num_preemptions;
    ++num_preemptions_;
    // Back to its place in the order of arrival: the front, for all who wait came later.
    const auto later = std::find_if(waiting_.begin(), waiting_.end(), [&](const Sequence* other) {
      return other->arrival > s.arrival;
    });
    waiting_.insert(later, &s);
  }

  void admit(const PlannedSequence& p) {
    Sequence& s = *p.sequence;
    const auto place = std::find(waiting_.begin(), waiting_.end(), &s);
    check(place != waiting_.end(), "begin: request ", s.id, " is not in the waiting queue");
    waiting_.erase(place);
    running_.push_back(&s);
    blocks_.adopt(p.cached_blocks, s.num_tokens());
    s.block_table.assign(p.cached_blocks.begin(), p.cached_blocks.end());
    s.status = SequenceStatus::running;
    s.num_computed_tokens = p.begin;
    if (s.num_preemptions == 0) s.num_cached_tokens = p.begin;
  }

  static void append(Sequence& s, const StepOutcome& outcome) {
    s.tokens.push_back(outcome.token);
    s.finish_reason = outcome.finish_reason;
    if (s.finish_reason == FinishReason::none && s.num_tokens() >= s.max_total_tokens)
      s.finish_reason = FinishReason::length;
    if (s.finish_reason != FinishReason::none) s.status = SequenceStatus::finished;
  }

  /// Gives back the blocks of `s` behind the first `num_kept`.
  void drop_blocks(Sequence& s, std::int32_t num_kept) {
    const std::span<const BlockId> table(s.block_table);
    blocks_.release(table.subspan(static_cast<std::size_t>(num_kept)));
    s.block_table.resize(static_cast<std::size_t>(num_kept));
  }

  void end_step() {
    in_flight_ = false;
    std::erase_if(running_, [this](Sequence* s) {
      if (s->status != SequenceStatus::finished) return false;
      drop_blocks(*s, 0);
      return true;
    });
  }

  BatchConfig config_;
  Blocks blocks_;
  std::vector<Sequence*> running_;  ///< in the order of admission
  std::deque<Sequence*> waiting_;   ///< in the order of arrival
  std::uint64_t num_arrivals_ = 0;
  std::int64_t num_preemptions_ = 0;
  bool in_flight_ = false;
};

template <class Policy, class Blocks>
void Scheduler<Policy, Blocks>::check_invariants() const {
  blocks_.check_invariants();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Sequence& s = *waiting_[i];
    check(
        s.status == SequenceStatus::waiting && s.block_table.empty() && s.num_computed_tokens == 0,
        "scheduler: request ", s.id, " waits, but holds blocks or has another status");
    check(i == 0 || waiting_[i - 1]->arrival < s.arrival, "scheduler: request ", s.id,
          " waits out of order");
  }
  std::vector<std::int32_t> ref_counts(static_cast<std::size_t>(blocks_.num_blocks()), 0);
  std::vector<const Sequence*> last_holder(ref_counts.size(), nullptr);
  for (const Sequence* s : running_) {
    check(in_flight_ || s->status == SequenceStatus::running, "scheduler: request ", s->id,
          " is in the running queue with another status");
    const auto held = static_cast<std::int32_t>(s->block_table.size());
    const std::int32_t needed = Blocks::blocks_for(s->num_computed_tokens);
    check(in_flight_ ? held >= needed : held == needed, "scheduler: request ", s->id, " holds ",
          held, " blocks for ", s->num_computed_tokens, " computed tokens");
    check(s->num_computed_tokens < s->num_tokens(), "scheduler: request ", s->id, " runs with ",
          s->num_computed_tokens, " of ", s->num_tokens(), " tokens computed");
    for (std::size_t i = 0; i < s->block_table.size(); ++i) {
      const BlockId block = s->block_table[i];
      check(std::exchange(last_holder[static_cast<std::size_t>(block)], s) != s,
            "scheduler: request ", s->id, " holds block ", block, " twice");
      ++ref_counts[static_cast<std::size_t>(block)];
      if (!blocks_.is_published(block)) continue;
      const std::span<const TokenId> published = blocks_.published_tokens(block);
      check((i + 1) * published.size() <= static_cast<std::size_t>(s->num_computed_tokens) &&
                std::equal(published.begin(), published.end(),
                           s->tokens.begin() + static_cast<std::ptrdiff_t>(i * published.size())),
            "scheduler: block ", block, " of request ", s->id, " is published as other tokens");
    }
  }
  for (BlockId block = 0; block < blocks_.num_blocks(); ++block) {
    check(ref_counts[static_cast<std::size_t>(block)] == blocks_.ref_count(block),
          "scheduler: block ", block, " is in ", ref_counts[static_cast<std::size_t>(block)],
          " block tables, but has reference count ", blocks_.ref_count(block));
  }
  check(running_.size() <= static_cast<std::size_t>(config_.max_num_seqs),
        "scheduler: ", running_.size(), " sequences run, at most ", config_.max_num_seqs, " may");
}

}  // namespace nanovllm
