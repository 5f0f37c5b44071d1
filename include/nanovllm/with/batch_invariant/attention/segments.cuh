#pragma once
/// Segments of keys. First how they are merged, in both kernels of batch-invariant attention.
///
/// A segment leaves of each row the maximum m of its scores, the sum l of its weights and the
/// weighted sums o of its values, all float32, l complete. Segments are taken in one after the
/// other, from the first:
///
///   M' = max(M, m),   a = 2^(c (M - M')),   b = 2^(c (m - M')),   L' = a L + b l,   O' = a O + b o
///
/// beginning with M = -inf, L = O = 0; every product and sum is the one written here. Taking in the
/// first segment leaves it as it is, and so does taking in one that a row sees nothing of.
///
/// Then what `batch_invariant_decode_attention` works on: the list of a step's segments, made once
/// a step by one small kernel, room for what they leave, the operands of its kernel in decode.cuh,
/// and a warp's way through its segments.
/// Measured: not by itself; 0.882 ms for a step of 0.6B with 1 sequence, which has one plan
/// (engine_bench, cuda_batch_invariant_0_6b.json).

#include <cuda_runtime.h>
#include <cub/block/block_scan.cuh>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/exp2.cuh"
#include "nanovllm/ops/attention.hpp"

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

/// Maximum and sum of the segments of a row so far.
struct SegmentSum {
  float max = -INFINITY;
  float sum = 0.f;

  /// What the sums so far and those of a segment are multiplied by.
  struct Factors {
    float before;
    float segment;
  };

  /// Takes in a segment with maximum `m` and sum `l`; c = scale · log2 e.
  __device__ __forceinline__ Factors take(float m, float l, float c) {
    if (m == -INFINITY) return {1.f, 0.f};
    const float most = fmaxf(max, m);
    const Factors out{exp2_approx(__fmul_rn(__fsub_rn(max, most), c)),
                      exp2_approx(__fmul_rn(__fsub_rn(m, most), c))};
    max = most;
    sum = add(sum, l, out);
    return out;
  }

  [[nodiscard]] static __device__ __forceinline__ float add(float before, float segment,
                                                            const Factors& factors) {
    return __fmaf_rn(before, factors.before, __fmul_rn(segment, factors.segment));
  }

  /// What sums are multiplied by at the end; 0 for a row without keys.
  [[nodiscard]] __device__ __forceinline__ float finish() const {
    return sum == 0.f ? 0.f : __frcp_rn(sum);
  }
};

/// One segment of one sequence.
struct alignas(16) KeySegment {
  std::int32_t sequence;
  std::int32_t index;       ///< among the sequence's
  std::int32_t num_keys;    ///< of the sequence
  std::int32_t first_part;  ///< number of the part that segment 0 leaves; -1: there is only one
};

/// The list as kernels see it: whole segments first, so that those that take longest are begun
/// first.
struct SegmentPlan {
  const KeySegment* segments;
  const std::int32_t* num_segments;
  float* parts;            ///< [part][kv head][segment_part_floats]
  std::int32_t* arrivals;  ///< [sequence][kv head], 0 between kernels
};

/// Device memory of the list and the parts, allocated once.
class SegmentDecodeWorkspace {
 public:
  /// Room for steps of up to `max_num_seqs` sequences of up to `max_keys` keys, on the device that
  /// is current.
  SegmentDecodeWorkspace(std::int64_t max_num_seqs, std::int64_t max_keys,
                         std::int64_t num_kv_heads, std::int64_t group, std::int64_t head_dim)
      : max_seqs_(max_num_seqs),
        num_kv_heads_(num_kv_heads),
        part_floats_(segment_part_floats(group, head_dim)),
        segments_(static_cast<std::size_t>(most_segments(max_num_seqs, max_keys))),
        num_segments_(1),
        parts_(segments_.size() * static_cast<std::size_t>(num_kv_heads * part_floats_)),
        arrivals_(static_cast<std::size_t>(max_num_seqs * num_kv_heads)) {
    check_cuda(cudaMemset(arrivals_.data(), 0, arrivals_.size_bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] std::int64_t max_segments() const {
    return static_cast<std::int64_t>(segments_.size());
  }
  [[nodiscard]] std::int64_t max_seqs() const { return max_seqs_; }
  [[nodiscard]] std::int64_t num_kv_heads() const { return num_kv_heads_; }
  [[nodiscard]] std::int64_t part_floats() const { return part_floats_; }
  [[nodiscard]] KeySegment* segments() { return segments_.data(); }
  [[nodiscard]] std::int32_t* num_segments() { return num_segments_.data(); }
  [[nodiscard]] SegmentPlan plan() {
    return {segments_.data(), num_segments_.data(), parts_.data(), arrivals_.data()};
  }

 private:
  std::int64_t max_seqs_, num_kv_heads_, part_floats_;
  DeviceBuffer<KeySegment> segments_;
  DeviceBuffer<std::int32_t> num_segments_;
  DeviceBuffer<float> parts_;
  DeviceBuffer<std::int32_t> arrivals_;
};

inline constexpr int kSegmentPlanThreads = 512;

/// One block; a thread takes every kThreads-th sequence. Never more than `capacity` segments.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    plan_segments_kernel(const std::int32_t* kv_lens, int num_seqs, int capacity,
                         KeySegment* segments, std::int32_t* num_segments) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  const int t = static_cast<int>(threadIdx.x);
  grid_dependency_wait();
  grid_dependency_launch();
  const auto total_of = [&](auto count_of) {
    int mine = 0, all = 0, before = 0;
    for (int s = t; s < num_seqs; s += kThreads) mine += count_of(kv_lens[s]);
    Scan(storage).ExclusiveSum(mine, before, all);
    __syncthreads();
    return int2{before, all};
  };
  const auto whole_of = [](int keys) { return keys / kSegmentKeys; };
  // A sequence without keys has a segment without keys, whose result is zeros.
  const auto rest_of = [](int keys) { return keys % kSegmentKeys > 0 || keys == 0 ? 1 : 0; };
  const auto parts_of = [&](int keys) {
    return keys > kSegmentKeys ? whole_of(keys) + rest_of(keys) : 0;
  };
  const int2 whole = total_of(whole_of), rest = total_of(rest_of), parts = total_of(parts_of);
  int at = whole.x, rest_at = whole.y + rest.x, part = parts.x;
  for (int s = t; s < num_seqs; s += kThreads) {
    const int keys = kv_lens[s], num_whole = whole_of(keys);
    const int first_part = parts_of(keys) > 0 ? part : -1;
    for (int i = 0; i < num_whole; ++i, ++at) {
      if (at < capacity) segments[at] = {s, i, keys, first_part};
    }
    if (rest_of(keys) > 0 && rest_at < capacity)
      segments[rest_at] = {s, num_whole, keys, first_part};
    rest_at += rest_of(keys);
    part += parts_of(keys);
  }
  if (t == 0) *num_segments = min(whole.y + rest.y, capacity);
}

/// Writes the list of a step into `workspace`, for the calls of `batch_invariant_decode_attention`
/// that follow in the stream with the same lengths. Throws ShapeError when it has no room for so
/// many sequences.
void plan_segments(VectorView<const std::int32_t> kv_lens, SegmentDecodeWorkspace& workspace,
                   const LaunchContext auto& context) {
  const std::int64_t num_seqs = kv_lens.extent(0);
  check<ShapeError>(num_seqs <= workspace.max_seqs(), "plan_segments: ", num_seqs,
                    " sequences, the workspace has room for ", workspace.max_seqs());
  launch(plan_segments_kernel<kSegmentPlanThreads>, {.grid = 1, .block = kSegmentPlanThreads},
         context, kv_lens.data, static_cast<int>(num_seqs),
         static_cast<int>(workspace.max_segments()), workspace.segments(),
         workspace.num_segments());
}

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
