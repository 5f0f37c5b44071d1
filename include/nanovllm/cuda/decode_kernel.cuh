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
/// Each warp works alone on its range of the plan (`decode_plan.cuh`), with its own ring of tiles
/// in shared memory, filled by cp.async several tiles ahead; the page id of a tile is read one tile
/// earlier still. There is no barrier before the block's ranges are done. An item, that is a
/// (sequence, kv head), which a warp has seen whole is written at once. The parts of the others are
/// merged in the order of their keys: within the block through shared memory, between blocks
/// through the workspace, by the block that finishes last. Equal inputs give equal bits.
///
/// Bytes moved: every key and value once; q and out; at most two unfinished items a block.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023; the exchange of the
/// operands: NVIDIA, XQA kernels of TensorRT-LLM.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/async_copy.cuh"
#include "nanovllm/cuda/decode_merge.cuh"
#include "nanovllm/cuda/decode_plan.cuh"
#include "nanovllm/cuda/decode_tile.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/mma.cuh"

namespace nanovllm::cuda {
namespace detail {

/// A place in the plan's list of tiles.
struct DecodeCursor {
  int sequence, head, tile, num_tiles, kv_len;

  __device__ __forceinline__ explicit DecodeCursor(const DecodeRange& range)
      : sequence(range.sequence),
        head(range.head),
        tile(range.tile),
        num_tiles((range.kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys),
        kv_len(range.kv_len) {}

  /// Keys of this tile that exist, 1 to 16.
  __device__ __forceinline__ int num_keys() const {
    return min(kDecodeTileKeys, kv_len - tile * kDecodeTileKeys);
  }
  __device__ __forceinline__ bool at_last_tile() const { return tile + 1 == num_tiles; }

  /// To the first tile of the next item; there must be one.
  __device__ __forceinline__ void next_item(const std::int32_t* kv_lens, int num_kv_heads) {
    tile = 0;
    if (++head < num_kv_heads) return;
    head = 0;
    do {
      kv_len = kv_lens[++sequence];
    } while (kv_len <= 0);
    num_tiles = (kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys;
  }
};

/// A tile whose page id is on its way.
struct PendingTile {
  BlockId page;
  int offset;    ///< of its first key in the page, elements
  int num_keys;  ///< 0: no tile
};

/// Fetches a warp's tiles, in order, into its ring.
template <class T, class Traits>
struct DecodeLoader {
  const DecodeProblem<T>& problem;
  DecodeCursor cursor;
  int remaining;  ///< tiles not looked up yet
  int page_index, page_row;

  __device__ __forceinline__ DecodeLoader(const DecodeProblem<T>& problem_in,
                                          const DecodeRange& range)
      : problem(problem_in), cursor(range), remaining(range.num_tiles) {
    const int key = range.tile * kDecodeTileKeys;
    page_index = key / problem.block_size;
    page_row = key % problem.block_size;
  }

  /// Starts reading the next tile's page id.
  __device__ __forceinline__ PendingTile look_up() {
    if (remaining == 0) return {0, 0, 0};
    const PendingTile out{problem.block_tables[cursor.sequence * problem.table_stride + page_index],
                          cursor.head * problem.head_stride + page_row * Traits::kHeadDim,
                          cursor.num_keys()};
    if (--remaining == 0) return out;
    if (cursor.at_last_tile()) {
      cursor.next_item(problem.kv_lens, problem.num_kv_heads);
      page_index = page_row = 0;
    } else {
      ++cursor.tile;
      page_row += kDecodeTileKeys;
      if (page_row == problem.block_size) page_row = 0, ++page_index;
    }
    return out;
  }

  /// Starts copying a tile to the shared address `to`: K, then V, each [16][head_dim] with the
  /// 16-byte chunks of row r exchanged by XOR with r % 8. Rows past the last key become zeros: what
  /// they hold in memory may be NaN. Always one group of copies, empty when there is no tile.
  __device__ __forceinline__ void copy(const PendingTile& tile, std::uint32_t to) const {
    if (tile.num_keys > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int row = lane / Traits::kChunks, chunk = lane % Traits::kChunks;
      const T* const k = problem.kv + tile.page * problem.page_stride + tile.offset + lane * 8;
      const T* const v = k + problem.num_kv_heads * problem.head_stride;
#pragma unroll
      for (int i = 0; i < Traits::kCopies; ++i) {
        const int r = i * Traits::kRowsPerCopy + row;
        const std::uint32_t at = to + r * Traits::kRowBytes + ((chunk ^ (r % 8)) * 16);
        const bool exists = r < tile.num_keys;
        copy_async_16_or_zero(at, k + i * 256, exists);
        copy_async_16_or_zero(at + Traits::kMatrixBytes, v + i * 256, exists);
      }
    }
    copy_async_commit();
  }
};

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

/// Works through a warp's range. Leaves at most two items unfinished: in slot 0, in memory of its
/// own, one that the warp did not begin; in slot 1, in the ring, which is idle then, one that it
/// does not end.
template <class T, class Traits>
__device__ __forceinline__ void attend_range(const DecodeProblem<T>& problem,
                                             const DecodeRange& range, unsigned char* ring,
                                             float* slot0_memory, DecodeSlot* slots) {
  const std::uint32_t ring_address = shared_address(ring);
  DecodeLoader<T, Traits> loader(problem, range);
  PendingTile pending[Traits::kStages];
#pragma unroll
  for (PendingTile& tile : pending) tile = loader.look_up();
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i)
    loader.copy(pending[i], ring_address + i * Traits::kTileBytes);
  PendingTile next = loader.look_up();

  DecodeCursor cursor(range);
  DecodeState<T, Traits> state;
  bool has_first = cursor.tile == 0;
  state.begin(query_of(problem, cursor), problem.q_head_stride, problem.group);
  std::uint32_t stage = ring_address;
  for (int remaining = range.num_tiles;;) {
    const PendingTile after = loader.look_up();
    copy_async_wait<Traits::kStages - 1>();
    __syncwarp();
    state.attend(stage, cursor.num_keys(), problem.scale_log2);
    __syncwarp();  // all lanes have read the tile
    loader.copy(next, stage);
    next = after;
    stage += Traits::kTileBytes;
    if (stage == ring_address + Traits::kRingBytes) stage = ring_address;
    --remaining;
    const bool has_last = cursor.at_last_tile();
    if (!has_last && remaining > 0) {
      ++cursor.tile;
      continue;
    }
    state.end();
    if (has_first && has_last) {
      store_item(state, problem.group, out_of(problem, cursor), problem.out_head_stride);
    } else {
      store_part(state, problem.group, has_first ? reinterpret_cast<float*>(ring) : slot0_memory);
      if (threadIdx.x % 32 == 0)
        slots[has_first] = {cursor.sequence * problem.num_kv_heads + cursor.head, has_first,
                            has_last};
    }
    if (remaining == 0) return;
    cursor.next_item(problem.kv_lens, problem.num_kv_heads);
    has_first = true;
    state.begin(query_of(problem, cursor), problem.q_head_stride, problem.group);
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

/// Grid as planned. Dynamic shared memory: `DecodeTraits::shared_bytes`.
template <class T, int kHeadDim, int kHeadTiles, int kWarps, int kStages>
__global__ void __launch_bounds__(32 * kWarps)
    decode_attention_kernel(const __grid_constant__ DecodeProblem<T> problem) {
  using Traits = DecodeTraits<kHeadDim, kHeadTiles, kWarps, kStages>;
  extern __shared__ __align__(1024) unsigned char decode_shared[];
  __shared__ detail::DecodeSlot slots[2 * kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_sequence = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (lane < 2) slots[2 * warp + lane] = {-1, false, false};
  __syncwarp();
  const auto ring_of = [](int w) { return decode_shared + w * Traits::kRingBytes; };
  const auto slot0_of = [&](int w) {
    return reinterpret_cast<float*>(decode_shared + kWarps * Traits::kRingBytes) +
           w * problem.group * Traits::kPartFloats;
  };

  grid_dependency_wait();
  grid_dependency_launch();
  const DecodeRange range = problem.ranges[first_sequence];
  if (range.num_tiles > 0)
    detail::attend_range<T, Traits>(problem, range, ring_of(warp), slot0_of(warp),
                                    slots + 2 * warp);
  for (int s = first_sequence; s < problem.num_seqs; s += static_cast<int>(gridDim.x) * kWarps) {
    if (problem.kv_lens[s] <= 0) detail::store_zeros<T, Traits>(problem, s);
  }
  __syncthreads();
  const auto shared = detail::merge_warps<Traits>(problem, slots, [&](int slot) {
    return slot % 2 == 0 ? slot0_of(slot / 2) : reinterpret_cast<float*>(ring_of(slot / 2));
  });
  detail::merge_blocks<Traits>(problem, range, shared);
}

}  // namespace nanovllm::cuda
