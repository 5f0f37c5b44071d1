#pragma once
/// What is true of the scheduler's queues, and of a request that may enter them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/prebuilt.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/swapping.hpp"

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
/// @param held        sequences that keep blocks for others to continue.
/// @param ref_counts  of every block of the pool.
/// @param block_size  tokens a block.
void check_queues(std::span<Sequence* const> running, const WaitingQueue& waiting,
                  std::span<Sequence* const> held, std::span<const std::int32_t> ref_counts,
                  std::int32_t block_size, const BatchConfig& config, int num_under_way);

/// Throws Error unless sequences that wait have as many blocks of the host's pool as what was
/// swapped out of them needs, no two of them the same, and running ones have none. Returns for
/// every block of the pool whether a sequence has it. O(blocks + sequences).
std::vector<bool> check_host_tables(std::span<Sequence* const> running, const WaitingQueue& waiting,
                                    std::int32_t num_host_blocks, std::int32_t block_size);

/// Throws Error unless every block of the host's pool that is taken has one owner: a sequence that
/// waits, the prefix cache, or a load from its tier below; and the counters of swaps add up.
/// O(blocks + sequences).
template <class Blocks>
void check_host_blocks(std::span<Sequence* const> running, const WaitingQueue& waiting,
                       const Blocks& blocks, const SwapStats& swaps) {
  const std::int32_t num_blocks = blocks.host().num_blocks();
  const std::vector<bool> is_held =
      check_host_tables(running, waiting, num_blocks, Blocks::block_size());
  for (BlockId block = 0; block < num_blocks; ++block) {
    const int num_owners = is_held[static_cast<std::size_t>(block)] +
                           blocks.tier().contains(block) + blocks.tier().is_loading(block);
    check(num_owners == (blocks.host().is_taken(block) ? 1 : 0), "scheduler: block ", block,
          " of the host is ", blocks.host().is_taken(block) ? "taken" : "free", ", but has ",
          num_owners, " owners");
  }
  const auto num_there = std::count_if(waiting.begin(), waiting.end(),
                                       [](const Sequence* s) { return s->num_swapped_tokens > 0; });
  check(swaps.num_out == swaps.num_in + swaps.num_dropped + num_there, "scheduler: of ",
        swaps.num_out, " sequences that were swapped out ", swaps.num_in, " have come back, ",
        swaps.num_dropped, " were dropped and ", num_there, " are in host memory");
}

}  // namespace nanovllm

#if NANOVLLM_BODIES
#include "nanovllm/sched/queue_checks.inc"
#endif
