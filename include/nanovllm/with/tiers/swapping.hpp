#pragma once
/// How a preempted sequence goes to the host's pool, and what becomes of it there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/plan_checks.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/queue_checks.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/with/tiers/host_pool.hpp"

namespace nanovllm {

/// Counters of sequences that were preempted, since the scheduler was made. What is copied out
/// comes back, is dropped, or is still there: num_out = num_in + num_dropped + the sequences that
/// wait and have something in the host's pool. `Swaps::check_invariants` checks it.
struct SwapStats {
  std::int64_t num_out = 0;        ///< copied to the host's pool, in a step that was not cancelled
  std::int64_t num_in = 0;         ///< of them, copied back, likewise
  std::int64_t num_dropped = 0;    ///< of them, never to come back: see `keep`
  std::int64_t num_fallbacks = 0;  ///< to be copied, but had no room, or their step was cancelled
};

/// Sequences in the host's pool of `Blocks`. Where there is no such pool, nothing is swapped.
template <class Blocks>
class Swaps {
 public:
  explicit Swaps(Blocks&) {}

  template <class Preemption>
  void swap_out(Sequence&, StepPlan&, const Preemption&) noexcept {}
  void begin(StepPlan&) noexcept {}
  void cancel(const StepPlan&) noexcept {}
  void keep(Sequence&, std::int32_t) noexcept {}
  [[nodiscard]] const SwapStats& stats() const {
    static constexpr SwapStats kNone{};
    return kNone;
  }
  void check_invariants(std::span<Sequence* const>, const WaitingQueue&) const {}
};

template <HasHostPool Blocks>
class Swaps<Blocks> {
 public:
  explicit Swaps(Blocks& blocks) : blocks_(blocks) {}

  /// Plans to copy the blocks of `s`, which is about to be preempted, to the host's pool, if
  /// `preemption` wants it and there is room for all of them. Beams are computed again: what is in
  /// their blocks may be another beam's by the next choice, and siblings mostly have it.
  /// @param plan  has room for the copies.
  template <class Preemption>
  void swap_out(Sequence& s, StepPlan& plan, const Preemption& preemption) noexcept {
    if constexpr (SwapsSequences<Preemption>) {
      if (!preemption.swaps(s) || s.is_beam || s.block_table.empty()) return;
      if (!blocks_.allocate_host(s.block_table.size(), s.host_table)) {
        ++stats_.num_fallbacks;
        return;
      }
      for (std::size_t i = 0; i < s.block_table.size(); ++i)
        plan.copies_down.push_back({s.block_table[i], s.host_table[i]});
      s.num_swapped_tokens = s.num_computed_tokens;
      ++stats_.num_out;
    }
  }

  /// All copies of `plan`, which begins, are listed. What its sequences have in the host's pool is
  /// copied back by them, or is of no use, for there was more elsewhere.
  void begin(StepPlan& plan) noexcept {
    for (PlannedSequence& p : plan.sequences) {
      p.is_swapped_in = is_swapped_in(p.prefix, *p.sequence);
      if (!cut(*p.sequence, 0)) continue;
      ++(p.is_swapped_in ? stats_.num_in : stats_.num_dropped);
    }
    blocks_.end_copies();
  }

  /// The copies of `plan` may not have been made. What it swapped out or saved was not; what it
  /// swapped in is lost.
  void cancel(const StepPlan& plan) noexcept {
    for (const PlannedSequence& p : plan.sequences) {
      if (p.is_swapped_in) --stats_.num_in, ++stats_.num_dropped;
    }
    for (Sequence* s : plan.preempted) {
      if (cut(*s, 0)) --stats_.num_out, ++stats_.num_fallbacks;
    }
    blocks_.forget_saved(plan.copies_down);
  }

  /// Of what was swapped out of `s`, only the first `num_kept` tokens are kept: it has ended, or
  /// guesses were wrong, or the pool's contents are lost.
  void keep(Sequence& s, std::int32_t num_kept) noexcept {
    stats_.num_dropped += cut(s, num_kept) ? 1 : 0;
  }

  [[nodiscard]] const SwapStats& stats() const { return stats_; }

  /// Throws Error unless every block of the host's pool that is taken has one owner: a sequence
  /// that waits, the prefix cache, or a load from its tier below; and the counters add up.
  /// O(blocks + sequences).
  void check_invariants(std::span<Sequence* const> running, const WaitingQueue& waiting) const {
    const std::int32_t num_blocks = blocks_.host().num_blocks();
    const std::vector<bool> is_held =
        check_host_tables(running, waiting, num_blocks, Blocks::block_size());
    for (BlockId block = 0; block < num_blocks; ++block) {
      const int num_owners = is_held[static_cast<std::size_t>(block)] +
                             blocks_.tier().contains(block) + blocks_.tier().is_loading(block);
      check(num_owners == (blocks_.host().is_taken(block) ? 1 : 0), "scheduler: block ", block,
            " of the host is ", blocks_.host().is_taken(block) ? "taken" : "free", ", but has ",
            num_owners, " owners");
    }
    const auto num_there = std::count_if(waiting.begin(), waiting.end(), [](const Sequence* s) {
      return s->num_swapped_tokens > 0;
    });
    check(stats_.num_out == stats_.num_in + stats_.num_dropped + num_there, "scheduler: of ",
          stats_.num_out, " sequences that were swapped out ", stats_.num_in, " have come back, ",
          stats_.num_dropped, " were dropped and ", num_there, " are in host memory");
  }

 private:
  /// Gives back what `s` has in the host's pool after its first `num_kept` tokens. Returns whether
  /// it had something and has nothing any more.
  bool cut(Sequence& s, std::int32_t num_kept) noexcept {
    if (num_kept >= s.num_swapped_tokens) return false;
    const auto num_blocks = static_cast<std::size_t>(Blocks::blocks_for(num_kept));
    blocks_.release_host(std::span<const BlockId>(s.host_table).subspan(num_blocks));
    s.host_table.resize(num_blocks);
    s.num_swapped_tokens = num_kept;
    return num_kept == 0;
  }

  Blocks& blocks_;
  SwapStats stats_;
};

}  // namespace nanovllm
