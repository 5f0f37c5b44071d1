#pragma once
/// What is true of the scheduler's queues, and of a request that may enter them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
#include "nanovllm/sched/batch_config.hpp"
#include "nanovllm/sched/block_owner.hpp"
#include "nanovllm/sched/queues.hpp"
#include "nanovllm/sched/sequence.hpp"

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

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
