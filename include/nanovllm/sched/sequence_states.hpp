#pragma once
/// The state of each sequence that the scheduler has: waiting, running, awaiting a choice,
/// finished.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// Moves sequences from one state to the next and hands their blocks over with them:
///
///     add → waiting ⇄ running → finished
///              ⇅         ⇅
///          awaiting_choice             (see Choices)
///
/// It knows nothing of steps; `Scheduler` decides who moves when. Nothing here fails: what could,
/// the scheduler checks before it moves anything.
template <class Policy, class Blocks>
class SequenceStates {
 public:
  explicit SequenceStates(Blocks blocks) : blocks_(std::move(blocks)), outside_(blocks_) {}
  SequenceStates(const SequenceStates&) = delete;
  SequenceStates& operator=(const SequenceStates&) = delete;

  /// `s`, which is in no queue, waits, for a choice or for its turn.
  void wait(Sequence& s) noexcept {
    s.status = s.awaits_choice ? SequenceStatus::awaiting_choice : SequenceStatus::waiting;
    if (s.awaits_choice) {
      ++num_awaiting_choice_;
    } else {
      waiting_.insert(s);
    }
  }

  /// `s`, which waits, does so no more.
  void leave_queue(Sequence& s) noexcept {
    if (s.status == SequenceStatus::awaiting_choice) {
      --num_awaiting_choice_;
    } else {
      waiting_.erase(s);
    }
  }

  /// The sequence of `p`, which waits, runs from now on after the tokens of `p.prefix`.
  void admit(const PlannedSequence& p) {
    Sequence& s = *p.sequence;
    waiting_.erase(s);
    running_.push_back(&s);
    if (p.fork_of == nullptr) {
      blocks_.adopt(p.prefix, s.num_tokens());
    } else {
      blocks_.share(p.prefix);
    }
    s.block_table.assign(p.prefix.blocks.begin(), p.prefix.blocks.end());
    s.status = SequenceStatus::running;
    s.num_computed_tokens = p.begin;
    s.num_published_tokens = p.first_unpublished(Blocks::block_size());
    s.prefix_memo = {};
    if (s.num_preemptions == 0) s.num_cached_tokens = p.begin;
  }

  /// `s`, which runs, gives back its blocks and waits again, where it was in the order of arrival.
  void withdraw(Sequence& s) noexcept {
    std::erase(running_, &s);
    drop_blocks(s, 0);
    s.num_computed_tokens = 0;
    wait(s);
  }

  /// The same, and it counts as a preemption.
  void preempt(Sequence& s) noexcept {
    withdraw(s);
    ++s.num_preemptions;
    ++num_preemptions_;
  }

  /// Marks `s` as done. If it was running, `drop_finished` must follow.
  void finish(Sequence& s, FinishReason reason) noexcept {
    if (s.status == SequenceStatus::running) {
      ++num_finished_;
    } else {
      leave_queue(s);
      outside_.cut(s, 0);
    }
    s.status = SequenceStatus::finished;
    s.finish_reason = reason;
  }

  /// Those that are done leave the running queue and give back their blocks, or leave them to those
  /// that they continue.
  void drop_finished() noexcept {
    if (std::exchange(num_finished_, 0) == 0) return;
    std::erase_if(running_, [this](Sequence* s) {
      if (s->status != SequenceStatus::finished) return false;
      for (const auto& owner : owners_) owner->take_from(*s);
      drop_blocks(*s, 0);
      return true;
    });
  }

  /// Gives back the blocks of `s` after the first `num_kept`.
  void drop_blocks(Sequence& s, std::int32_t num_kept) noexcept {
    const std::span<const BlockId> table(s.block_table);
    blocks_.release(table.subspan(static_cast<std::size_t>(num_kept)), block_priority<Policy>(s));
    s.block_table.resize(static_cast<std::size_t>(num_kept));
  }

  /// The range of `p` is computed, and what is before `end` stays; the rest is to be computed
  /// again. If the sequence waits, the step after this one has preempted it: its blocks are gone,
  /// or kept outside with all that this step has written.
  void settle(const PlannedSequence& p, std::int32_t end) noexcept {
    Sequence& s = *p.sequence;
    if (s.status != SequenceStatus::running) return outside_.cut(s, end);
    if (end < p.end) {
      s.num_computed_tokens = end;
      drop_blocks(s, Blocks::blocks_for(end));
    }
    publish(s, p.first_unpublished(Blocks::block_size()), end);
  }

  /// What the pools hold is gone: all that run wait again, and nothing is kept for any sequence.
  void forget_kv() {
    while (!running_.empty()) preempt(*running_.back());
    for (Sequence* s : waiting_) outside_.cut(*s, 0);
    for (const auto& owner : owners_) owner->give_up_all();
    blocks_.forget();
  }

  // ---- What there is ----

  [[nodiscard]] std::vector<Sequence*>& running() { return running_; }
  [[nodiscard]] const std::vector<Sequence*>& running() const { return running_; }
  [[nodiscard]] const WaitingQueue& waiting() const { return waiting_; }
  [[nodiscard]] std::int32_t num_running() const {
    return static_cast<std::int32_t>(running_.size());
  }
  /// Those that await a choice included.
  [[nodiscard]] std::int32_t num_waiting() const {
    return static_cast<std::int32_t>(waiting_.size()) + num_awaiting_choice_;
  }
  [[nodiscard]] Blocks& blocks() { return blocks_; }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }
  [[nodiscard]] BlockOwners& owners() { return owners_; }
  [[nodiscard]] const BlockOwners& owners() const { return owners_; }
  [[nodiscard]] Outside<Blocks>& outside() { return outside_; }
  [[nodiscard]] const Outside<Blocks>& outside() const { return outside_; }
  /// Another number at every call, to mark sequences with.
  [[nodiscard]] std::uint64_t next_mark() noexcept { return ++num_marks_; }
  [[nodiscard]] std::int64_t num_preemptions() const { return num_preemptions_; }
  /// Times that the prefix cache threw when it was told of computed tokens.
  [[nodiscard]] std::int64_t num_failed_inserts() const { return num_failed_inserts_; }

 private:
  /// Tells the prefix cache of tokens [begin, end) of `s`, which are computed.
  void publish(Sequence& s, std::int32_t begin, std::int32_t end) noexcept {
    s.num_published_tokens = end;
    try {
      blocks_.publish(s.block_table, s.tokens, begin, end, s.salt);
    } catch (...) {
      ++num_failed_inserts_;
    }
  }

  Blocks blocks_;
  BlockOwners owners_;  ///< of further blocks
  Outside<Blocks> outside_;
  std::vector<Sequence*> running_;  ///< in the order of admission
  WaitingQueue waiting_;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_failed_inserts_ = 0;
  std::uint64_t num_marks_ = 0;
  int num_finished_ = 0;  ///< in running_ for the moment
  std::int32_t num_awaiting_choice_ = 0;
};

}  // namespace nanovllm
