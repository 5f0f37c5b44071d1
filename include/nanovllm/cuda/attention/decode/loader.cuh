#pragma once
/// How a warp of the decode kernel gets its tiles of keys: from its range of the plan's list into
/// its ring in shared memory.

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

/// What a sequence shares with others: its keys before `first_tile` are read with `group`, -1 for
/// none.
template <bool kShares>
struct DecodeMembership {
  __device__ __forceinline__ DecodeMembership(int first_tile, int group)
      : first_tile_(first_tile), group_(group) {}
  __device__ __forceinline__ int first_tile() const { return first_tile_; }
  __device__ __forceinline__ int group() const { return group_; }

 private:
  int first_tile_, group_;
};
template <>
struct DecodeMembership<false> {
  __device__ __forceinline__ DecodeMembership(int, int) {}
  __device__ __forceinline__ static int first_tile() { return 0; }
  __device__ __forceinline__ static int group() { return -1; }
};

/// A place in the plan's list of tiles.
template <bool kShares>
struct DecodeCursor {
  int sequence, head, tile, num_tiles, kv_len;
  DecodeMembership<kShares> membership;

  __device__ __forceinline__ explicit DecodeCursor(const DecodeRange& range)
      : sequence(range.sequence),
        head(range.head),
        tile(range.tile),
        num_tiles((range.kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys),
        kv_len(range.kv_len),
        membership(range.first_tile, range.group) {}

  /// Keys of this tile that exist, 1 to 16.
  __device__ __forceinline__ int num_keys() const {
    return min(kDecodeTileKeys, kv_len - tile * kDecodeTileKeys);
  }
  __device__ __forceinline__ bool at_first_tile() const { return tile == membership.first_tile(); }
  __device__ __forceinline__ bool at_last_tile() const { return tile + 1 == num_tiles; }
  __device__ __forceinline__ bool past_last_tile() const { return tile == num_tiles; }
  __device__ __forceinline__ bool is_member() const { return membership.group() >= 0; }

  /// To the first tile of the next item; there must be one.
  template <class T>
  __device__ __forceinline__ void next_item(const DecodeProblem<T>& problem) {
    if (++head == problem.num_kv_heads) {
      head = 0;
      do {
        ++sequence;
        if constexpr (kShares) {
          const DecodeSpan span = read_span(problem.plan.spans + sequence);
          kv_len = span.kv_len;
          membership = {span.first_tile, span.group};
        } else {
          kv_len = __ldcg(problem.kv_lens + sequence);
        }
      } while (kv_len <= 0);
      num_tiles = (kv_len + kDecodeTileKeys - 1) / kDecodeTileKeys;
    }
    tile = membership.first_tile();
  }
};

/// A tile on its way: what the loader must know to copy it.
struct PendingTile {
  const BlockId* entry;  ///< its page's place in the block table
  BlockId page;          ///< what stands there, or will, once the load is back
  int offset;            ///< of its first key in the page, elements
  int scales;            ///< of that key's scale, bytes, in formats that have them
  int num_keys;          ///< 0: no tile
  bool has_newest;       ///< holds the last key of its sequence

  __device__ __forceinline__ void read_page() {
    if (num_keys > 0) page = __ldcg(entry);
  }
};

/// Starts copying a tile to the shared address `to`: K, then V, each [16][head_dim] with the
/// 16-byte chunks of row r exchanged by XOR with `Traits::exchange(r)`; then the scales of K and of
/// V, if there are any. Rows past the last key become zeros: what they hold in memory may be NaN.
/// Always one group of copies, empty when there is no tile. All lanes.
template <class T, class Traits>
__device__ __forceinline__ void copy_tile(const DecodeProblem<T>& problem, const PendingTile& tile,
                                          std::uint32_t to, L2Policy policy) {
  if (tile.num_keys > 0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / Traits::kChunks, chunk = lane % Traits::kChunks;
    const auto* const page =
        static_cast<const typename Traits::Stored*>(problem.kv) + tile.page * problem.page_stride;
    const int value_distance = problem.num_kv_heads * problem.head_stride;
    const auto* const k = page + tile.offset + lane * Traits::kChunkElements;
    const auto* const v = k + value_distance;
#pragma unroll
    for (int i = 0; i < Traits::kCopies; ++i) {
      const int r = i * Traits::kRowsPerCopy + row;
      const std::uint32_t at = to + r * Traits::kRowBytes + ((chunk ^ Traits::exchange(r)) * 16);
      const bool exists = r < tile.num_keys;
      copy_async_16_or_zero(at, k + i * 32 * Traits::kChunkElements, exists, policy);
      copy_async_16_or_zero(at + Traits::kMatrixBytes, v + i * 32 * Traits::kChunkElements, exists,
                            policy);
    }
    if constexpr (Traits::kHasScales) {
      static_assert(Traits::kElementBytes == 1);
      if (lane < 8) {  // four scales each, of K, then of V
        const int first = lane % 4 * 4;
        copy_async_16_or_zero(to + 2 * Traits::kMatrixBytes + lane * 16,
                              page + (lane < 4 ? 0 : value_distance) + tile.scales + first * 4,
                              first < tile.num_keys, policy);
      }
    }
  }
  copy_async_commit();
}

/// Fetches a warp's tiles, in order, into its ring.
template <class T, class Traits, bool kShares>
struct DecodeLoader {
  const DecodeProblem<T>& problem;
  std::uint32_t ring;  ///< shared address
  DecodeCursor<kShares> cursor;
  int remaining;  ///< tiles not located yet
  int page_index, page_row;
  L2Policy once = l2_evict_first();  ///< keys are not read again before the next step
  PendingTile next;                  ///< after `fill`: the next tile to be copied

  __device__ __forceinline__ DecodeLoader(const DecodeProblem<T>& problem_in,
                                          const DecodeRange& range, std::uint32_t ring_in)
      : problem(problem_in), ring(ring_in), cursor(range), remaining(range.num_tiles) {
    go_to(range.tile);
  }

  /// Finds the next tile, without its page.
  __device__ __forceinline__ PendingTile locate() {
    if (remaining == 0) return {};
    const int tile = cursor.head * problem.head_stride;
    const PendingTile out{
        problem.block_tables + cursor.sequence * problem.table_stride + page_index,
        0,
        tile + page_row * Traits::kHeadDim,
        Traits::kHasScales ? tile + problem.block_size * Traits::kHeadDim + page_row * 4 : 0,
        cursor.num_keys(),
        cursor.at_last_tile()};
    if (--remaining == 0) return out;
    if (cursor.at_last_tile()) {
      cursor.next_item(problem);
      go_to(cursor.tile);
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
      return PendingTile{nullptr,
                         __shfl_sync(~0u, mine.page, i),
                         __shfl_sync(~0u, mine.offset, i),
                         Traits::kHasScales ? __shfl_sync(~0u, mine.scales, i) : 0,
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

  /// Starts copying a tile to the shared address `to`.
  __device__ __forceinline__ void copy(const PendingTile& tile, std::uint32_t to) const {
    copy_tile<T, Traits>(problem, tile, to, once);
  }

 private:
  /// To tile `tile` of a sequence.
  __device__ __forceinline__ void go_to(int tile) {
    const int key = tile * kDecodeTileKeys;
    page_index = key / problem.block_size;
    page_row = key % problem.block_size;
  }
};

}  // namespace nanovllm::cuda::detail
