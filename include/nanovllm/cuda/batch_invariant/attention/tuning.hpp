#pragma once
/// Numbers that attention in one order is run by, and the choices that follow from shapes alone.
/// For the host; nothing here needs CUDA.

#include <cstdint>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// Keys that are summed up with a maximum of their own: segment i of a sequence is keys
/// [i · kOrderedSegmentKeys, (i + 1) · kOrderedSegmentKeys).
inline constexpr int kOrderedSegmentKeys = 256;
/// Keys whose weights are made at a time.
inline constexpr int kOrderedTileKeys = 64;
inline constexpr int kOrderedSegmentTiles = kOrderedSegmentKeys / kOrderedTileKeys;

inline constexpr int kOrderedDecodeWarps = 8;        ///< of a block; one block an SM
inline constexpr int kOrderedPieceKeys = 32;         ///< keys or values that a warp copies at once
inline constexpr int kOrderedRingBytes = 24 * 1024;  ///< a warp's pieces in flight
inline constexpr int kOrderedMaxGroup = 16;          ///< query heads a kv head
inline constexpr int kOrderedPartExtra = 4;          ///< floats of a part besides head_dim

/// Whether the tensor-core kernels take heads of this shape; else both ops run `simt_attention`.
[[nodiscard]] constexpr bool fits_ordered_attention(std::int64_t head_dim, std::int64_t group) {
  return (head_dim == 64 || head_dim == 128) && group <= kOrderedMaxGroup;
}

/// Segments of a step: of `num_seqs` sequences of up to `max_keys` keys.
[[nodiscard]] constexpr std::int64_t ordered_max_segments(std::int64_t num_seqs,
                                                          std::int64_t max_keys) {
  return num_seqs * (max_keys > kOrderedSegmentKeys ? ceil_div(max_keys, kOrderedSegmentKeys) : 1);
}

/// Floats of what one segment leaves of one kv head.
[[nodiscard]] constexpr std::int64_t ordered_part_floats(std::int64_t group,
                                                         std::int64_t head_dim) {
  return group * (head_dim + kOrderedPartExtra);
}

}  // namespace nanovllm::cuda
