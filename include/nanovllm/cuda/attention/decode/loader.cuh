#pragma once
/// How a warp of the decode kernel gets its tiles of keys: from its ranges of the plan's two lists
/// into its ring in shared memory.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/attention/decode/shared.cuh"
#include "nanovllm/cuda/attention/decode/tile.cuh"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

/// Past L1: with an early start, L1 may be older than the plan.
__device__ __forceinline__ DecodeRange read_range(const DecodeRange* range) {
  const auto* const words = reinterpret_cast<const int4*>(range);
  const int4 a = __ldcg(words), b = __ldcg(words + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

/// This warp's number in the grid.
template <class Traits>
__device__ __forceinline__ int decode_warp() {
  return static_cast<int>(blockIdx.x) * Traits::kWarps + static_cast<int>(threadIdx.x) / 32;
}

/// A place in the plan's list of tiles.
struct DecodeCursor {
  int sequence, head, tile, num_tiles, kv_len, first_tile, group;

  __device__ __forceinline__ explicit DecodeCursor(const DecodeRange& range)
      : sequence(range.sequence),
        head(range.head),
        tile(range.tile),
        num_tiles((range.kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys),
        kv_len(range.kv_len),
        first_tile(range.first_tile),
        group(range.group) {}

  /// Keys of this tile that exist, 1 to 16.
  __device__ __forceinline__ int num_keys() const {
    return min(kDecodeTileKeys, kv_len - tile * kDecodeTileKeys);
  }
  __device__ __forceinline__ bool at_last_tile() const { return tile + 1 == num_tiles; }
  __device__ __forceinline__ bool past_last_tile() const { return tile == num_tiles; }

  /// To the first tile of the next item; there must be one.
  __device__ __forceinline__ void next_item(const DecodeSpan* spans, int num_kv_heads) {
    tile = first_tile;
    if (++head < num_kv_heads) return;
    head = 0;
    DecodeSpan span;
    do {
      span = read_span(spans + ++sequence);
    } while (span.kv_len <= 0);
    kv_len = span.kv_len, group = span.group;
    tile = first_tile = span.first_tile;
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
  bool again;            ///< other warps read it, too

  __device__ __forceinline__ void read_page() {
    if (num_keys > 0) page = __ldcg(entry);
  }
};

/// Fetches a warp's tiles, in order, into its ring: those of groups, then those of single sequences.
/// It has one set of registers for its place in either list, for there are few.
template <class T, class Traits>
struct DecodeLoader {
  const DecodeProblem<T>& problem;
  std::uint32_t ring;            ///< shared address
  bool in_groups;                ///< in the list of what groups read
  int remaining;                 ///< tiles of this list that are not located yet
  int sequence, head;            ///< of the item
  int first_tile, end_key;       ///< its keys, from the beginning of the sequence
  int group, chunk, num_chunks;  ///< in groups
  int page_index, page_row;      ///< of the next tile's first key
  PendingTile next;              ///< after `fill`: the next tile to be copied

  __device__ __forceinline__ DecodeLoader(const DecodeProblem<T>& problem_in,
                                          const DecodeSharedRange& shared, const DecodeRange& range,
                                          std::uint32_t ring_in)
      : problem(problem_in), ring(ring_in) {
    if (shared.num_tiles == 0) {
      begin(range);
      return;
    }
    in_groups = true;
    remaining = shared.num_tiles;
    head = shared.head, chunk = shared.chunk, group = shared.group;
    begin_group(shared.tile);
  }

  /// Finds the next tile, without its page.
  __device__ __forceinline__ PendingTile locate() {
    if (remaining == 0) return {nullptr, 0, 0, 0, false, false};
    const int num_keys = end_key - page_index * problem.block_size - page_row;  // and those behind
    const bool at_last = num_keys <= kDecodeTileKeys;
    const PendingTile out{problem.block_tables + sequence * problem.table_stride + page_index,
                          0,
                          head * problem.head_stride + page_row * Traits::kHeadDim,
                          min(kDecodeTileKeys, num_keys),
                          at_last && !in_groups,
                          in_groups && num_chunks > 1};
    if (--remaining == 0) {
      if (in_groups) begin(read_range(problem.plan.ranges + decode_warp<Traits>()));
    } else if (!at_last) {
      page_row += kDecodeTileKeys;
      if (page_row == problem.block_size) page_row = 0, ++page_index;
    } else if (in_groups) {
      next_of_groups();
    } else {
      next_sequence();
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
      return PendingTile{nullptr,
                         __shfl_sync(~0u, mine.page, i),
                         __shfl_sync(~0u, mine.offset, i),
                         __shfl_sync(~0u, mine.num_keys, i),
                         __shfl_sync(~0u, mine.has_newest, i) != 0,
                         __shfl_sync(~0u, mine.again, i) != 0};
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
      // Keys of single sequences are not read again before the next step.
      const L2Policy policy = tile.again ? l2_evict_last() : l2_evict_first();
#pragma unroll
      for (int i = 0; i < Traits::kCopies; ++i) {
        const int r = i * Traits::kRowsPerCopy + row;
        const std::uint32_t at = to + r * Traits::kRowBytes + ((chunk ^ (r % 8)) * 16);
        const bool exists = r < tile.num_keys;
        copy_async_16_or_zero(at, k + i * 256, exists, policy);
        copy_async_16_or_zero(at + Traits::kMatrixBytes, v + i * 256, exists, policy);
      }
    }
    copy_async_commit();
  }

 private:
  /// To the list of single sequences.
  __device__ __forceinline__ void begin(const DecodeRange& range) {
    in_groups = false;
    remaining = range.num_tiles;
    sequence = range.sequence, head = range.head;
    first_tile = range.first_tile, end_key = range.kv_len;
    go_to(range.tile);
  }

  /// To a tile of the group, counted from its first one.
  __device__ __forceinline__ void begin_group(int of_group) {
    const DecodeGroup next_group = read_group(problem.plan.groups + group);
    sequence = next_group.sequence;
    num_chunks = next_group.num_chunks;
    first_tile = next_group.begin_tile;
    end_key = (first_tile + next_group.num_tiles) * kDecodeTileKeys;
    go_to(first_tile + of_group);
  }

  __device__ __forceinline__ void next_of_groups() {
    if (++chunk < num_chunks) return go_to(first_tile);
    chunk = 0;
    if (++head < problem.num_kv_heads) return go_to(first_tile);
    head = 0;
    ++group;
    begin_group(0);
  }

  __device__ __forceinline__ void next_sequence() {
    if (++head == problem.num_kv_heads) {
      head = 0;
      DecodeSpan span;
      do {
        span = read_span(problem.plan.spans + ++sequence);
      } while (span.kv_len <= 0);
      end_key = span.kv_len, first_tile = span.first_tile;
    }
    go_to(first_tile);
  }

  __device__ __forceinline__ void go_to(int tile) {
    const int key = tile * kDecodeTileKeys;
    page_index = key / problem.block_size;
    page_row = key % problem.block_size;
  }
};

/// Takes the next tile of the ring: calls `attend` with its shared address, and sends for another.
template <class T, class Traits, class Attend>
__device__ __forceinline__ void take_tile(DecodeLoader<T, Traits>& loader, std::uint32_t& stage,
                                          const Attend& attend) {
  const PendingTile after = loader.look_up();
  copy_async_wait<Traits::kStages - 1>();
  __syncwarp();
  attend(stage);
  __syncwarp();  // all lanes have read the tile
  loader.copy(loader.next, stage);
  loader.next = after;
  stage += Traits::kTileBytes;
  if (stage == loader.ring + Traits::kRingBytes) stage = loader.ring;
}

}  // namespace nanovllm::cuda::detail
