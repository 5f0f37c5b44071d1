#pragma once
/// The state of each sequence that the scheduler has: waiting, running, awaiting a choice,
/// finished.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/beam_moves.hpp"
#include "nanovllm/sched/held_sequences.hpp"
#include "nanovllm/sched/policy/scheduling_policy.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/sched/swapping.hpp"

namespace nanovllm {

/// Moves sequences from one state to the next and hands their blocks over with them:
///
///     add → waiting ⇄ running → finished
///              ⇅         ⇅
///          awaiting_choice             (beams alone)
///
/// It knows nothing of steps; `Scheduler` decides who moves when. Nothing here fails: what could,
/// the scheduler checks before it moves anything.
template <class Policy, class Blocks>
class SequenceStates {
 public:
  /// @param max_held_blocks  what HeldSequences may keep; half of the pool unless set.
  SequenceStates(Blocks blocks, std::optional<std::int32_t> max_held_blocks)
      : blocks_(std::move(blocks)),
        held_(blocks_.num_blocks(), max_held_blocks.value_or(blocks_.num_blocks() / 2)) {}

  /// `s`, which is in no queue, waits, for a choice or for its turn.
  void wait(Sequence& s) noexcept {
    s.status = s.awaits_choice ? SequenceStatus::awaiting_choice : SequenceStatus::waiting;
    if (s.awaits_choice) {
      ++num_awaiting_choice_;
    } else {
      waiting_.insert(s);
    }
  }

  /// The sequence of `p`, which waits, runs from now on behind the tokens of `p.prefix`.
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
    if (s.status == SequenceStatus::waiting) {
      waiting_.erase(s);
      drop_host_blocks(s, 0, blocks_, swaps_);
    } else if (s.status == SequenceStatus::awaiting_choice) {
      --num_awaiting_choice_;
    } else {
      ++num_finished_;
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
      held_.take_from(*s, blocks_);
      drop_blocks(*s, 0);
      return true;
    });
  }

  /// Gives back the blocks of `s` behind the first `num_kept`.
  void drop_blocks(Sequence& s, std::int32_t num_kept) noexcept {
    const std::span<const BlockId> table(s.block_table);
    blocks_.release(table.subspan(static_cast<std::size_t>(num_kept)), block_priority<Policy>(s));
    s.block_table.resize(static_cast<std::size_t>(num_kept));
  }

  /// Tells the prefix cache of tokens [begin, end) of `s`, which are computed.
  void publish(Sequence& s, std::int32_t begin, std::int32_t end) noexcept {
    s.num_published_tokens = end;
    try {
      blocks_.publish(s.block_table, s.tokens, begin, end, s.salt);
    } catch (...) {
      ++num_failed_inserts_;
    }
  }

  // ---- Beams ----

  /// The candidates of beam `s` are known: there is nothing to compute of it until one is chosen.
  void await_choice(Sequence& s) noexcept {
    if (s.status == SequenceStatus::waiting) waiting_.erase(s);
    s.awaits_choice = true;
    if (s.status == SequenceStatus::waiting) wait(s);
  }

  /// Each beam of `slots` becomes what its parent was when `moves` was made, with one token more.
  void reorder_beams(std::span<const BeamSlot> slots, std::span<BeamMove> moves) noexcept {
    // First everything is held that will be, then what was held goes back.
    for (const BeamMove& move : moves) blocks_.share(move.block_table);
    for (std::size_t i = 0; i < slots.size(); ++i) place_beam(slots[i], moves[i]);
  }

  /// Running beams that await a choice give back their blocks and places, so that those of their
  /// siblings get in that have not drawn yet. Returns whether there were any.
  bool preempt_beams() noexcept {
    const std::int64_t before = num_preemptions_;
    for (std::size_t i = running_.size(); i-- > 0;) {
      if (running_[i]->awaits_choice) preempt(*running_[i]);
    }
    return num_preemptions_ > before;
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
  [[nodiscard]] HeldSequences<Blocks>& held() { return held_; }
  [[nodiscard]] const HeldSequences<Blocks>& held() const { return held_; }
  [[nodiscard]] SwapStats& swaps() { return swaps_; }
  [[nodiscard]] const SwapStats& swaps() const { return swaps_; }
  [[nodiscard]] std::int64_t num_preemptions() const { return num_preemptions_; }
  /// Times that the prefix cache threw when it was told of computed tokens.
  [[nodiscard]] std::int64_t num_failed_inserts() const { return num_failed_inserts_; }

 private:
  void place_beam(const BeamSlot& slot, BeamMove& move) noexcept {
    Sequence& s = *slot.sequence;
    const bool stays = slot.parent == &s;
    if (!stays) {
      drop_blocks(s, 0);
      take_over(s, move);
    }
    s.tokens.push_back(slot.token);
    s.awaits_choice = false;
    if (s.status == SequenceStatus::awaiting_choice) {
      --num_awaiting_choice_;
      wait(s);
    } else if (s.block_table.empty()) {
      preempt(s);  // as its parent was
    }
  }

  Blocks blocks_;
  HeldSequences<Blocks> held_;
  std::vector<Sequence*> running_;  ///< in the order of admission
  WaitingQueue waiting_;
  std::int64_t num_preemptions_ = 0;
  std::int64_t num_failed_inserts_ = 0;
  SwapStats swaps_;
  int num_finished_ = 0;  ///< in running_ for the moment
  std::int32_t num_awaiting_choice_ = 0;
};

}  // namespace nanovllm
