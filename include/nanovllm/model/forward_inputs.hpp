#pragma once
/// What a model's forward pass reads beside its weights.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// Views of one step's inputs in the backend's memory. Sequences with one token each and nothing
/// but that to compute (decodes) come first, in rows [0, num_decodes); the prompt chunks follow.
struct ForwardInputs {
  std::int64_t num_decodes = 0;
  VectorView<const TokenId> tokens;             ///< [n]
  VectorView<const std::int32_t> positions;     ///< [n]
  VectorView<const Slot> slots;                 ///< [n]: where each token's K and V go
  VectorView<const std::int32_t> query_starts;  ///< [num_chunks + 1], rows counted from num_decodes
  VectorView<const std::int32_t> kv_lens;       ///< [num_decodes + num_chunks]
  MatrixView<const BlockId> block_tables;       ///< [num_decodes + num_chunks, max blocks]
  VectorView<const std::int32_t> logit_rows;    ///< [m]: rows whose logits are wanted; no data
                                                ///< and m = n: all of them
  bool has_prefix = true;  ///< false promises that every chunk begins at its sequence's start
};

}  // namespace nanovllm
