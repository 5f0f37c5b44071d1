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
/// result once. Of a cache with 8-bit elements both products are of halves, scores are multiplied
/// by the keys' scales, and weights by the values'.
///
/// Each warp works alone on its range of the plan (`plan.cuh`), with its own ring of tiles
/// in shared memory, filled by cp.async several tiles ahead; the page id of a tile is read one tile
/// earlier still. There is no barrier before the block's ranges are done. An item, that is a
/// (sequence, kv head), which a warp has seen whole is written at once. The parts of the others are
/// merged in a fixed order: within the block through shared memory, between blocks through the
/// workspace, by the block that has the item's end. Equal inputs give equal bits.
///
/// Before its range of the list of single sequences a warp reads its range of what several
/// sequences have in common (`shared.cuh`), if there are any.
///
/// Bytes moved: every key and value once, or once for 32 / group sequences that have it in common;
/// q and out; at most two unfinished items a block, and as many again where it reads for several.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023; the exchange of the
/// operands: NVIDIA, XQA kernels of TensorRT-LLM.
/// Measured: decode_attention_bench, cuda_decode_attention.json, needed: 4.46 TB/s (256 x 1,024).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/loader.cuh"
#include "nanovllm/cuda/attention/decode/merge.cuh"
#include "nanovllm/cuda/attention/decode/shared.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// The row of an item's first query head.
template <class T, bool kShares>
__device__ __forceinline__ const T* query_of(const DecodeProblem<T>& problem,
                                             const DecodeCursor<kShares>& item) {
  return problem.q + item.sequence * problem.q_stride +
         item.head * problem.group * problem.q_head_stride;
}

/// The row of an item's first head in the result.
template <class T, bool kShares>
__device__ __forceinline__ T* out_of(const DecodeProblem<T>& problem,
                                     const DecodeCursor<kShares>& item) {
  return problem.out + item.sequence * problem.out_stride +
         item.head * problem.group * problem.out_head_stride;
}

/// The tiles of one item that one warp reads for many sequences, in order.
struct SharedTiles {
  int sequence, head;  ///< whose block table is read, and the kv head
  int key;             ///< the first one of the next tile
  int remaining;       ///< tiles not sent for
  bool again;          ///< other blocks read them, too
  BlockId page;        ///< of the next tile, or will be, once the load is back

  /// Starts reading the page id of the next tile.
  template <class T>
  __device__ __forceinline__ void look_up(const DecodeProblem<T>& problem) {
    if (remaining > 0)
      page =
          __ldcg(problem.block_tables + sequence * problem.table_stride + key / problem.block_size);
  }

  /// Starts copying the next tile, if there is one, to the shared address `to`.
  template <class T, class Traits>
  __device__ __forceinline__ void send(const DecodeProblem<T>& problem, std::uint32_t to) {
    const int tile = head * problem.head_stride, row = key % problem.block_size;
    copy_tile<T, Traits>(
        problem,
        {nullptr, page, tile + row * Traits::kHeadDim,
         Traits::kHasScales ? tile + problem.block_size * Traits::kHeadDim + row * 4 : 0,
         remaining > 0 ? kDecodeTileKeys : 0, false},
        to, again ? l2_evict_last() : l2_evict_first());
    --remaining;
    key += Traits::kWarps * kDecodeTileKeys;
    look_up(problem);
  }
};

/// Works through what a block reads for many sequences, and leaves the pieces. `memory` is the
/// kernel's shared memory: the rings, and after them room for queries. All threads of the block.
template <class T, class Traits>
__device__ __forceinline__ void attend_shared(const DecodeProblem<T>& problem,
                                              const DecodeSharedRange& range,
                                              unsigned char* memory) {
  using Many =
      DecodeTraits<typename Traits::Kv, Traits::kHeadDim, kDecodeSharedHeadTiles, Traits::kWarps>;
  constexpr int kWarps = Traits::kWarps, kStages = Traits::kStages;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  unsigned char* const query_memory = memory + kWarps * Traits::kRingBytes;
  const std::uint32_t ring = shared_address(memory + warp * Traits::kRingBytes);
  const std::uint32_t queries = shared_address(query_memory);
  SharedItem item{range.group, range.head, range.chunk};
  int begin = range.tile;  // of the item, counted from its group's first tile
  for (int remaining = range.num_tiles; remaining > 0; begin = 0) {
    // Of the block's tiles of the item every kWarps-th is this warp's. What else describes the
    // group is read again after the loop: registers are what there is least of.
    int num_left;  // tiles that the warp has not taken
    SharedTiles tiles;
    {
      const DecodeGroup group = read_group(problem.plan.groups + item.index);
      const int end = min(group.num_tiles, begin + remaining);
      remaining -= end - begin;
      num_left = max(end - begin - warp + kWarps - 1, 0) / kWarps;
      tiles = {group.sequence,
               item.head,
               (group.begin_tile + begin + warp) * kDecodeTileKeys,
               num_left,
               group.num_chunks > 1,
               0};
      tiles.look_up(problem);
#pragma unroll
      for (int i = 0; i < kStages; ++i)
        tiles.template send<T, Traits>(problem, ring + i * Traits::kTileBytes);
      gather_queries<T, Many>(problem, item, group, query_memory);
    }
    __syncthreads();
    DecodeSoftmax<T, Many> state;
    state.clear();
    std::uint32_t stage = ring;
    for (; num_left > 0; --num_left) {
      copy_async_wait<kStages - 1>();
      __syncwarp();
      float scores[kDecodeSharedHeadTiles][4];
      score_many<T, Many>(stage, queries, scores);
      state.take(scores, stage, kDecodeTileKeys, problem.scale_log2);
      __syncwarp();  // all lanes have read the tile
      tiles.template send<T, Traits>(problem, stage);
      stage += Traits::kTileBytes;
      if (stage == ring + Traits::kRingBytes) stage = ring;
    }
    state.end();
    copy_async_wait<0>();
    __syncthreads();  // the queries are no longer read, and the rings are idle
    auto* const softmax = reinterpret_cast<float2*>(memory + kWarps * Traits::kRingBytes);
    store_many(state, reinterpret_cast<float*>(memory + warp * Traits::kRingBytes),
               softmax + warp * kDecodeSharedColumns);
    __syncthreads();
    const DecodeGroup group = read_group(problem.plan.groups + item.index);
    publish_piece<Many>(
        memory, softmax,
        item.num_columns(group, kDecodeSharedColumns / problem.group, problem.group),
        piece_at<Many>(problem, item.number(group), static_cast<int>(blockIdx.x)));
    __syncthreads();  // the rings may be filled again
    item.advance(group.num_chunks, problem.num_kv_heads);
  }
}

/// Works through what a warp reads for single sequences. Leaves at most two items unfinished: in
/// slot 0, in memory of its own, one that the warp did not begin; in slot 1, in the ring, which is
/// idle then, one that it does not end.
template <class T, class Traits, bool kShares>
__device__ __forceinline__ void attend_range(const DecodeProblem<T>& problem,
                                             const DecodeRange& range,
                                             DecodeLoader<T, Traits, kShares>& loader,
                                             float* ring_memory, float* slot0_memory,
                                             DecodeSlot* slots) {
  DecodeCursor<kShares> cursor(range);
  DecodeState<T, Traits> state;
  std::uint32_t stage = loader.ring;
  for (int remaining = range.num_tiles; remaining > 0;) {
    const bool has_first = cursor.at_first_tile();
    const int end = min(cursor.num_tiles, cursor.tile + remaining);
    remaining -= end - cursor.tile;
    state.begin(query_of(problem, cursor), problem.q_head_stride, problem.group);
    for (; cursor.tile < end; ++cursor.tile) {
      const PendingTile after = loader.look_up();
      copy_async_wait<Traits::kStages - 1>();
      __syncwarp();
      state.attend(stage, cursor.num_keys(), problem.scale_log2);
      __syncwarp();  // all lanes have read the tile
      loader.copy(loader.next, stage);
      loader.next = after;
      stage += Traits::kTileBytes;
      if (stage == loader.ring + Traits::kRingBytes) stage = loader.ring;
    }
    state.end();
    const bool has_last = cursor.past_last_tile();
    if (has_first && has_last) {
      if (cursor.is_member()) {
        take_pieces(problem, read_span(problem.plan.spans + cursor.sequence), cursor.head,
                    static_cast<DecodeSoftmax<T, Traits>&>(state));
      }
      store_item(state, problem.group, out_of(problem, cursor), problem.out_head_stride);
    } else {
      store_part(state, problem.group, has_first ? ring_memory : slot0_memory);
      if (threadIdx.x % 32 == 0)
        slots[has_first] = {cursor.sequence * problem.num_kv_heads + cursor.head, has_first,
                            has_last, cursor.is_member()};
    }
    if (remaining > 0) cursor.next_item(problem);
  }
}

/// Writes zeros for sequence `sequence`.
template <class T, class Traits>
__device__ __forceinline__ void store_zeros(const DecodeProblem<T>& problem, int sequence) {
  constexpr int kVectors = Traits::kHeadDim / 8;
  T* const row = problem.out + sequence * problem.out_stride;
  for (int i = static_cast<int>(threadIdx.x) % 32;
       i < problem.num_kv_heads * problem.group * kVectors; i += 32) {
    store_vector(row + i / kVectors * problem.out_head_stride + i % kVectors * 8, {0, 0, 0, 0});
  }
}

/// Registers that a thread may take. On devices whose kernels overlap, a block of 256 threads with
/// 144 leaves room for one of a linear layer with 112, which begins to read its weights while
/// attention still runs.
[[nodiscard]] constexpr int decode_registers(int head_tiles, bool shares) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return head_tiles == 1 && !shares ? 160 : 255;
#else
  return head_tiles == 1 && !shares ? 144 : 255;
#endif
}

}  // namespace detail

/// Grid as planned. Dynamic shared memory: `decode_shared_bytes`.
///
/// @tparam kShares  whether the plan may have groups. Without them the kernel takes 144 registers
///                  instead of 250 (`decode_registers`), and there is room for blocks of its
///                  neighbours in the stream, which may begin early then: 2 us a layer.
template <class T, class Kv, int kHeadDim, int kHeadTiles, int kWarps, bool kShares>
__global__ void __maxnreg__(detail::decode_registers(kHeadTiles, kShares))
    decode_attention_kernel(const __grid_constant__ DecodeProblem<T> problem) {
  using Traits = DecodeTraits<Kv, kHeadDim, kHeadTiles, kWarps>;
  extern __shared__ __align__(1024) unsigned char decode_shared[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part_floats = problem.group * Traits::kPartFloats;
  const auto ring_of = [](int w) { return decode_shared + w * Traits::kRingBytes; };
  float* const parts = reinterpret_cast<float*>(decode_shared + kWarps * Traits::kRingBytes);
  // After the unfinished items, or the queries of many sequences, which come before those.
  const int part_bytes =
      max(kWarps * part_floats * 4, static_cast<int>(decode_query_bytes(kHeadDim)));
  auto* const slots =
      reinterpret_cast<DecodeSlot*>(decode_shared + kWarps * Traits::kRingBytes + part_bytes);
  if (lane < 2) slots[2 * warp + lane] = {-1, false, false, false};
  __syncwarp();

  if (!problem.early) grid_dependency_wait();
  const int global_warp = static_cast<int>(blockIdx.x) * kWarps + warp;
  DecodeRange range = detail::read_range(problem.plan.ranges + global_warp);
  if constexpr (kShares) {
    const DecodeSharedRange shared =
        detail::read_shared_range(problem.plan.shared_ranges + blockIdx.x);
    if (shared.num_tiles > 0) {
      grid_dependency_wait();
      detail::attend_shared<T, Traits>(problem, shared, decode_shared);
      // Read again, so that it takes no registers until here.
      range = detail::read_range(problem.plan.ranges + global_warp);
    }
  }
  const int kv_len = global_warp < problem.num_seqs ? __ldcg(problem.kv_lens + global_warp) : 1;
  detail::DecodeLoader<T, Traits, kShares> loader(problem, range, shared_address(ring_of(warp)));
  if (range.num_tiles > 0) loader.fill();
  grid_dependency_wait();
  grid_dependency_launch();
  detail::attend_range<T, Traits, kShares>(problem, range, loader,
                                           reinterpret_cast<float*>(ring_of(warp)),
                                           parts + warp * part_floats, slots + 2 * warp);
  if (kv_len <= 0) detail::store_zeros<T, Traits>(problem, global_warp);
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  for (int s = global_warp + num_warps; s < problem.num_seqs; s += num_warps) {
    if (problem.kv_lens[s] <= 0) detail::store_zeros<T, Traits>(problem, s);
  }

  __syncthreads();
  detail::merge_slots<Traits, kShares>(
      problem, slots, range.opening_block, [&](int slot) -> const float* {
        return slot % 2 == 0 ? parts + slot / 2 * part_floats
                             : reinterpret_cast<const float*>(ring_of(slot / 2));
      });
}

}  // namespace nanovllm::cuda
