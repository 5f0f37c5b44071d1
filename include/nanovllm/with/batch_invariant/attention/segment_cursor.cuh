#pragma once
/// Shapes and operands of the decode kernel in decode.cuh, and a warp's way through its segments.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/with/batch_invariant/attention/plan.cuh"
#include "nanovllm/with/batch_invariant/attention/tuning.hpp"

namespace nanovllm::cuda {

/// `kWholeValue`: 16 keys in a row lie in one block of the cache.
template <MmaElement T, int kHeadDimValue, bool kWholeValue>
struct SegmentDecodeTraits {
  using Type = T;
  static constexpr bool kWhole = kWholeValue;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kWarps = kSegmentDecodeWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRowBytes = 2 * kHeadDim;
  static constexpr int kVectors = kRowBytes / 16;     ///< pieces of 16 bytes a row
  static constexpr int kRowsPerCopy = 32 / kVectors;  ///< rows that a warp copies at once
  static constexpr int kPieceBytes = kSegmentPieceKeys * kRowBytes;
  static constexpr int kStages = kSegmentRingBytes / kPieceBytes;
  static constexpr int kTilePieces = kSegmentTileKeys / kSegmentPieceKeys;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kPartFloats = kHeadDim + kSegmentPartExtra;
  static_assert(kHeadDim == 64 || kHeadDim == 128);
};

/// The operands, and the workspace's memory.
template <class T>
struct SegmentDecodeProblem {
  TensorView<const T, 3> q;
  KvView<T> kv;
  MatrixView<const BlockId> block_tables;
  TensorView<T, 3> out;
  SegmentPlan plan;
  float scale_log2;
  int group;
  int max_units;
  bool early;
};

namespace detail {

/// A warp's way through its segments, tile by tile.
struct SegmentCursor {
  int unit;  ///< segment · kv heads + head; beyond the last there is no more
  int head;
  KeySegment segment;
  int key;  ///< the first of the tile
  int end;  ///< of the segment

  [[nodiscard]] __device__ __forceinline__ int num_keys() const {
    return min(end - key, kSegmentTileKeys);
  }
  [[nodiscard]] __device__ __forceinline__ int num_pieces() const {
    return ceil_div(num_keys(), kSegmentPieceKeys);
  }

  /// Goes to `to`, if there is such a unit.
  __device__ __forceinline__ void go_to(int to, int num_units, int heads,
                                        const KeySegment* segments) {
    unit = to;
    if (unit >= num_units) return;
    head = unit % heads;
    const int4 s = __ldcg(reinterpret_cast<const int4*>(segments + unit / heads));
    segment = {s.x, s.y, s.z, s.w};
    key = segment.index * kSegmentKeys;
    end = min(key + kSegmentKeys, segment.num_keys);
  }
};

}  // namespace detail

}  // namespace nanovllm::cuda
