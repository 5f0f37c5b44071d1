#pragma once
/// `varlen_attention` on CUDA: causal attention of prompt chunks.
///
///   out = softmax(scale · q · Kᵀ) · V,  row j of a sequence with q_len rows and kv_len keys sees
///   the keys at positions ≤ kv_len - q_len + j
///
/// Operands and rounding points: ops/attention.hpp. Three kernels, of which the launcher takes the
/// first that fits:
///   varlen_attention_hopper   sm_90a; bf16 and half; head_dim 64 and 128; from this step's keys
///                             and values when no sequence has a prefix; else from the paged cache,
///                             if block_size is 8, 16, 32, 64 or a multiple of 128
///   varlen_attention_mma      bf16 and half; head_dim a multiple of 8 up to 256; from the paged
///                             cache, any block size
///   simt_varlen_attention     everything else, float32 above all
/// The first two need 16-byte aligned pointers, strides that are multiples of 8 elements and a
/// positive scale. They read their work from the schedule of `plan_varlen` (varlen_plan.cuh), which
/// must have been called in the same stream, once for all layers of a step, with the same
/// `query_starts` and `kv_lens`. Results do not depend on how a schedule is ordered.

#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/attention/varlen/hopper.cuh"
#include "nanovllm/cuda/attention/varlen/mma.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

namespace detail {

/// Whether the tensor-core kernels can take the operands at all.
template <class T>
[[nodiscard]] bool varlen_on_tensor_cores(const VarlenAttentionArgs<T>& args) {
  return has_aligned_rows(args.q) && has_aligned_rows(args.k) && has_aligned_rows(args.v) &&
         has_aligned_rows(args.out) && is_vector_aligned(args.kv.data) &&
         args.kv.head_dim % 8 == 0 && args.kv.head_dim <= 256 && args.scale > 0.f;
}

template <MmaElement T, int kHeadDim>
void varlen_attention_hopper(const VarlenAttentionArgs<T>& args, VarlenSchedule schedule,
                             const Context& context) {
  if (args.has_prefix) {
    cuda::varlen_attention_hopper<T, kHeadDim, true>(args, schedule, context);
  } else {
    cuda::varlen_attention_hopper<T, kHeadDim, false>(args, schedule, context);
  }
}

}  // namespace detail

/// See ops/attention.hpp; every operand in device memory, `workspace` planned by `plan_varlen` for
/// this step. Throws ShapeError when operands do not fit together or head_dim exceeds 256.
template <Element T>
void varlen_attention(const VarlenAttentionArgs<T>& args, VarlenWorkspace& workspace,
                      const Context& context) {
  validate(args);
  if (args.q.empty()) return;
  if constexpr (MmaElement<T>) {
    if (detail::varlen_on_tensor_cores(args)) {
      const std::int64_t head_dim = args.kv.head_dim;
      const bool hopper = context.is_hopper() && (head_dim == 64 || head_dim == 128) &&
                          (!args.has_prefix || varlen_hopper_takes_block_size(args.kv.block_size));
      if (hopper && head_dim == 64) {
        return detail::varlen_attention_hopper<T, 64>(args, workspace.schedule(), context);
      }
      if (hopper) {
        return detail::varlen_attention_hopper<T, 128>(args, workspace.schedule(), context);
      }
      if (varlen_mma_shared_bytes(head_dim) <= context.max_shared_bytes) {
        return varlen_attention_mma(args, workspace.schedule(), context);
      }
    }
  }
  simt_varlen_attention(args, context);
}

/// `Heads` is checked and otherwise not used.
template <Element T, class Heads, class State>
void run_op(const VarlenAttentionArgs<T, T, Heads>& args, State& state) {
  validate(args);
  const VarlenAttentionArgs<T> any{args.q,
                                   args.k,
                                   args.v,
                                   args.kv,
                                   args.query_starts,
                                   args.kv_lens,
                                   args.block_tables,
                                   args.has_prefix,
                                   args.scale,
                                   args.out};
  varlen_attention(any, *state.varlen, state.context);
}

}  // namespace nanovllm::cuda
