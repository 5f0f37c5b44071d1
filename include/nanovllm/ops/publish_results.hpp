#pragma once
/// Contract of `publish_results`: what a step has drawn to memory that the host reads.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// Where the results of one step go: host memory that ops can write to. Null: not wanted.
struct ResultsPlace {
  TokenId* tokens = nullptr;      ///< [num_rows]
  float* logprobs = nullptr;      ///< [num_rows]
  TokenId* top_tokens = nullptr;  ///< [num_rows, top]
  float* top_logprobs = nullptr;  ///< like top_tokens
  std::int64_t num_rows = 0;
};

/// Copies the first `num_rows` rows of the results. `place` is one element in the backend's
/// memory and is read when the op's turn comes, so that a graph, whose arguments are recorded, can
/// serve one step after the other. The host may read the copies once an event recorded later is
/// done.
struct PublishResultsArgs {
  const ResultsPlace* place = nullptr;
  VectorView<const TokenId> tokens;      ///< [n], n ≥ num_rows
  VectorView<const float> logprobs;      ///< [n]
  MatrixView<const TokenId> top_tokens;  ///< [n, top], dense
  MatrixView<const float> top_logprobs;  ///< like top_tokens
};

/// Throws ShapeError when the operands do not fit together.
inline void validate(const PublishResultsArgs& args) {
  const std::int64_t n = args.tokens.extent(0), top = args.top_tokens.extent(1);
  check_shape("publish_results", "logprobs", args.logprobs, {n});
  check_shape("publish_results", "top_tokens", args.top_tokens, {n, top});
  check_shape("publish_results", "top_logprobs", args.top_logprobs, {n, top});
  check<ShapeError>(args.place != nullptr, "publish_results: no place given");
}

}  // namespace nanovllm
