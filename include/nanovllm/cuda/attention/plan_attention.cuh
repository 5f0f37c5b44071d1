#pragma once
/// `plan_attention` on CUDA. Contract: ops/attention.hpp.

#include <cstdint>

#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

/// Divides the keys of the decodes among the blocks of their kernel, and lists the tiles of the
/// prompt chunks.
template <class State>
void run_op(const PlanAttentionArgs& args, State& state) {
  state.plan_start.planned(args.has_chunk_rows);
  const std::int64_t num_decodes = args.num_decodes;
  if (num_decodes > 0) {
    plan_decode(args.kv_lens.slice(0, num_decodes), args.num_kv_heads, *state.decode, state.context,
                args.shared);
  }
  if (args.num_tokens > num_decodes) {
    plan_varlen(args.query_starts, args.kv_lens.slice(num_decodes, args.kv_lens.extent(0)),
                args.num_tokens - num_decodes, *state.varlen, state.context);
  }
}

}  // namespace nanovllm::cuda
