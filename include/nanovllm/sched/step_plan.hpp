#pragma once
/// What one step of the engine computes. A plan is a value: making one changes nothing.

#include <cstdint>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/sched/sequence.hpp"

namespace nanovllm {

/// One sequence's share of a step: the token range it computes, stated outright.
struct PlannedSequence {
  Sequence* sequence = nullptr;
  std::int32_t begin = 0;  ///< first token to compute
  std::int32_t end = 0;    ///< one past the last; K and V of [0, begin) are in the cache by then
  bool samples = false;  ///< the logits of token end - 1 are sampled: end is the sequence's length
  std::vector<BlockId> cached_blocks{};  ///< prefix-cache hits that a new sequence adopts
  std::int32_t num_new_blocks = 0;       ///< blocks to allocate behind its block table and the hits

  [[nodiscard]] std::int32_t num_tokens() const { return end - begin; }
};

/// Sequences in the order in which they are laid out in the step's flat arrays: the decodes (one
/// token each, sampled) come first, then the prompt chunks.
struct StepPlan {
  std::vector<PlannedSequence> sequences;
  std::vector<BlockCopy> block_copies;  ///< made before the step's tokens are computed
  std::vector<Sequence*> preempted;     ///< lose their blocks first, and wait to be recomputed
  std::int32_t num_decodes = 0;         ///< sequences[0, num_decodes) are decodes
  std::int32_t num_tokens = 0;          ///< sum over all sequences

  [[nodiscard]] bool empty() const { return sequences.empty(); }
};

/// What a sampled sequence gained in a step.
struct StepOutcome {
  Sequence* sequence = nullptr;
  TokenId token = 0;                                ///< appended to the sequence
  FinishReason finish_reason = FinishReason::none;  ///< other than none: the sequence is done
};

}  // namespace nanovllm
