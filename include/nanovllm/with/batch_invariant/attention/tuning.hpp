#pragma once
/// Numbers that attention in one order is run by, and the choices that follow from shapes alone.
/// For the host; nothing here needs CUDA.

#include <cstdint>

#include "nanovllm/core/math.hpp"

namespace nanovllm::cuda {

/// Keys that are summed with a separate maximum: segment i of a sequence is keys
/// [i · kSegmentKeys, (i + 1) · kSegmentKeys).
inline constexpr int kSegmentKeys = 256;
/// Keys whose weights are made at a time.
inline constexpr int kSegmentTileKeys = 64;
inline constexpr int kSegmentTiles = kSegmentKeys / kSegmentTileKeys;

inline constexpr int kSegmentDecodeWarps = 8;        ///< of a block; one block an SM
inline constexpr int kSegmentPieceKeys = 32;         ///< keys or values that a warp copies at once
inline constexpr int kSegmentRingBytes = 24 * 1024;  ///< a warp's pieces in flight
inline constexpr int kSegmentMaxGroup = 16;          ///< query heads a kv head
inline constexpr int kSegmentPartExtra = 4;          ///< floats of a part besides head_dim

/// Whether the tensor-core kernels take heads of this shape; else both ops run `simt_attention`.
[[nodiscard]] constexpr bool fits_batch_invariant_attention(std::int64_t head_dim,
                                                            std::int64_t group) {
  return (head_dim == 64 || head_dim == 128) && group <= kSegmentMaxGroup;
}

/// Segments of a step: of `num_seqs` sequences of up to `max_keys` keys.
[[nodiscard]] constexpr std::int64_t most_segments(std::int64_t num_seqs, std::int64_t max_keys) {
  return num_seqs * (max_keys > kSegmentKeys ? ceil_div(max_keys, kSegmentKeys) : 1);
}

/// Floats of what one segment leaves of one kv head.
[[nodiscard]] constexpr std::int64_t segment_part_floats(std::int64_t group,
                                                         std::int64_t head_dim) {
  return group * (head_dim + kSegmentPartExtra);
}

}  // namespace nanovllm::cuda
