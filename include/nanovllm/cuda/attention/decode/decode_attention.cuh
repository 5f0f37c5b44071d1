#pragma once
/// `decode_attention`: attention of one query a sequence over its paged keys.
///
///   out[s][h] = softmax(scale · q[s][h] · Kᵀ) · V   over the kv_lens[s] keys of sequence s
///
/// Twice a step: `plan_decode` once, before the first layer; `decode_attention` in every layer.
/// Neither allocates, waits for the device or looks at lengths on the host, so both can be captured
/// in a graph and replayed with other lengths. The grid is one block an SM, whatever the batch.
///
/// The fast path takes bf16 and half, head_dim 64 and 128, up to 16 query heads a kv head, block
/// sizes that are multiples of 16, and 16-byte aligned rows; `decode_kernel.cuh` describes it, and
/// `decode_plan.cuh` its plan. Everything else goes to `simt_decode_attention`.

#include <cstdint>
#include <limits>
#include <numbers>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/attention/decode/kernel.cuh"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {

/// When the kernel may begin to read.
enum class DecodeStart {
  /// Once the kernel before it in the stream is done.
  after_predecessor,
  /// While kernels before it still run: the plan, the lengths, the block tables, and all keys but
  /// the newest of each sequence. The caller promises that between whatever writes these and this
  /// kernel there is one that lets its successor start only after its own `grid_dependency_wait`
  /// (a norm, the embedding, the attention of the layer before), and that this one and those after
  /// it write none of them; newest keys and q they may write.
  early,
};

namespace detail {

/// Whether every row of q or out begins at a multiple of 16 bytes.
template <class T>
bool has_aligned_rows(const TensorView<T, 3>& x) {
  return is_vector_aligned(x.data) && x.strides[0] % kVecSize<std::remove_const_t<T>> == 0 &&
         x.strides[1] % kVecSize<std::remove_const_t<T>> == 0;
}

/// Whether the tensor-core kernel takes these operands.
template <class T>
bool fits_decode_kernel(const DecodeAttentionArgs<T>& args) {
  if constexpr (!MmaElement<T>) {
    return false;
  } else {
    const KvView<T>& kv = args.kv;
    return (kv.head_dim == 64 || kv.head_dim == 128) &&
           args.q.extent(1) / kv.num_kv_heads <= kDecodeMaxGroup && kv.block_size > 0 &&
           kv.block_size % kDecodeTileKeys == 0 && has_aligned_rows(args.q) &&
           has_aligned_rows(args.out) && is_vector_aligned(kv.data) &&
           kv.block_stride() <= std::numeric_limits<std::int32_t>::max();
  }
}

template <class T>
DecodeProblem<T> decode_problem(const DecodeAttentionArgs<T>& args, DecodeWorkspace& workspace,
                                DecodeStart start) {
  return {.q = args.q.data,
          .q_stride = args.q.strides[0],
          .q_head_stride = args.q.strides[1],
          .out = args.out.data,
          .out_stride = args.out.strides[0],
          .out_head_stride = args.out.strides[1],
          .kv = args.kv.data,
          .page_stride = args.kv.block_stride(),
          .head_stride = static_cast<int>(args.kv.tile_size()),
          .block_size = static_cast<int>(args.kv.block_size),
          .block_tables = args.block_tables.data,
          .table_stride = args.block_tables.strides[0],
          .kv_lens = args.kv_lens.data,
          .num_seqs = static_cast<int>(args.q.extent(0)),
          .num_kv_heads = static_cast<int>(args.kv.num_kv_heads),
          .group = static_cast<int>(args.q.extent(1) / args.kv.num_kv_heads),
          .scale_log2 = args.scale * std::numbers::log2e_v<float>,
          .early = start == DecodeStart::early,
          .ranges = workspace.ranges(),
          .partials = workspace.partials()};
}

template <int kHeadDim, int kHeadTiles, int kWarps, class T>
void launch_decode(const DecodeAttentionArgs<T>& args, DecodeWorkspace& workspace,
                   const Context& context, DecodeStart start) {
  const DecodeProblem<T> problem = decode_problem(args, workspace, start);
  launch(decode_attention_kernel<T, kHeadDim, kHeadTiles, kWarps>,
         {.grid = static_cast<unsigned>(workspace.grid().num_blocks),
          .block = 32 * kWarps,
          .shared_bytes = decode_shared_bytes(kWarps, problem.group, kHeadDim)},
         context, problem);
}

/// Launches the kernel that the workspace's grid is for.
template <int kHeadDim, int kHeadTiles, class T>
void launch_decode_grid(const DecodeAttentionArgs<T>& args, DecodeWorkspace& workspace,
                        const Context& context, DecodeStart start) {
  if (workspace.grid().warps_per_block == 8)
    launch_decode<kHeadDim, kHeadTiles, 8>(args, workspace, context, start);
  else
    launch_decode<kHeadDim, kHeadTiles, 4>(args, workspace, context, start);
}

}  // namespace detail

/// See ops/attention.hpp; every operand in device memory. `plan_decode` must have been enqueued on
/// the stream, with this workspace, the same lengths and the same number of kv heads. Results
/// differ in the last bits between batches, because the order of sums depends on the plan; they are
/// bit-equal for equal operands. Throws ShapeError when the operands do not fit together, or do not
/// fit the workspace or the plan.
template <Element T>
void decode_attention(const DecodeAttentionArgs<T>& args, DecodeWorkspace& workspace,
                      const Context& context, DecodeStart start = DecodeStart::after_predecessor) {
  validate(args);
  if (args.q.empty()) return;
  if (!detail::fits_decode_kernel(args)) return simt_decode_attention(args, context);
  if constexpr (MmaElement<T>) {
    const std::int64_t group = args.q.extent(1) / args.kv.num_kv_heads;
    nanovllm::check<ShapeError>(
        group <= workspace.group() && args.kv.head_dim <= workspace.head_dim(),
        "decode_attention: the workspace is for groups of ", workspace.group(),
        " heads of head_dim ", workspace.head_dim(), ", got ", group, " of ", args.kv.head_dim);
    nanovllm::check<ShapeError>(args.q.extent(0) == workspace.planned_seqs &&
                                    args.kv.num_kv_heads == workspace.planned_kv_heads,
                                "decode_attention: 'plan_decode' was for ", workspace.planned_seqs,
                                " sequences and ", workspace.planned_kv_heads, " kv heads, got ",
                                args.q.extent(0), " and ", args.kv.num_kv_heads);
    const auto pick = [&]<int kHeadDim>() {
      if (group <= 8)
        detail::launch_decode_grid<kHeadDim, 1>(args, workspace, context, start);
      else
        detail::launch_decode_grid<kHeadDim, 2>(args, workspace, context, start);
    };
    if (args.kv.head_dim == 64)
      pick.template operator()<64>();
    else
      pick.template operator()<128>();
  }
}

/// `Heads` is checked and otherwise not used.
template <Element T, class Heads, class State>
void run_op(const DecodeAttentionArgs<T, T, Heads>& args, State& state) {
  validate(args);
  const DecodeAttentionArgs<T> any{args.q,     args.kv, args.kv_lens, args.block_tables,
                                   args.scale, args.out};
  decode_attention(any, *state.decode, state.context,
                   state.plan_is_visible ? DecodeStart::early : DecodeStart{});
}

}  // namespace nanovllm::cuda
