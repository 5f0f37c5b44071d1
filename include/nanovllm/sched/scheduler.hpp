#pragma once
/// Queues of requests, and the steps that serve them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
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
///     scheduler.commit(plan, outcomes);       // publishes, gives tokens, finishes and frees
///
/// A second step may be scheduled and begun before the first is committed: while one is computed,
/// the next is made ready behind it. `begin` counts a step's tokens as computed and appends a
/// pending token (sequence.hpp) to every sequence that samples, so the next plan goes on from
/// there; `commit` puts the real token in its place. Two things wait for the commit: what blocks
/// are published as, and what ends with the token drawn. A sequence that has ended by then may be
/// in the newer step already; its share of that is ignored.
///
/// Blocks change hands at once, also those that a step under way still writes to: **steps must be
/// computed in the order in which they began**, so whoever gets a block writes to it later.
///
/// Sequences belong to the caller and must stay where they are from `add` until they are finished
/// and every step that has them is committed or cancelled. Between those calls only the scheduler
/// writes to them. Not thread-safe: one thread calls, and may call `add` and `abort` at any time
/// but between `schedule` and when the step's block tables have been read.
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

  /// Ends `s` now, with FinishReason::abort, and gives back its blocks. Finished sequences are left
  /// alone. O(queue length).
  void abort(Sequence& s) {
    if (s.status == SequenceStatus::finished) return;
    while (s.has_pending_token()) s.tokens.pop_back();
    finish(s, FinishReason::abort);
    drop_finished();
  }

  /// What the next step should compute. Pure; valid until the queues change. Empty only if there
  /// is no work, or none before the step under way is committed.
  [[nodiscard]] StepPlan schedule() const {
    check_room();
    const auto num_ending = static_cast<std::int32_t>(running_.size() - num_going_on());
    if (num_ending == 0) return Policy{}.plan(SchedulerView{running_, waiting_}, blocks_, config_);
    std::vector<Sequence*> running;
    std::remove_copy_if(running_.begin(), running_.end(), std::back_inserter(running), is_ending);
    return Policy{}.plan(SchedulerView{running, waiting_, num_ending}, blocks_, config_);
  }

  /// Applies `plan`, as `schedule` just made it: the preempted give back their blocks and wait, the
  /// admitted adopt their prefix-cache hits, and everybody in the plan gets the blocks for its
  /// range. Throws Error, having changed nothing, when the plan does not fit the queues. That the
  /// blocks suffice is the policy's promise, which PlanBuilder keeps; a plan that breaks it is an
  /// Error too, and `cancel` then restores order.
  void begin(const StepPlan& plan) {
    check_room();
    check_plan<Blocks>(plan, num_going_on(), config_);
    ++num_under_way_;
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
    std::int32_t num_samples = 0;
    for (const PlannedSequence& p : plan.sequences) {
      p.sequence->num_computed_tokens = p.end;
      if (p.samples) p.sequence->tokens.push_back(pending_token(num_samples++));
    }
  }

  /// Ends `plan`, the oldest step that has begun, when keys and values of all its ranges are in the
  /// pool. `outcomes` has one entry for every sequence that samples, in plan order; entries of
  /// sequences that have ended meanwhile are ignored and may be left out.
  ///
  /// A sequence finishes with the reason of its outcome, or with FinishReason::length when it
  /// reaches max_total_tokens. Throws Error, having changed nothing, when plan, step and outcomes
  /// do not belong together.
  void commit(const StepPlan& plan, std::span<const StepOutcome> outcomes) {
    check(num_under_way_ > 0, "commit: no step has begun");
    check_outcomes(plan, outcomes);
    --num_under_way_;
    std::size_t next = 0;
    for (const PlannedSequence& p : plan.sequences) {
      Sequence& s = *p.sequence;
      const bool has_outcome = next < outcomes.size() && outcomes[next].sequence == &s;
      const StepOutcome* outcome = has_outcome ? &outcomes[next++] : nullptr;
      if (s.status == SequenceStatus::finished) continue;
      // If it waits, the step behind this one has preempted it, and its blocks are gone.
      if (s.status == SequenceStatus::running)
        blocks_.publish(s.block_table, s.tokens, p.begin, p.end);
      if (outcome != nullptr) append_token(s, p.end, *outcome);
    }
    drop_finished();
  }

  /// Ends `plan`, the newest step that has begun, without its results, after a failure: its
  /// sequences are as before, those it admitted stay admitted and those it preempted wait. Where
  /// the step behind has already filled the places of sequences that were ending, its youngest
  /// wait again.
  void cancel(const StepPlan& plan) {
    check(num_under_way_ > 0, "cancel: no step has begun");
    check_newest(plan);
    --num_under_way_;
    for (const PlannedSequence& p : plan.sequences) {
      Sequence& s = *p.sequence;
      if (s.status == SequenceStatus::finished) continue;
      if (s.num_tokens() > p.end && s.has_pending_token()) s.tokens.pop_back();
      if (s.status == SequenceStatus::waiting) continue;  // a step behind this one preempted it
      s.num_computed_tokens = p.begin;
      drop_blocks(s, Blocks::blocks_for(p.begin));
    }
    while (num_going_on() > static_cast<std::size_t>(config_.max_num_seqs))
      preempt(*running_.back());
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
  void check_pending_tokens(const Sequence& s) const;

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

  /// Token `position` of `s`, pending until now, is drawn.
  void append_token(Sequence& s, std::int32_t position, const StepOutcome& outcome) {
    s.tokens[static_cast<std::size_t>(position)] = outcome.token;
    FinishReason reason = outcome.finish_reason;
    if (reason == FinishReason::none && position + 1 >= s.max_total_tokens)
      reason = FinishReason::length;
    if (reason == FinishReason::none) return;
    s.tokens.resize(static_cast<std::size_t>(position) + 1);  // the step behind may draw one more
    finish(s, reason);
  }

  /// Marks `s` as done. If it was running, `drop_finished` must follow.
  void finish(Sequence& s, FinishReason reason) {
    if (s.status == SequenceStatus::waiting) {
      std::erase(waiting_, &s);
    } else {
      ++num_finished_;
    }
    s.status = SequenceStatus::finished;
    s.finish_reason = reason;
  }

  /// Those that are done leave the running queue and give back their blocks.
  void drop_finished() {
    if (std::exchange(num_finished_, 0) == 0) return;
    std::erase_if(running_, [this](Sequence* s) {
      if (s->status != SequenceStatus::finished) return false;
      drop_blocks(*s, 0);
      return true;
    });
  }

  /// Gives back the blocks of `s` behind the first `num_kept`.
  void drop_blocks(Sequence& s, std::int32_t num_kept) {
    const std::span<const BlockId> table(s.block_table);
    blocks_.release(table.subspan(static_cast<std::size_t>(num_kept)));
    s.block_table.resize(static_cast<std::size_t>(num_kept));
  }

  void check_room() const {
    check(num_under_way_ < kMaxSteps, "scheduler: ", kMaxSteps,
          " steps have begun; the older one must be committed or cancelled first");
  }

  /// A step under way draws the last token that it may have.
  static bool is_ending(const Sequence* s) { return s->is_complete(); }

  /// Running sequences that are not ending.
  [[nodiscard]] std::size_t num_going_on() const {
    if (num_under_way_ == 0) return running_.size();
    return running_.size() -
           static_cast<std::size_t>(std::count_if(running_.begin(), running_.end(), is_ending));
  }

  static constexpr int kMaxSteps = 2;  // under way at the same time

  BatchConfig config_;
  Blocks blocks_;
  std::vector<Sequence*> running_;  ///< in the order of admission
  std::deque<Sequence*> waiting_;   ///< in the order of arrival
  std::uint64_t num_arrivals_ = 0;
  std::int64_t num_preemptions_ = 0;
  int num_under_way_ = 0;
  int num_finished_ = 0;  ///< in running_ for the moment
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
    check_pending_tokens(s);
  }
  std::vector<std::int32_t> ref_counts(static_cast<std::size_t>(blocks_.num_blocks()), 0);
  std::vector<const Sequence*> last_holder(ref_counts.size(), nullptr);
  for (const Sequence* s : running_) {
    check(s->status == SequenceStatus::running, "scheduler: request ", s->id,
          " is in the running queue with another status");
    const auto held = static_cast<std::int32_t>(s->block_table.size());
    check(held == Blocks::blocks_for(s->num_computed_tokens), "scheduler: request ", s->id,
          " holds ", held, " blocks for ", s->num_computed_tokens, " computed tokens");
    check_pending_tokens(*s);
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
  check(num_going_on() <= static_cast<std::size_t>(config_.max_num_seqs),
        "scheduler: ", num_going_on(), " sequences run, at most ", config_.max_num_seqs, " may");
}

/// Pending tokens are the last ones, at most one for each step under way.
template <class Policy, class Blocks>
void Scheduler<Policy, Blocks>::check_pending_tokens(const Sequence& s) const {
  const auto num_pending = std::count_if(s.tokens.begin(), s.tokens.end(), is_pending);
  check(num_pending <= num_under_way_, "scheduler: request ", s.id, " has ", num_pending,
        " pending tokens in ", num_under_way_, " steps");
  check(std::none_of(s.tokens.begin(), s.tokens.end() - num_pending, is_pending),
        "scheduler: request ", s.id, " has a pending token that is not among the last");
  check(s.num_tokens() <= s.max_total_tokens && (num_pending > 0 || !s.is_complete()),
        "scheduler: request ", s.id, " goes on with ", s.num_tokens(), " of ", s.max_total_tokens,
        " tokens");
}

}  // namespace nanovllm
