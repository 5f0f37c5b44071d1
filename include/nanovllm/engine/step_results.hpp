#pragma once
/// What a step draws.

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// What a step's sampled sequences got, in the plan's order, in host memory. Valid until the next
/// launch but one.
struct StepResults {
  VectorView<const TokenId> tokens;      ///< [samples]
  VectorView<const float> logprobs;      ///< [samples]; meaningful where logprobs were asked for
  MatrixView<const TokenId> top_tokens;  ///< [samples, ≥ max num_logprobs]
  MatrixView<const float> top_logprobs;  ///< like top_tokens
};

}  // namespace nanovllm
