#pragma once
/// Queues of requests, and the steps that serve them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/sched/choices.hpp"
#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/policy/continuous_batching.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"
#include "nanovllm/sched/scheduler_checks.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/sequence_states.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/sched/step_room.hpp"

namespace nanovllm {

/// Owns the queues and the block manager. One step is
///
/// ```cpp
/// StepPlan plan = scheduler.schedule();  // decides, changes nothing
/// scheduler.begin(plan);                 // preempts, adopts, allocates: block tables are set
/// // do the plan's copies of blocks, compute its token ranges, sample
/// scheduler.commit(plan, outcomes);      // publishes, gives tokens, finishes and frees
/// ```
///
/// Each of these calls happens completely or not at all: when one throws, nothing has changed.
///
/// A second step may be scheduled and begun before the first is committed, so that it is ready when
/// the first has been computed. `begin` counts a step's tokens as computed and gives every sequence
/// that samples a pending token (sequence.hpp), so the next plan continues from there; `commit`
/// replaces it by the real token. Two things wait for the commit: publishing of blocks, and the end
/// of sequences by the token drawn. A sequence that ends then may already be in the newer step; its
/// share of that step is ignored.
///
/// Blocks change hands at once, even those that a step under way still writes to: **steps must be
/// computed in the order in which they began**, so the next holder of a block writes to it later.
///
/// Sequences whose tokens are chosen are for Choices, blocks that are kept for sequences to come
/// for a BlockOwner (`owners`), and what is kept outside of the pool for Outside.
///
/// Sequences belong to the caller and must stay where they are from `add` until they are finished
/// and every step that has them is committed or cancelled. Between those calls only the scheduler
/// writes to them. Not thread-safe: one thread calls. It may call `add` and `abort` at any time,
/// except between `schedule` and the reading of the step's block tables.
///
/// @tparam Policy      decides what a step computes; a SchedulingPolicyLike.
/// @tparam Blocks      a BlockManager, or a type with its members.
/// @tparam Preemption  chooses the sequence to preempt when the pool is full; a PreemptionLike.
template <class Policy, class Blocks, class Preemption>
class Scheduler {
  static_assert(SchedulingPolicyLike<Policy, Blocks> && PreemptionLike<Preemption>);
  using States = SequenceStates<Policy, Blocks>;

 public:
  /// Throws ConfigError when `config` is out of range.
  Scheduler(const BatchConfig& config, Blocks blocks)
      : config_(config), states_(std::move(blocks)) {
    validate(config_);
  }

  /// Most tokens, prompt and generated, that a sequence can reach with the whole pool to itself:
  /// one more than the pool holds, because the last token is sampled and never computed.
  [[nodiscard]] std::int32_t capacity_tokens() const {
    const std::int64_t tokens =
        std::int64_t{states_.blocks().num_blocks()} * Blocks::block_size() + 1;
    return static_cast<std::int32_t>(
        std::min<std::int64_t>(tokens, std::numeric_limits<std::int32_t>::max()));
  }

  /// Puts `s` at its place in the waiting queue: the end, unless the policy has an `order`. `s` is
  /// new except for its id, tokens, num_prompt_tokens, max_total_tokens, priority and salt, and
  /// links to a request or conversation. Throws RequestError, and does not take it, if it has no
  /// tokens, no room for one more, or could outgrow the pool: the caller lowers max_total_tokens to
  /// `capacity_tokens()` first.
  void add(Sequence& s) {
    check_request(s, capacity_tokens());
    s.arrival = ++num_arrivals_;
    s.order = order_of<Policy>(s);
    states_.wait(s);
    if (s.continues == nullptr) return;
    for (const auto& owner : states_.owners()) owner->touch(s.continues);
  }

  /// Ends `s` now, with FinishReason::abort, and gives back its blocks. Finished sequences are left
  /// alone. Cannot fail. O(1) if it waits, else O(running sequences).
  void abort(Sequence& s) noexcept {
    if (s.status == SequenceStatus::finished) return;
    s.pending.clear();
    states_.finish(s, FinishReason::abort);
    states_.drop_finished();
  }

  /// Frees blocks or places. Call it repeatedly while `schedule` finds nothing to compute and no
  /// step is under way. Owners lose their blocks first, so that they keep no request from being
  /// served, unless those that await a choice take all places; then these lose theirs. Returns
  /// whether there was anything to free.
  bool free_blocks() noexcept {
    const auto ask = [this](bool (BlockOwner::*free)() noexcept) {
      return std::ranges::any_of(states_.owners(), [&](auto& owner) { return (*owner.*free)(); });
    };
    return (!choices_.take_all(config_.max_num_seqs) && ask(&BlockOwner::evict_one)) ||
           choices_.preempt() || ask(&BlockOwner::give_up_any);
  }

  /// What the next step should compute. Pure; valid until the queues change. Empty only if there is
  /// no work, or none before the step under way is committed, or `free_blocks` must be called.
  [[nodiscard]] StepPlan schedule() const {
    check_room();
    const auto num_ending = static_cast<std::int32_t>(states_.running().size() - num_going_on());
    SchedulerView view{states_.running(), states_.waiting(), num_ending, &Preemption::choose};
    view.prefix_wait_tokens = config_.prefix_wait_tokens;
    view.max_logits = config_.num_logits();
    view.max_tokens = config_.max_num_batched_tokens;
    if (num_ending == 0) return Policy{}.plan(view, states_.blocks(), config_);
    std::vector<Sequence*> running;
    std::copy_if(states_.running().begin(), states_.running().end(), std::back_inserter(running),
                 [this](const Sequence* s) { return goes_on(*s, num_under_way_); });
    view.running = running;
    return Policy{}.plan(view, states_.blocks(), config_);
  }

  /// Applies `plan`, as `schedule` just made it: preempted sequences lose their blocks and wait,
  /// admitted ones adopt their prefix-cache hits, and all sequences in the plan get the blocks for
  /// their ranges. Sets the plan's lists of copies. Throws Error when the plan does not fit the
  /// queues, or needs more blocks than are free; PlanBuilder makes no such plans.
  void begin(StepPlan& plan) {
    check_room();
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->status == SequenceStatus::waiting) states_.outside().check_admitted(p);
    }
    check_plan(plan, num_going_on(), config_, states_.next_mark(), Blocks::block_size());
    check_blocks(plan, states_.blocks());
    make_room(plan, states_.running(), states_.outside());  // nothing after this can fail
    apply(plan);
  }

  /// Ends `plan`, the oldest step that has begun, when keys and values of all its ranges are in the
  /// pool. `outcomes` has one entry for every sequence that samples, in plan order; entries of
  /// sequences that have ended meanwhile are ignored and may be left out.
  ///
  /// A sequence finishes with the reason of its outcome, or with FinishReason::length when it
  /// reaches max_total_tokens. One whose outcome has fewer tokens than it sampled continues after
  /// the last of them. Throws Error if plan, step and outcomes do not belong together. An exception
  /// of the prefix cache costs only its entry; `num_failed_inserts` counts it.
  void commit(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
    check(num_under_way_ > 0, "commit: no step has begun");
    check_outcomes(plan, outcomes);
    make_room(outcomes);
    --num_under_way_;
    std::size_t next = 0;
    for (const PlannedSequence& p : plan.sequences) {
      const bool has_outcome = next < outcomes.size() && outcomes[next].sequence == p.sequence;
      const StepOutcome* outcome = has_outcome ? &outcomes[next++] : nullptr;
      if (p.sequence->status != SequenceStatus::finished) settle(p, outcome);
    }
    states_.drop_finished();
  }

  /// Ends `plan`, the newest step that has begun, without its results, after a failure: its
  /// sequences are as before; those it admitted stay admitted, less the tokens that were to be
  /// copied for them; those that it forked wait again, for the step before may be undone, too; and
  /// those it preempted wait. Nothing is left of what it was to copy outside. Where the step
  /// after it has already filled the places of sequences that were ending, its youngest wait again.
  /// Throws Error when it is not the newest.
  void cancel(const StepPlan& plan) {
    check(num_under_way_ > 0, "cancel: no step has begun");
    check_newest(plan);
    --num_under_way_;
    for (const PlannedSequence& p : plan.sequences) {
      Sequence& s = *p.sequence;
      if (s.status == SequenceStatus::finished) continue;
      if (p.rows.num_outputs() > 0) s.pending.pop_newest(), s.num_guesses = 0;
      if (s.status == SequenceStatus::waiting) continue;  // a step after this one preempted it
      if (p.fork_of != nullptr) {
        states_.withdraw(s);
        continue;
      }
      s.num_computed_tokens = num_uncopied_tokens(p, Blocks::block_size());
      states_.drop_blocks(s, Blocks::blocks_for(s.num_computed_tokens));
    }
    states_.outside().cancel(plan);
    while (num_going_on() > static_cast<std::size_t>(config_.max_num_seqs))
      states_.preempt(*states_.running().back());
  }

  /// What the pools hold is gone: all running sequences wait again, and the prefix cache is empty.
  /// No step may be under way.
  void forget_kv() {
    check(num_under_way_ == 0,
          "forget_kv: a step has begun; it must be committed or cancelled first");
    states_.forget_kv();
  }

  [[nodiscard]] Choices<States>& choices() { return choices_; }
  [[nodiscard]] BlockOwners& owners() { return states_.owners(); }
  [[nodiscard]] const BlockOwners& owners() const { return states_.owners(); }

  [[nodiscard]] bool has_work() const {
    return !states_.waiting().empty() || !states_.running().empty();
  }
  [[nodiscard]] std::int32_t num_waiting() const { return states_.num_waiting(); }
  [[nodiscard]] std::int32_t num_running() const { return states_.num_running(); }
  [[nodiscard]] std::span<Sequence* const> running() const { return states_.running(); }
  [[nodiscard]] std::int64_t num_preemptions() const { return states_.num_preemptions(); }
  /// Times that the prefix cache threw when it was told of computed tokens.
  [[nodiscard]] std::int64_t num_failed_inserts() const { return states_.num_failed_inserts(); }
  [[nodiscard]] const Preemption& preemption() const { return preemption_; }
  [[nodiscard]] const BatchConfig& config() const { return config_; }
  [[nodiscard]] const Blocks& blocks() const { return states_.blocks(); }
  [[nodiscard]] Blocks& blocks() { return states_.blocks(); }

  /// Throws Error naming the broken invariant. O(blocks + sequences).
  void check_invariants() const {
    states_.blocks().check_invariants();
    check_queues(states_.running(), states_.waiting(), states_.owners(),
                 states_.blocks().ref_counts(), Blocks::block_size(), config_, num_under_way_);
    states_.outside().check_invariants(states_.running(), states_.waiting());
  }

 private:
  /// Does what `begin` has checked. Adoptions come first, before anything can be evicted that was
  /// found, and allocations last.
  void apply(StepPlan& plan) noexcept {
    Blocks& blocks = states_.blocks();
    ++num_under_way_;
    for (const PlannedSequence& p : plan.sequences) {
      if (p.sequence->status == SequenceStatus::waiting) states_.admit(p);
    }
    for (Sequence* s : plan.preempted) {
      preemption_.vacate(*s, plan.block_copies);
      states_.outside().preempt(*s, plan, preemption_);
      states_.preempt(*s);
    }
    std::int32_t num_rows = 0;  // of logits
    for (PlannedSequence& p : plan.sequences) {
      Sequence& s = *p.sequence;
      give_blocks(p, plan, blocks, states_.outside());
      s.num_computed_tokens = p.end;
      s.num_guesses = std::min(static_cast<std::int32_t>(s.guesses.size()),
                               std::max(p.rows.count(RowKind::draw) - 1, 0));
      s.pending.push(num_rows + p.rows.count(RowKind::score), p.rows.num_outputs());
      num_rows += p.rows.num_logits();
    }
    release_sources(plan, blocks);
    states_.outside().begin(plan);
  }

  /// `p` is computed; `outcome` is what it sampled, or null.
  void settle(const PlannedSequence& p, const StepOutcome* outcome) noexcept {
    Sequence& s = *p.sequence;
    if (s.scores.count > 0) s.scores = s.scores.within(p.end, s.num_prompt_tokens);
    std::int32_t end = p.end;  // of the range that is computed as it will stay
    if (outcome != nullptr) {
      for (const TokenId token : outcome->tokens) s.tokens.push_back(token);
      s.pending.pop_oldest();
      s.num_guesses = 0;
      if (s.is_chosen) {
        choices_.await_choice(s);
      } else if (s.output == RowKind::draw) {
        end = std::min(p.end, s.num_known_tokens() - 1);
      }
    }
    states_.settle(p, end);
    if (outcome == nullptr) return;
    FinishReason reason = outcome->finish_reason;
    if (reason == FinishReason::none && s.num_known_tokens() >= s.max_total_tokens)
      reason = FinishReason::length;
    if (reason == FinishReason::none) return;
    s.pending.clear();  // the next step may draw one more
    states_.finish(s, reason);
  }

  void check_room() const {
    check(num_under_way_ < kMaxSteps, "scheduler: ", kMaxSteps,
          " steps have begun; the older one must be committed or cancelled first");
  }

  /// Running sequences that are not *ending*: no step under way draws their last token by length.
  [[nodiscard]] std::size_t num_going_on() const noexcept {
    return nanovllm::num_going_on(states_.running(), num_under_way_);
  }

  static constexpr int kMaxSteps = 2;  // under way at the same time

  BatchConfig config_;
  States states_;
  Choices<States> choices_{states_};
  [[no_unique_address]] Preemption preemption_;
  std::uint64_t num_arrivals_ = 0;
  int num_under_way_ = 0;
};

}  // namespace nanovllm
