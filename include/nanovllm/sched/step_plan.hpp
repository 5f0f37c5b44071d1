#pragma once
/// What one step of the engine computes. A plan is a value: making one changes nothing.

#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// One sequence's share of a step: the token range it computes, stated outright.
///
/// A prompt chunk that does not reach the sequence's end draws nothing. Otherwise the first row to
/// draw from is that of the sequence's last token. Further ones check guessed tokens: the sample of
/// token i's row is compared with token i + 1. The step's outcome says how many were right. All
/// rows of logits of a step are no more than BatchConfig::num_logits.
struct PlannedSequence {
  Sequence* sequence = nullptr;
  std::int32_t begin = 0;  ///< first token to compute
  std::int32_t end = 0;    ///< one past the last; K and V of [0, begin) are in the cache by then
  RowUses rows{};          ///< Sequence::rows_in(begin, end)
  PrefixMatch prefix{};    ///< what is there of a new sequence: in the prefix cache, outside
  /// If not null: `prefix` is not from the cache, but of this sequence, a sibling that runs or the
  /// one that it continues.
  const Sequence* fork_of = nullptr;
  /// Set by `Scheduler::begin`: others hold the block in which the range begins, so the sequence
  /// has a copy of it instead.
  bool copies_block = false;
  bool is_resumed = false;  ///< likewise: what was kept of the sequence is copied back

  [[nodiscard]] std::int32_t num_tokens() const { return end - begin; }

  /// The first token that the prefix cache is to be told of. Of a fork nothing may be published
  /// yet, for its source may have gone before it was computed; and what comes from outside is
  /// new to the cache, too.
  [[nodiscard]] std::int32_t first_unpublished(std::int32_t block_size) const noexcept {
    if (fork_of != nullptr) return 0;
    return prefix.outside.empty() ? begin : prefix.num_shared_tokens(block_size);
  }
};

/// Sequences in the order in which they are laid out in the step's flat arrays: the decodes (one
/// token each, with an output, and guesses) come first, then the prompt chunks.
struct StepPlan {
  std::vector<PlannedSequence> sequences;
  std::vector<Sequence*> preempted;  ///< lose their blocks first, and wait
  std::int32_t num_decodes = 0;      ///< sequences[0, num_decodes) are decodes
  std::int32_t num_tokens = 0;       ///< sum over all sequences
  // Set by `Scheduler::begin`, to be done after all earlier steps and before this one computes
  // anything, list by list: a block that is copied down may be the target of another list. No list
  // has a target twice, and no target is in two lists.
  /// To outside: of preempted sequences, and what the prefix cache has no room for.
  std::vector<BlockCopy> copies_down{};
  /// Within the pool. No block is source of one and target of another.
  std::vector<BlockCopy> block_copies{};
  /// From outside: of sequences that are admitted. No source is a target of `copies_down`.
  std::vector<BlockCopy> copies_up{};

  [[nodiscard]] bool empty() const { return sequences.empty(); }
};

/// What a sequence gained in a step.
struct StepOutcome {
  Sequence* sequence = nullptr;
  /// Appended to the sequence: 1 to the number of rows that draw. If fewer, the others were
  /// computed for nothing. None for one that awaits a choice then, or gave its hidden state.
  std::span<const TokenId> tokens{};
  FinishReason finish_reason = FinishReason::none;  ///< other than none: it is done with the last
};

}  // namespace nanovllm
