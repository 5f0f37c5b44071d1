#pragma once
/// What all executors do alike with a step's views.

#include <utility>

#include "nanovllm/engine/step/step_batch.hpp"
#include "nanovllm/engine/step/step_inputs.hpp"
#include "nanovllm/model/forward_batch.hpp"

namespace nanovllm {

/// The model's part of `step`, which are views of `inputs`.
[[nodiscard]] inline ForwardBatch forward_batch(const StepBatch<ViewOf>& step,
                                                const StepInputs& inputs) {
  return {step.forward, inputs.num_decodes(), inputs.has_prefix(), inputs.has_chunk_rows()};
}

/// The format of a pool.
template <class Pool>
using KvElementOf = typename decltype(std::declval<Pool&>().layer(0))::Format;

}  // namespace nanovllm
