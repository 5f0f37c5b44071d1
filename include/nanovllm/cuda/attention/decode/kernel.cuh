#pragma once
/// The kernel of `decode_attention` for 16-bit types, on the tensor cores of compute capability 8.0
/// and later.
///
///   out[s][h] = softmax(scale · q[s][h] · Kᵀ) · V   over the kv_lens[s] keys of sequence s
///
/// The products are turned round, so that the few query heads of a kv head, padded to 8 or 16, are
/// the narrow side of m16n8k16, and a tile of 16 keys the wide one:
///   Sᵀ [16 keys × heads] = K · Qᵀ    K by ldmatrix, Q in registers for a whole item
///   Oᵀ [head_dim × heads] += Vᵀ · Pᵀ  V by transposing ldmatrix, P from Sᵀ by movmatrix
/// Scores, maxima and sums are float32; the weights P are rounded to T for the second product, the
/// result once.
///
/// Each warp works alone on its range of the plan (`plan.cuh`), with its own ring of tiles
/// in shared memory, filled by cp.async several tiles ahead; the page id of a tile is read one tile
/// earlier still. There is no barrier before the block's ranges are done. An item, that is a
/// (sequence, kv head), which a warp has seen whole is written at once. The parts of the others are
/// merged in a fixed order: within the block through shared memory, between blocks through the
/// workspace, by the block that has the item's end. Equal inputs give equal bits.
///
/// Before its range of the list of single sequences a warp reads its range of what several
/// sequences have in common (`shared.cuh`), where there is any.
///
/// Bytes moved: every key and value once, or once for 32 / group sequences that have it in common;
/// q and out; at most two unfinished items a block, and one for each warp that reads for several.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023; the exchange of the
/// operands: NVIDIA, XQA kernels of TensorRT-LLM.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/loader.cuh"
#include "nanovllm/cuda/attention/decode/merge.cuh"
#include "nanovllm/cuda/attention/decode/shared.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// The row of an item's first query head.
template <class T>
__device__ __forceinline__ const T* query_of(const DecodeProblem<T>& problem,
                                             const DecodeCursor& item) {
  return problem.q + item.sequence * problem.q_stride +
         item.head * problem.group * problem.q_head_stride;
}

/// The row of an item's first head in the result.
template <class T>
__device__ __forceinline__ T* out_of(const DecodeProblem<T>& problem, const DecodeCursor& item) {
  return problem.out + item.sequence * problem.out_stride +
         item.head * problem.group * problem.out_head_stride;
}

/// Works through what a warp reads for many sequences, and leaves the pieces. `loader` has sent for
/// the first tiles; `query_memory` takes 32 queries.
template <class T, class Traits>
__device__ __forceinline__ void attend_shared(const DecodeProblem<T>& problem,
                                              const DecodeSharedRange& range,
                                              DecodeLoader<T, Traits>& loader, std::uint32_t& stage,
                                              unsigned char* query_memory) {
  using Many = DecodeTraits<Traits::kHeadDim, kDecodeSharedHeadTiles, Traits::kWarps>;
  const std::uint32_t queries = shared_address(query_memory);
  SharedItem item{range.group, range.head, range.chunk};
  DecodeSoftmax<T, Many> state;
  int skipped = range.tile;  // of the item: warps before this one read them
  for (int remaining = range.num_tiles; remaining > 0; skipped = 0) {
    // What describes the group is read where it is wanted: registers are what there is least of.
    int left;
    {
      const DecodeGroup group = read_group(problem.plan.groups + item.index);
      left = min(group.num_tiles - skipped, remaining);
      gather_queries<T, Many>(problem, item, group, query_memory);
    }
    __syncwarp();
    remaining -= left;
    state.clear();
    for (; left > 0; --left) {
      take_tile(loader, stage, [&](std::uint32_t tile) {
        float scores[kDecodeSharedHeadTiles][4];
        score_many<T, Many>(tile, queries, scores);
        state.take(scores, tile, kDecodeTileKeys, problem.scale_log2);
      });
    }
    state.end();
    const DecodeGroup group = read_group(problem.plan.groups + item.index);
    publish_piece(state,
                  item.num_columns(group, kDecodeSharedColumns / problem.group, problem.group),
                  piece_at<Many>(problem, item.number(group), decode_warp<Traits>()));
    __syncwarp();  // the queries are no longer read
    item.advance(group.num_chunks, problem.num_kv_heads);
  }
}

/// Works through what a warp reads for single sequences. Leaves at most two items unfinished: in
/// slot 0, in memory of its own, one that the warp did not begin; in slot 1, in the ring, which is
/// idle then, one that it does not end.
template <class T, class Traits>
__device__ __forceinline__ void attend_range(const DecodeProblem<T>& problem,
                                             const DecodeRange& range,
                                             DecodeLoader<T, Traits>& loader, std::uint32_t stage,
                                             float* ring_memory, float* slot0_memory,
                                             DecodeSlot* slots) {
  DecodeCursor cursor(range);
  DecodeState<T, Traits> state;
  for (int remaining = range.num_tiles; remaining > 0;) {
    const bool has_first = cursor.tile == cursor.first_tile;
    const int end = min(cursor.num_tiles, cursor.tile + remaining);
    remaining -= end - cursor.tile;
    state.begin(query_of(problem, cursor), problem.q_head_stride, problem.group);
    for (; cursor.tile < end; ++cursor.tile) {
      take_tile(loader, stage, [&](std::uint32_t tile) {
        state.attend(tile, cursor.num_keys(), problem.scale_log2);
      });
    }
    state.end();
    const bool has_last = cursor.past_last_tile();
    if (has_first && has_last) {
      if (cursor.group >= 0) {
        take_pieces(problem, read_span(problem.plan.spans + cursor.sequence), cursor.head,
                    static_cast<DecodeSoftmax<T, Traits>&>(state));
      }
      store_item(state, problem.group, out_of(problem, cursor), problem.out_head_stride);
    } else {
      store_part(state, problem.group, has_first ? ring_memory : slot0_memory);
      if (threadIdx.x % 32 == 0)
        slots[has_first] = {cursor.sequence * problem.num_kv_heads + cursor.head, has_first,
                            has_last, cursor.group >= 0};
    }
    if (remaining > 0) cursor.next_item(problem.plan.spans, problem.num_kv_heads);
  }
}

/// Writes zeros for sequence `sequence`.
template <class T, class Traits>
__device__ __forceinline__ void store_zeros(const DecodeProblem<T>& problem, int sequence) {
  constexpr int kVectors = Traits::kRowBytes / 16;
  T* const row = problem.out + sequence * problem.out_stride;
  for (int i = static_cast<int>(threadIdx.x) % 32;
       i < problem.num_kv_heads * problem.group * kVectors; i += 32) {
    store_vector(row + i / kVectors * problem.out_head_stride + i % kVectors * 8, {0, 0, 0, 0});
  }
}

}  // namespace detail

/// Grid as planned. Dynamic shared memory: `decode_shared_bytes`.
template <class T, int kHeadDim, int kHeadTiles, int kWarps>
__global__ void __launch_bounds__(32 * kWarps, 1)
    decode_attention_kernel(const __grid_constant__ DecodeProblem<T> problem) {
  using Traits = DecodeTraits<kHeadDim, kHeadTiles, kWarps>;
  extern __shared__ __align__(1024) unsigned char decode_shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // An unfinished item, and before that the queries of many sequences.
  const int part_floats =
      static_cast<int>(decode_part_bytes(problem.group, kHeadDim, problem.shares_prefixes) / 4);
  const auto ring_of = [](int w) { return decode_shared + w * Traits::kRingBytes; };
  float* const parts = reinterpret_cast<float*>(decode_shared + kWarps * Traits::kRingBytes);
  auto* const slots = reinterpret_cast<DecodeSlot*>(parts + kWarps * part_floats);
  if (lane < 2) slots[2 * warp + lane] = {-1, false, false, false};
  __syncwarp();

  if (!problem.early) grid_dependency_wait();
  const int global_warp = detail::decode_warp<Traits>();
  DecodeRange range = detail::read_range(problem.plan.ranges + global_warp);
  const DecodeSharedRange shared =
      detail::read_shared_range(problem.plan.shared_ranges + global_warp);
  const int kv_len = global_warp < problem.num_seqs ? __ldcg(problem.kv_lens + global_warp) : 1;
  std::uint32_t stage = shared_address(ring_of(warp));
  detail::DecodeLoader<T, Traits> loader(problem, shared, range, stage);
  if (shared.num_tiles + range.num_tiles > 0) loader.fill();
  grid_dependency_wait();
  grid_dependency_launch();
  float* const part = parts + warp * part_floats;
  if (shared.num_tiles > 0) {
    detail::attend_shared<T, Traits>(problem, shared, loader, stage,
                                     reinterpret_cast<unsigned char*>(part));
    // Read again, so that it takes no registers until here.
    range = detail::read_range(problem.plan.ranges + global_warp);
  }
  detail::attend_range<T, Traits>(problem, range, loader, stage,
                                  reinterpret_cast<float*>(ring_of(warp)), part, slots + 2 * warp);
  if (kv_len <= 0) detail::store_zeros<T, Traits>(problem, global_warp);
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  for (int s = global_warp + num_warps; s < problem.num_seqs; s += num_warps) {
    if (problem.kv_lens[s] <= 0) detail::store_zeros<T, Traits>(problem, s);
  }

  __syncthreads();
  detail::merge_slots<Traits>(problem, slots, range.opening_block, [&](int slot) -> const float* {
    return slot % 2 == 0 ? parts + slot / 2 * part_floats
                         : reinterpret_cast<const float*>(ring_of(slot / 2));
  });
}

}  // namespace nanovllm::cuda
