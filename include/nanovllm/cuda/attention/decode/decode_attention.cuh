#pragma once
/// `decode_attention`: attention of one query a sequence over its paged keys.
///
///   out[s][h] = softmax(scale · q[s][h] · Kᵀ) · V   over the kv_lens[s] keys of sequence s
///
/// Twice a step: `plan_decode` once, before the first layer; `decode_attention` in every layer.
/// Neither allocates, waits for the device or looks at lengths on the host, so both can be captured
/// in a graph and replayed with other lengths. The grid is one block an SM, whatever the batch.
///
/// The fast path takes bf16 and half over a cache of the same elements, `Int8Kv`, `Fp8Kv` or
/// `StaticFp8Kv`, head_dim 64 and 128, up to 16 query heads a kv head, block sizes that are
/// multiples of 16, and 16-byte aligned rows; `kernel.cuh` describes it, `plan.cuh` its plan, and
/// `tuning.hpp` has its numbers. Everything else goes to `simt_decode_attention`.

#include <concepts>
#include <cstdint>
#include <numbers>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/attention/decode/kernel.cuh"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/decode/tuning.hpp"
#include "nanovllm/cuda/attention/simt_attention.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/kv_halves.cuh"
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
  /// (the first norm of a step, `NextStart::after_wait`), and that this one and those after it
  /// write none of them; newest keys and q they may write.
  early,
};

namespace detail {

/// Whether the tensor-core kernel takes these operands.
template <class T, class Kv, class Heads>
bool takes_decode_kernel(const DecodeAttentionArgs<T, Kv, Heads>& args, const DecodeGrid& grid,
                         const Context& context) {
  if constexpr (!MmaElement<T>) {
    return false;
  } else {
    const KvView<Kv>& kv = args.kv;
    const std::int64_t group = args.q.extent(1) / kv.num_kv_heads;
    const int tile_bytes =
        decode_tile_bytes(sizeof(KvStored<Kv>), ScaledKvFormat<Kv>, static_cast<int>(kv.head_dim));
    return fits_decode_kernel(kv.head_dim, group, kv.block_size, kv.block_stride()) &&
           decode_shared_bytes(grid.warps_per_block, group, kv.head_dim,
                               decode_stages(tile_bytes) * tile_bytes) <=
               context.max_shared_bytes &&
           has_aligned_rows(args.q) && has_aligned_rows(args.out) && is_vector_aligned(kv.data);
  }
}

template <class T, class Kv, class Heads>
DecodeProblem<T> decode_problem(const DecodeAttentionArgs<T, Kv, Heads>& args,
                                DecodeWorkspace& workspace, DecodeStart start) {
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
          .plan = workspace.plan(),
          .partials = workspace.partials()};
}

/// Launches the kernel that the workspace's grid and plan are for.
template <class Kv, int kHeadDim, int kHeadTiles, class T>
void launch_decode(const DecodeProblem<T>& problem, const DecodeWorkspace& workspace,
                   const Context& context) {
  const DecodeGrid& grid = workspace.grid();
  const auto launch_warps = [&]<int kWarps, bool kShares>() {
    using Traits = DecodeTraits<Kv, kHeadDim, kHeadTiles, kWarps>;
    launch(
        decode_attention_kernel<T, Kv, kHeadDim, kHeadTiles, kWarps, kShares>,
        {.grid = static_cast<unsigned>(grid.num_blocks),
         .block = 32 * kWarps,
         .shared_bytes = decode_shared_bytes(kWarps, problem.group, kHeadDim, Traits::kRingBytes)},
        context, problem);
  };
  const auto launch_plan = [&]<int kWarps>() {
    if (workspace.planned_groups)
      launch_warps.template operator()<kWarps, true>();
    else
      launch_warps.template operator()<kWarps, false>();
  };
  if (grid.warps_per_block == 8)
    launch_plan.template operator()<8>();
  else
    launch_plan.template operator()<4>();
}

/// Calls `visit` with head_dim, 64 or 128, and the tiles of 8 heads that a group of `group` takes.
/// What `Heads` says is not compiled for other values.
template <class Heads, class Visit>
void with_decode_shape(std::int64_t head_dim, std::int64_t group, Visit visit) {
  const auto with_tiles = [&]<int kHeadDim>() {
    if constexpr (Heads::kGroup > 0) {
      visit.template operator()<kHeadDim, decode_head_tiles(Heads::kGroup)>();
    } else if (decode_head_tiles(group) == 1) {
      visit.template operator()<kHeadDim, 1>();
    } else {
      visit.template operator()<kHeadDim, 2>();
    }
  };
  if constexpr (Heads::kHeadDim > 0) {
    with_tiles.template operator()<Heads::kHeadDim>();
  } else if (head_dim == 64) {
    with_tiles.template operator()<64>();
  } else {
    with_tiles.template operator()<128>();
  }
}

/// Whether there are operands that `Heads` allows and the tensor-core kernel takes.
template <class T, class Kv, class Heads>
inline constexpr bool kHasDecodeKernel = MmaElement<T> &&
                                         (std::same_as<T, Kv> ||
                                          KvBytes<Kv>)&&(Heads::kHeadDim == 0 ||
                                                         Heads::kHeadDim == 64 ||
                                                         Heads::kHeadDim == 128) &&
                                         Heads::kGroup <= kDecodeMaxGroup;

}  // namespace detail

/// See ops/attention.hpp; every operand in device memory. `plan_decode` must have been enqueued on
/// the stream, with this workspace, the same lengths and the same number of kv heads. Results
/// differ in the last bits between batches, because the order of sums depends on the plan; they are
/// bit-equal for equal operands. Throws ShapeError when the operands do not fit together, or do not
/// fit the workspace or the plan, or when their tiles cannot be counted: all rows of the block
/// tables, full, have 2³¹ tiles of 16 keys in all kv heads.
template <Element T, KvFormat Kv, class Heads>
void decode_attention(const DecodeAttentionArgs<T, Kv, Heads>& args, DecodeWorkspace& workspace,
                      const Context& context, DecodeStart start = DecodeStart::after_predecessor) {
  validate(args);
  if (args.q.empty()) return;
  if constexpr (detail::kHasDecodeKernel<T, Kv, Heads>) {
    if (detail::takes_decode_kernel(args, workspace.grid(), context)) {
      const std::int64_t num_seqs = args.q.extent(0), kv_heads = args.kv.num_kv_heads;
      const std::int64_t group = args.q.extent(1) / kv_heads;
      check<ShapeError>(group <= workspace.group() && args.kv.head_dim <= workspace.head_dim(),
                        "decode_attention: the workspace is for groups of ", workspace.group(),
                        " heads of head_dim ", workspace.head_dim(), ", got ", group, " of ",
                        args.kv.head_dim);
      check<ShapeError>(
          num_seqs == workspace.planned_seqs && kv_heads == workspace.planned_kv_heads,
          "decode_attention: 'plan_decode' was for ", workspace.planned_seqs, " sequences and ",
          workspace.planned_kv_heads, " kv heads, got ", num_seqs, " and ", kv_heads);
      const std::int64_t max_keys = args.block_tables.extent(1) * args.kv.block_size;
      check<ShapeError>(can_count_decode_tiles(num_seqs, kv_heads, max_keys),
                        "decode_attention: ", num_seqs, " sequences of up to ", max_keys,
                        " keys in ", kv_heads, " kv heads have 2^31 tiles of ", kDecodeTileKeys,
                        " keys or more");
      const auto problem = detail::decode_problem(args, workspace, start);
      detail::with_decode_shape<Heads>(
          args.kv.head_dim, group, [&]<int kHeadDim, int kHeadTiles>() {
            detail::launch_decode<Kv, kHeadDim, kHeadTiles>(problem, workspace, context);
          });
      return;
    }
  }
  simt_decode_attention(args, context);
}

template <Element T, KvFormat Kv, class Heads, class State>
requires(std::same_as<T, Kv> ||
         ScaledKvFormat<Kv>) void run_op(const DecodeAttentionArgs<T, Kv, Heads>& args,
                                         State& state) {
  const bool early = state.plan_start.lets_decodes_start_early();
  decode_attention(args, *state.decode, state.context, early ? DecodeStart::early : DecodeStart{});
}

}  // namespace nanovllm::cuda
