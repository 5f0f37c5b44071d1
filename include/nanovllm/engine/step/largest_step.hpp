#pragma once
/// The largest step that an executor can be given, to find out what memory steps take.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/limits.hpp"
#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/sched/sequence.hpp"
#include "nanovllm/sched/step_plan.hpp"

namespace nanovllm {

/// The inputs of a step of whole prompts, as many and as long as `limits` allow, that all write to
/// block 0 of the pool. `max_blocks` are the blocks of a sequence, `block_size` the tokens of one.
[[nodiscard]] inline StepInputs largest_step(const StepLimits& limits, std::int64_t max_blocks,
                                             std::int64_t block_size) {
  const std::int64_t length = std::min(limits.max_num_batched_tokens, limits.max_model_len);
  const std::int64_t count = std::min(limits.max_num_batched_tokens / length, limits.max_num_seqs);
  std::vector<Sequence> sequences(static_cast<std::size_t>(count));
  StepPlan plan;
  HostSamplingBatch sampling;
  for (Sequence& sequence : sequences) {
    sequence.tokens.assign(static_cast<std::size_t>(length), TokenId{0});
    sequence.block_table.assign(static_cast<std::size_t>(max_blocks), BlockId{0});
    plan.sequences.push_back(
        {.sequence = &sequence, .end = static_cast<std::int32_t>(length), .num_logits = 1});
    append_sample(sampling, {});
  }
  plan.num_tokens = static_cast<std::int32_t>(count * length);
  StepInputs inputs;
  inputs.build(plan, block_size, sampling);
  return inputs;
}

}  // namespace nanovllm
