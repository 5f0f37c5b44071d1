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
/// Bytes moved: every key and value once; q and out; at most two unfinished items a block.
/// Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding", 2023; the exchange of the
/// operands: NVIDIA, XQA kernels of TensorRT-LLM.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/merge.cuh"
#include "nanovllm/cuda/attention/decode/plan.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Past L1: with an early start, L1 may be older than the plan.
__device__ __forceinline__ DecodeRange read_range(const DecodeRange* range) {
  const auto* const words = reinterpret_cast<const int4*>(range);
  const int4 a = __ldcg(words), b = __ldcg(words + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y};
}

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
  __device__ __forceinline__ bool past_last_tile() const { return tile == num_tiles; }

  /// To the first tile of the next item; there must be one.
  __device__ __forceinline__ void next_item(const std::int32_t* kv_lens, int num_kv_heads) {
    tile = 0;
    if (++head < num_kv_heads) return;
    head = 0;
    do {
      kv_len = __ldcg(kv_lens + ++sequence);
    } while (kv_len <= 0);
    num_tiles = (kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys;
  }
};

/// A tile on its way: what the loader must know to copy it.
struct PendingTile {
  const BlockId* entry;  ///< its page's place in the block table
  BlockId page;          ///< what stands there, or will, once the load is back
  int offset;            ///< of its first key in the page, elements
  int num_keys;          ///< 0: no tile
  bool has_newest;       ///< holds the last key of its sequence

  __device__ __forceinline__ void read_page() {
    if (num_keys > 0) page = __ldcg(entry);
  }
};

/// Fetches a warp's tiles, in order, into its ring.
template <class T, class Traits>
struct DecodeLoader {
  const DecodeProblem<T>& problem;
  std::uint32_t ring;  ///< shared address
  DecodeCursor cursor;
  int remaining;  ///< tiles not located yet
  int page_index, page_row;
  L2Policy once = l2_evict_first();  ///< keys are not read again before the next step
  PendingTile next;                  ///< after `fill`: the next tile to be copied

  __device__ __forceinline__ DecodeLoader(const DecodeProblem<T>& problem_in,
                                          const DecodeRange& range, std::uint32_t ring_in)
      : problem(problem_in), ring(ring_in), cursor(range), remaining(range.num_tiles) {
    const int key = range.tile * kDecodeTileKeys;
    page_index = key / problem.block_size;
    page_row = key % problem.block_size;
  }

  /// Finds the next tile, without its page.
  __device__ __forceinline__ PendingTile locate() {
    if (remaining == 0) return {nullptr, 0, 0, 0, false};
    const PendingTile out{
        problem.block_tables + cursor.sequence * problem.table_stride + page_index, 0,
        cursor.head * problem.head_stride + page_row * Traits::kHeadDim, cursor.num_keys(),
        cursor.at_last_tile()};
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

  /// Starts filling the ring. When `problem.early`, tiles with a sequence's newest key, and those
  /// after them, come after the kernel before this one.
  __device__ __forceinline__ void fill() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    PendingTile mine{};  // lane i's is tile i, so that all page ids are read at once
#pragma unroll 1
    for (int i = 0; i <= Traits::kStages; ++i) {
      const PendingTile tile = locate();
      if (lane == i) mine = tile;
    }
    mine.read_page();
    const auto from_lane = [&mine](int i) {
      return PendingTile{nullptr, __shfl_sync(~0u, mine.page, i), __shfl_sync(~0u, mine.offset, i),
                         __shfl_sync(~0u, mine.num_keys, i),
                         __shfl_sync(~0u, mine.has_newest, i) != 0};
    };
#pragma unroll 1
    for (int i = 0; i < Traits::kStages; ++i) {
      const PendingTile tile = from_lane(i);
      if (problem.early && tile.has_newest) grid_dependency_wait();
      copy(tile, ring + i * Traits::kTileBytes);
    }
    next = from_lane(Traits::kStages);
  }

  /// Starts reading the page id of the tile after `next`.
  __device__ __forceinline__ PendingTile look_up() {
    PendingTile out = locate();
    out.read_page();
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
        copy_async_16_or_zero(at, k + i * 256, exists, once);
        copy_async_16_or_zero(at + Traits::kMatrixBytes, v + i * 256, exists, once);
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

/// Works through a warp's range, whose first tiles `loader` has sent for. Leaves at most two items
/// unfinished: in slot 0, in memory of its own, one that the warp did not begin; in slot 1, in the
/// ring, which is idle then, one that it does not end.
template <class T, class Traits>
__device__ __forceinline__ void attend_range(const DecodeProblem<T>& problem,
                                             const DecodeRange& range,
                                             DecodeLoader<T, Traits>& loader, float* ring_memory,
                                             float* slot0_memory, DecodeSlot* slots) {
  DecodeCursor cursor(range);
  DecodeState<T, Traits> state;
  std::uint32_t stage = loader.ring;
  for (int remaining = range.num_tiles; remaining > 0;) {
    const bool has_first = cursor.tile == 0;
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
      store_item(state, problem.group, out_of(problem, cursor), problem.out_head_stride);
    } else {
      store_part(state, problem.group, has_first ? ring_memory : slot0_memory);
      if (threadIdx.x % 32 == 0)
        slots[has_first] = {cursor.sequence * problem.num_kv_heads + cursor.head, has_first,
                            has_last};
    }
    if (remaining > 0) cursor.next_item(problem.kv_lens, problem.num_kv_heads);
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
  const int part_floats = problem.group * Traits::kPartFloats;
  const auto ring_of = [](int w) { return decode_shared + w * Traits::kRingBytes; };
  float* const parts = reinterpret_cast<float*>(decode_shared + kWarps * Traits::kRingBytes);
  auto* const slots = reinterpret_cast<DecodeSlot*>(parts + kWarps * part_floats);
  if (lane < 2) slots[2 * warp + lane] = {-1, false, false};
  __syncwarp();

  if (!problem.early) grid_dependency_wait();
  const int global_warp = static_cast<int>(blockIdx.x) * kWarps + warp;
  const DecodeRange range = detail::read_range(problem.ranges + global_warp);
  const int kv_len = global_warp < problem.num_seqs ? __ldcg(problem.kv_lens + global_warp) : 1;
  detail::DecodeLoader<T, Traits> loader(problem, range, shared_address(ring_of(warp)));
  if (range.num_tiles > 0) loader.fill();
  grid_dependency_wait();
  grid_dependency_launch();
  detail::attend_range<T, Traits>(problem, range, loader, reinterpret_cast<float*>(ring_of(warp)),
                                  parts + warp * part_floats, slots + 2 * warp);
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
