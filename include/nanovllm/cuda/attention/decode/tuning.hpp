#pragma once
/// Numbers that decode attention is run by, and the choices that follow from shapes alone. For the
/// host; nothing here needs CUDA.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

inline constexpr int kDecodeTileKeys = 16;      ///< keys a tile: the m of one tensor-core product
inline constexpr int kDecodeMaxGroup = 16;      ///< query heads a kv head that the fast path takes
inline constexpr int kDecodeRingBytes = 16384;  ///< a warp's tiles, at least: 128 KiB in 8 warps
inline constexpr int kDecodePartExtra = 4;      ///< floats of an unfinished head besides head_dim
inline constexpr int kDecodeSlotBytes = 8;
inline constexpr int kDecodeMinTiles = 8;  ///< of a block, unless it is idle
/// Tiles of a block up to which it pays that items do not reach into other blocks.
inline constexpr int kDecodeWholeItemTiles = 64;
inline constexpr int kDecodePlanThreads = 256;
inline constexpr int kDecodePlanWarps = 32;  ///< ranges that a block of the plan kernel computes

/// Tiles of 8 query heads that share a tile of keys where several sequences read it: 32 columns,
/// which members of a `SharedPrefix` with `group` heads each fill up.
inline constexpr int kDecodeSharedHeadTiles = 4;
inline constexpr int kDecodeSharedColumns = 8 * kDecodeSharedHeadTiles;
/// Tiles of shared prefixes that a warp reads at the least, where they are few: each block that has
/// a part of an item is one more for every member to merge.
inline constexpr int kDecodeSharedTiles = 4;

/// The grid of the decode kernel.
struct DecodeGrid {
  int num_blocks;
  int warps_per_block;      ///< 4 or 8
  int min_tiles_per_block;  ///< blocks go idle rather than get fewer: merging has its price

  [[nodiscard]] constexpr int num_warps() const { return num_blocks * warps_per_block; }
};

/// Bytes of a tile of keys and values: rows of `element_bytes` an element, and a float for each row
/// after them where there are scales.
[[nodiscard]] constexpr int decode_tile_bytes(int element_bytes, bool has_scales, int head_dim) {
  return 2 * kDecodeTileKeys * (element_bytes * head_dim + (has_scales ? 4 : 0));
}

/// Tiles of `tile_bytes` in a warp's ring.
[[nodiscard]] constexpr int decode_stages(int tile_bytes) {
  return ceil_div(kDecodeRingBytes, tile_bytes);
}

/// Bytes of the queries of a block where it reads keys for many sequences. They lie where
/// unfinished items come later.
[[nodiscard]] constexpr std::size_t decode_query_bytes(std::int64_t head_dim) {
  return static_cast<std::size_t>(kDecodeSharedColumns * head_dim) * 2;
}

/// Shared memory of the decode kernel: the rings of all warps, then an unfinished item a warp, then
/// two slots a warp.
[[nodiscard]] constexpr std::size_t decode_shared_bytes(int warps, std::int64_t group,
                                                        std::int64_t head_dim,
                                                        int ring_bytes = kDecodeRingBytes) {
  const auto items =
      static_cast<std::size_t>(warps * group * (head_dim + kDecodePartExtra)) * sizeof(float);
  return static_cast<std::size_t>(warps) * (ring_bytes + 2 * kDecodeSlotBytes) +
         std::max(items, decode_query_bytes(head_dim));
}

/// One block an SM, of 8 warps where `max_shared_bytes` hold what they need, else of 4.
[[nodiscard]] constexpr DecodeGrid default_decode_grid(std::int64_t group, std::int64_t head_dim,
                                                       int num_sms, std::size_t max_shared_bytes) {
  const bool fits = decode_shared_bytes(8, group, head_dim) <= max_shared_bytes;
  return {num_sms, fits ? 8 : 4, kDecodeMinTiles};
}

/// Sequences whose heads the shared columns hold.
[[nodiscard]] constexpr int decode_members_at_once(std::int64_t group) {
  return kDecodeSharedColumns / static_cast<int>(group);
}

/// Whether the tensor-core kernel takes heads and blocks of these sizes; `block_stride` elements
/// are between blocks of the cache.
[[nodiscard]] constexpr bool fits_decode_kernel(std::int64_t head_dim, std::int64_t group,
                                                std::int64_t block_size,
                                                std::int64_t block_stride) {
  return (head_dim == 64 || head_dim == 128) && group <= kDecodeMaxGroup && block_size > 0 &&
         block_size % kDecodeTileKeys == 0 &&
         block_stride <= std::numeric_limits<std::int32_t>::max();
}

/// Tiles of 8 query heads that a group takes.
[[nodiscard]] constexpr int decode_head_tiles(std::int64_t group) { return group <= 8 ? 1 : 2; }

/// Whether the tiles of `num_seqs` sequences of up to `num_keys` keys, times the kv heads, can be
/// counted: the plan has 31 bits.
[[nodiscard]] constexpr bool can_count_decode_tiles(std::int64_t num_seqs,
                                                    std::int64_t num_kv_heads,
                                                    std::int64_t num_keys) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t tiles = ceil_div(num_keys, kDecodeTileKeys);
  if (num_seqs == 0 || num_kv_heads == 0) return true;
  return num_seqs <= kMost / num_kv_heads && tiles <= kMost / (num_seqs * num_kv_heads);
}

}  // namespace nanovllm::cuda
