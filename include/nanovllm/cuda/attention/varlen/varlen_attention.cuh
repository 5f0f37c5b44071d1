#pragma once
/// `varlen_attention` on CUDA: causal attention of prompt chunks.
///
///   out = softmax(scale · q · Kᵀ) · V,  row j of a sequence with q_len rows and kv_len keys sees
///   the keys at positions ≤ kv_len - q_len + j
///
/// Operands and rounding points: ops/attention.hpp. Three kernels, of which the launcher takes the
/// first that fits:
///   that of the architecture  if it has one; for Hopper: hopper/attention/varlen.cuh
///   varlen_attention_mma      bf16 and half; head_dim a multiple of 8 up to 256; from the paged
///                             cache, of the same elements or `KvBytes`, any block size
///   simt_varlen_attention     everything else, float32 above all
/// The first two need 16-byte aligned pointers, strides that are multiples of 8 elements and a
/// positive scale. They read their work from the schedule of `plan_varlen` (plan.cuh), which
/// must have been called in the same stream, once for all layers of a step, with the same
/// `query_starts` and `kv_lens`. Results do not depend on how a schedule is ordered.

#include <concepts>

#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/attention/varlen/mma.cuh"
#include "nanovllm/cuda/attention/varlen/plan.cuh"
#include "nanovllm/cuda/attention/varlen/tuning.hpp"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/kv_halves.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

namespace detail {

/// Whether the tensor-core kernels can take the operands at all.
template <class T, class Kv, class Heads>
[[nodiscard]] bool varlen_on_tensor_cores(const VarlenAttentionArgs<T, Kv, Heads>& args) {
  if (ScaledKvFormat<Kv> && args.kv.tile_size() % 8 != 0) return false;
  return has_aligned_rows(args.q) && has_aligned_rows(args.k) && has_aligned_rows(args.v) &&
         has_aligned_rows(args.out) && is_vector_aligned(args.kv.data) &&
         args.kv.head_dim % 8 == 0 && args.kv.head_dim <= kVarlenMaxHeadDim && args.scale > 0.f;
}

/// Whether `Heads` allows a head_dim that a kernel of up to `most` takes, in steps of `step`.
template <class Heads, int kStep, std::int64_t kMost>
inline constexpr bool kAllowsHeadDim = Heads::kHeadDim % kStep == 0 && Heads::kHeadDim <= kMost;

}  // namespace detail

/// See ops/attention.hpp; every operand in device memory, `workspace` planned by `plan_varlen` for
/// this step. Throws ShapeError when operands do not fit together, head_dim exceeds 256, or there
/// are 2³⁰ tiles or more in all heads.
template <class Architectures, Element T, KvFormat Kv, class Heads>
void varlen_attention(const VarlenAttentionArgs<T, Kv, Heads>& args, VarlenWorkspace& workspace,
                      const Context& context) {
  validate(args);
  if (args.q.empty()) return;
  if constexpr (MmaElement<T> &&
                (std::same_as<T, Kv> ||
                 KvBytes<Kv>)&&detail::kAllowsHeadDim<Heads, 8, kVarlenMaxHeadDim>) {
    if (detail::varlen_on_tensor_cores(args)) {
      const std::int64_t head_dim = args.kv.head_dim;
      const std::int64_t num_seqs = args.kv_lens.extent(0);
      check<ShapeError>(can_count_varlen_items(num_seqs, args.q.extent(0), args.q.extent(1)),
                        "varlen_attention: ", args.q.extent(0), " rows of ", num_seqs,
                        " sequences in ", args.q.extent(1), " heads have 2^30 tiles of ",
                        kVarlenRows, " rows or more");
      if (Architectures::choose(context, [&](auto native) {
            return native.varlen_attention(args, workspace, context);
          }))
        return;
      if (varlen_mma_shared_bytes<Kv>(head_dim) <= context.max_shared_bytes) {
        return varlen_attention_mma(args, workspace.schedule(), context);
      }
    }
  }
  simt_varlen_attention(args, context);
}

template <Element T, KvFormat Kv, class Heads, class State>
requires(std::same_as<T, Kv> ||
         ScaledKvFormat<Kv>) void run_op(const VarlenAttentionArgs<T, Kv, Heads>& args,
                                         State& state) {
  varlen_attention<typename State::Architectures>(args, *state.varlen, state.context);
}

}  // namespace nanovllm::cuda
