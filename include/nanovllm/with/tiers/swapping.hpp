#pragma once
/// How a preempted sequence goes to the host's pool, and what becomes of it there.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/outside.hpp"
#include "nanovllm/sched/policy/preemption.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"
#include "nanovllm/sched/step_room.hpp"
#include "nanovllm/with/tiers/host_pool.hpp"

namespace nanovllm {

/// Preempts the sequence that came last; it waits in host memory (`HostKv`):
/// its blocks are copied twice over the bus, and none of its tokens is computed again.
struct SwapPreemption : RecomputePreemption {
  [[nodiscard]] static bool swaps(const Sequence&) noexcept { return true; }
};

static_assert(PreemptionLike<SwapPreemption> && SwapsSequences<SwapPreemption>);

/// Counters of sequences that were preempted, since the block manager was made. What is copied out
/// comes back, is dropped, or is still there: num_out = num_in + num_dropped + the sequences that
/// wait and have something in the host's pool. `Outside::check_invariants` checks it.
struct SwapStats {
  std::int64_t num_out = 0;        ///< copied to the host's pool, in a step that was not cancelled
  std::int64_t num_in = 0;         ///< of them, copied back, likewise
  std::int64_t num_dropped = 0;    ///< of them, never to come back: see `Outside::cut`
  std::int64_t num_fallbacks = 0;  ///< to be copied, but had no room, or their step was cancelled
};

/// Sequences in the host's pool of `Blocks`, and what a step takes from there.
template <HasHostPool Blocks>
class Outside<Blocks> {
 public:
  static constexpr bool kKeepsSequences = true;

  explicit Outside(Blocks& blocks) : blocks_(blocks) {}

  /// Throws Error unless the blocks of the host that `p`, which is to be admitted, goes on in are
  /// its sequence's own or in the prefix cache.
  void check_admitted(const PlannedSequence& p) const {
    const PrefixMatch& prefix = p.prefix;
    if (prefix.outside.empty()) return;
    const Sequence& s = *p.sequence;
    const bool is_own = is_resumed(prefix, s);
    const std::int32_t behind = prefix.num_tokens - prefix.num_shared_tokens(Blocks::block_size());
    const auto in_host = static_cast<std::int32_t>(prefix.outside.size()) * Blocks::block_size();
    check(!prefix.copy_tail && (behind == in_host || is_own), "begin: request ", s.id,
          ", of which ", s.kept.num_tokens, " tokens are in ", s.kept.blocks.size(),
          " blocks of the host, is to go on behind ", prefix.num_tokens, " tokens, ", behind,
          " of them in ", prefix.outside.size(), " blocks of the host");
    if (!is_own) blocks_.check_in_tier(prefix.outside);
  }

  /// Makes room for what is copied to the host.
  void make_room(StepPlan& plan) const {
    if (blocks_.host().num_blocks() == 0) return;
    std::size_t num_down = 0;
    for (const PlannedSequence& p : plan.sequences)
      num_down += static_cast<std::size_t>(Blocks::blocks_for(p.end));
    for (Sequence* s : plan.preempted) {
      num_down += s->block_table.size();
      grow(s->kept.blocks, s->block_table.size());
    }
    grow(plan.copies_down, num_down);
  }

  [[nodiscard]] std::optional<BlockId> allocate(StepPlan& plan) noexcept {
    return blocks_.allocate(&plan.copies_down);
  }

  /// Plans to copy the blocks of `s`, which is about to be preempted, to the host's pool, if
  /// `preemption` wants it and there is room for all of them. Beams are computed again: what is in
  /// their blocks may be another beam's by the next choice, and siblings mostly have it.
  /// @param plan  has room for the copies.
  template <class Preemption>
  void preempt(Sequence& s, StepPlan& plan, const Preemption& preemption) noexcept {
    if constexpr (SwapsSequences<Preemption>) {
      if (!preemption.swaps(s) || s.is_chosen || s.block_table.empty()) return;
      if (!blocks_.allocate_host(s.block_table.size(), s.kept.blocks)) {
        ++stats().num_fallbacks;
        return;
      }
      for (std::size_t i = 0; i < s.block_table.size(); ++i)
        plan.copies_down.push_back({s.block_table[i], s.kept.blocks[i]});
      s.kept.num_tokens = s.num_computed_tokens;
      ++stats().num_out;
    }
  }

  /// All copies of `plan`, which begins, are listed. What its sequences have in the host's pool is
  /// copied back by them, or is of no use, for there was more elsewhere.
  void begin(StepPlan& plan) noexcept {
    for (PlannedSequence& p : plan.sequences) {
      p.is_resumed = is_resumed(p.prefix, *p.sequence);
      if (!drop(*p.sequence, 0)) continue;
      ++(p.is_resumed ? stats().num_in : stats().num_dropped);
    }
    blocks_.end_copies();
  }

  /// The copies of `plan` may not have been made. What it swapped out or saved was not; what it
  /// swapped in is lost.
  void cancel(const StepPlan& plan) noexcept {
    for (const PlannedSequence& p : plan.sequences) {
      if (p.is_resumed) --stats().num_in, ++stats().num_dropped;
    }
    for (Sequence* s : plan.preempted) {
      if (drop(*s, 0)) --stats().num_out, ++stats().num_fallbacks;
    }
    blocks_.forget_saved(plan.copies_down);
  }

  /// Of what was swapped out of `s`, only the first `num_kept` tokens are kept: it has ended, or
  /// guesses were wrong, or the pool's contents are lost.
  void cut(Sequence& s, std::int32_t num_kept) noexcept {
    stats().num_dropped += drop(s, num_kept) ? 1 : 0;
  }

  /// Throws Error unless every block of the host's pool that is taken has one owner: a sequence
  /// that waits, the prefix cache, or a load from its tier below; and the counters add up.
  /// O(blocks + sequences).
  void check_invariants(std::span<Sequence* const> running, const WaitingQueue& waiting) const {
    const std::vector<bool> is_held = check_kept(running, waiting);
    for (BlockId block = 0; block < blocks_.host().num_blocks(); ++block) {
      const int num_owners = is_held[static_cast<std::size_t>(block)] +
                             blocks_.tier().contains(block) + blocks_.tier().is_loading(block);
      check(num_owners == (blocks_.host().is_taken(block) ? 1 : 0), "scheduler: block ", block,
            " of the host is ", blocks_.host().is_taken(block) ? "taken" : "free", ", but has ",
            num_owners, " owners");
    }
    const auto num_there = std::count_if(waiting.begin(), waiting.end(),
                                         [](const Sequence* s) { return s->kept.num_tokens > 0; });
    check(stats().num_out == stats().num_in + stats().num_dropped + num_there, "scheduler: of ",
          stats().num_out, " sequences that were swapped out ", stats().num_in, " have come back, ",
          stats().num_dropped, " were dropped and ", num_there, " are in host memory");
  }

 private:
  /// Gives back what `s` has in the host's pool after its first `num_kept` tokens. Returns whether
  /// it had something and has nothing any more.
  bool drop(Sequence& s, std::int32_t num_kept) noexcept {
    if (num_kept >= s.kept.num_tokens) return false;
    const auto num_blocks = static_cast<std::size_t>(Blocks::blocks_for(num_kept));
    blocks_.release_host(std::span<const BlockId>(s.kept.blocks).subspan(num_blocks));
    s.kept.blocks.resize(num_blocks);
    s.kept.num_tokens = num_kept;
    return num_kept == 0;
  }

  /// Whether `prefix` goes on in blocks of the host's pool that are its sequence's own.
  [[nodiscard]] static bool is_resumed(const PrefixMatch& prefix, const Sequence& s) noexcept {
    const std::vector<BlockId>& table = s.kept.blocks;
    return prefix.num_tokens == s.kept.num_tokens && prefix.blocks.size() < table.size() &&
           std::equal(prefix.outside.begin(), prefix.outside.end(),
                      table.begin() + static_cast<std::ptrdiff_t>(prefix.blocks.size()),
                      table.end());
  }

  /// Throws Error unless sequences that wait have as many blocks of the host's pool as what is kept
  /// of them needs, no two of them the same, and running ones have none. Returns for every block of
  /// the pool whether a sequence has it. O(blocks + sequences).
  [[nodiscard]] std::vector<bool> check_kept(std::span<Sequence* const> running,
                                             const WaitingQueue& waiting) const {
    for (const Sequence* s : running) {
      check(s->kept.blocks.empty() && s->kept.num_tokens == 0, "scheduler: request ", s->id,
            " runs, but is swapped out");
    }
    std::vector<bool> is_held(static_cast<std::size_t>(blocks_.host().num_blocks()), false);
    for (const Sequence* s : waiting) {
      const auto held = static_cast<std::int32_t>(s->kept.blocks.size());
      check(held == Blocks::blocks_for(s->kept.num_tokens) && s->kept.num_tokens < s->num_tokens(),
            "scheduler: request ", s->id, " of ", s->num_tokens(), " tokens has ", held,
            " blocks of the host for ", s->kept.num_tokens, " tokens");
      for (const BlockId block : s->kept.blocks) {
        check(!is_held.at(static_cast<std::size_t>(block)), "scheduler: block ", block,
              " of the host is held by request ", s->id, " and another");
        is_held[static_cast<std::size_t>(block)] = true;
      }
    }
    return is_held;
  }

  [[nodiscard]] SwapStats& stats() const noexcept { return blocks_.swap_stats(); }

  Blocks& blocks_;
};

}  // namespace nanovllm
