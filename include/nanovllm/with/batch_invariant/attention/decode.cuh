#pragma once
/// `decode_attention` in one order: every segment of 256 keys, of one sequence and kv head, is the
/// work of one warp, and segments are merged as in segments.cuh.
///
/// The arithmetic is that of batch_invariant/attention/attention.cuh, instruction for instruction,
/// with the query heads of the group as the rows of a tile where that one has queries of one head:
/// scores of 64 keys by m16n8k16 along head_dim, `RowSoftmax`, weights rounded to T, o += p · V. So
/// a token gets the same bits from either kernel.
///
/// A warp works alone. It copies keys and values in pieces of 32 rows through its own ring, by
/// cp.async, as far ahead as the ring goes, also into its next segment; where a tile's pages are is
/// looked up a tile ahead. Segments of a sequence that has several leave parts in device memory,
/// and the warp that comes last takes them in, from the first to the last.
///
/// Bytes moved: every key and value once; q and out; a part of group · (head_dim + 4) floats for
/// 256 keys, written and read, where a sequence has more.
/// Measured: batch_invariant_bench, cuda_batch_invariant_attention.json, needed by the mode: 279 us
/// for 256 x 1,024 keys and 16.3 for 1 x 512; the default kernel takes 254 and 5.1.
/// Longer than 400 lines: a warp's work is one class, whose members share registers.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/attention/varlen/softmax.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/attention.hpp"
#include "nanovllm/with/batch_invariant/attention/segments.cuh"

namespace nanovllm::cuda {

namespace detail {

/// One warp's work.
template <class Traits>
class SegmentWarp {
  using T = typename Traits::Type;

 public:
  __device__ __forceinline__ SegmentWarp(const SegmentDecodeProblem<T>& problem, std::uint32_t ring)
      : problem_(problem),
        ring_(ring),
        lane_(static_cast<int>(threadIdx.x) % 32),
        heads_(static_cast<int>(problem.kv.num_kv_heads)) {
    const int l = lane_ % 8;  // the row modulo 8
    k_at_ = (l + lane_ / 16 * 8) * Traits::kRowBytes + ((lane_ / 8 % 2) ^ l) * 16;
    v_at_ = (lane_ % 16) * Traits::kRowBytes + ((lane_ / 16) ^ l) * 16;
  }

  __device__ __forceinline__ void run() {
    if (!problem_.early) grid_dependency_wait();
    const int first = static_cast<int>(threadIdx.x) / 32 * static_cast<int>(gridDim.x) +
                      static_cast<int>(blockIdx.x);
    // What the list says of a first segment that may not be there is read beside its length.
    load_.go_to(first, problem_.max_units, heads_, problem_.plan.segments);
    num_units_ = __ldcg(problem_.plan.num_segments) * heads_;
    const SegmentCursor begin_at = load_;
    if (first < num_units_) {
      skip_empty();
      look_up();
    }
    if (problem_.early) grid_dependency_wait();
    if (first >= num_units_) return;
    SegmentCursor at = begin_at;
    for (int i = 0; i < Traits::kStages - 1; ++i) send_piece();
    while (at.unit < num_units_) {
      begin(at);
      for (; at.key < at.end; at.key += kSegmentTileKeys) attend(at);
      end(at);
      at.go_to(at.unit + stride(), num_units_, heads_, problem_.plan.segments);
    }
    copy_async_wait<0>();
  }

 private:
  [[nodiscard]] static __device__ __forceinline__ int stride() {
    return static_cast<int>(gridDim.x) * Traits::kWarps;
  }

  // ---- Copies ----

  /// Goes on to a segment that has keys.
  __device__ __forceinline__ void skip_empty() {
    while (load_.unit < num_units_ && load_.key >= load_.end)
      load_.go_to(load_.unit + stride(), num_units_, heads_, problem_.plan.segments);
  }

  /// Starts reading which pages the tile of `load_` lies in: lane i that of keys i and i + 32.
  __device__ __forceinline__ void look_up() {
    if (load_.unit >= num_units_) return;
    const BlockId* const table = problem_.block_tables.at(load_.segment.sequence);
    const auto block_size = static_cast<int>(problem_.kv.block_size);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = load_.key + lane_ + 32 * i;
      coming_[i] = key < load_.end ? __ldcg(table + key / block_size) : BlockId{-1};
    }
  }

  /// The tile that was looked up is the one to copy now; looks up the one after it.
  __device__ __forceinline__ void take_pages() {
    const auto block_size = static_cast<int>(problem_.kv.block_size);
    const auto head_dim = problem_.kv.head_dim;
    const std::int64_t head = load_.head * problem_.kv.tile_size();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = load_.key + lane_ + 32 * i;
      offsets_[i] = coming_[i] < 0 ? -1
                                   : coming_[i] * problem_.kv.block_stride() + head +
                                         key % block_size * head_dim;
    }
    tile_keys_ = load_.num_keys();
    pieces_ = load_.num_pieces();
    piece_ = 0;
    load_.key += kSegmentTileKeys;
    skip_empty();
    look_up();
  }

  /// Starts copying the next piece, if there is one: the keys of a tile, then its values. Rows that
  /// are not there become zeros: their weights are 0, but 0 · NaN is not.
  __device__ __forceinline__ void send_piece() {
    if (piece_ == 2 * pieces_ && load_.unit < num_units_) take_pages();
    if (piece_ < 2 * pieces_) {
      const bool is_value = piece_ >= pieces_;
      const int which = is_value ? piece_ - pieces_ : piece_;
      const T* const from =
          problem_.kv.data +
          (is_value ? problem_.kv.num_kv_heads * problem_.kv.tile_size() : std::int64_t{0});
      copy_piece(from, which == 0 ? offsets_[0] : offsets_[1],
                 tile_keys_ - which * kSegmentPieceKeys, ring_ + filled_ * Traits::kPieceBytes);
      ++piece_;
    }
    copy_async_commit();
    if (++filled_ == Traits::kStages) filled_ = 0;
  }

  /// Lane i has the offset of row i, -1 if there is none; there are `num_rows`.
  __device__ __forceinline__ void copy_piece(const T* from, std::int64_t offset, int num_rows,
                                             std::uint32_t to) const {
    constexpr int kRowsPerCopy = Traits::kRowsPerCopy, kRun = 16;
    const int row = lane_ / Traits::kVectors, column = lane_ % Traits::kVectors;
    // Columns are permuted by XOR with the row modulo 8; bits of `row` and of a copy's first row
    // are apart.
    const std::uint32_t to_lane =
        static_cast<std::uint32_t>(row * Traits::kRowBytes + (column ^ row) * 16);
#pragma unroll
    for (int run = 0; run < kSegmentPieceKeys; run += kRun) {
      const std::int64_t begin = __shfl_sync(~0u, offset, run);
      const T* const from_lane = from + (begin < 0 ? 0 : begin) + 8 * lane_;
#pragma unroll
      for (int i = 0; i < kRun; i += kRowsPerCopy) {
        const T* source = from_lane + i * Traits::kHeadDim;
        if constexpr (!Traits::kWhole) {
          const std::int64_t at = __shfl_sync(~0u, offset, run + i + row);
          source = from + (at < 0 ? 0 : at) + 8 * column;
        }
        const bool exists = run + i + row < num_rows;
        copy_async_16_or_zero<L2Fetch::bytes_128>(
            to + (run + i) * Traits::kRowBytes + (to_lane ^ (i % 8 * 16)), exists ? source : from,
            exists);
      }
    }
  }

  /// Waits for the next piece, and has the one before it overwritten. Where it is.
  __device__ __forceinline__ std::uint32_t next_piece() {
    copy_async_wait<Traits::kStages - 2>();
    __syncwarp();
    const std::uint32_t out = ring_ + used_ * Traits::kPieceBytes;
    if (++used_ == Traits::kStages) used_ = 0;
    send_piece();
    return out;
  }

  // ---- Arithmetic ----

  /// Reads the queries of a segment's group: rows beyond it are zeros.
  __device__ __forceinline__ void begin(const SegmentCursor& at) {
    const int g = lane_ / 4, t = lane_ % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = g + 8 * r < problem_.group;
      const auto* const row = reinterpret_cast<const std::uint32_t*>(
          problem_.q.at(at.segment.sequence, at.head * problem_.group + (exists ? g + 8 * r : 0)));
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        q_[step][r] = exists ? row[8 * step + t] : 0u;
        q_[step][r + 2] = exists ? row[8 * step + t + 4] : 0u;
      }
    }
    softmax_ = RowSoftmax{};
#pragma unroll
    for (float& x : o_) x = 0.f;
  }

  /// Takes in a tile.
  __device__ __forceinline__ void attend(const SegmentCursor& at) {
    const int num_pieces = at.num_pieces();
    float s[kSegmentTileKeys / 2] = {};
#pragma unroll
    for (int n = 0; n < Traits::kTilePieces; ++n) {
      if (n >= num_pieces) break;
      const std::uint32_t keys = next_piece() + k_at_;
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        std::uint32_t k[2][4];
        ldmatrix_x4(k[0], keys ^ (32 * step));
        ldmatrix_x4(k[1], (keys ^ (32 * step)) + 16 * Traits::kRowBytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_m16n8k16<T>(s, 4 * n + 2 * i, q_[step], k[i][0], k[i][1]);
          mma_m16n8k16<T>(s, 4 * n + 2 * i + 1, q_[step], k[i][2], k[i][3]);
        }
      }
    }
    float shrink[2];
    if (at.num_keys() < kSegmentTileKeys) mask(s, at.num_keys());
    softmax_.template update<false>(s, 0, problem_.scale_log2, shrink);
    scale_rows(o_, shrink);
    std::uint32_t p[kSegmentTileKeys / 16][4];
    pack_weights<T>(s, p);
#pragma unroll
    for (int n = 0; n < Traits::kTilePieces; ++n) {
      if (n >= num_pieces) break;
      const std::uint32_t values = next_piece() + v_at_;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int column = 0; column < Traits::kVectors; column += 2) {
          std::uint32_t v[4];
          ldmatrix_x4_trans(v, (values ^ (16 * column)) + 16 * i * Traits::kRowBytes);
          mma_m16n8k16<T>(o_, column, p[2 * n + i], v[0], v[1]);
          mma_m16n8k16<T>(o_, column + 1, p[2 * n + i], v[2], v[3]);
        }
      }
    }
  }

  /// Keys from `num_keys` ≥ 1 on get no weight, in any row: `RowSoftmax` masks for rows of which
  /// each sees one key more.
  __device__ __forceinline__ void mask(float (&s)[kSegmentTileKeys / 2], int num_keys) const {
    const int bound = num_keys - 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < kSegmentTileKeys / 2; ++i) {
      if (8 * (i / 4) + i % 2 >= bound) s[i] = -INFINITY;
    }
  }

  // ---- Results ----

  /// Writes the result of a sequence that has one segment, or a part; the last part of a sequence
  /// to be there has all of them put together.
  __device__ __forceinline__ void end(const SegmentCursor& at) {
    const KeySegment& segment = at.segment;
    const int group = problem_.group, first_head = at.head * group;
    if (segment.first_part < 0) {
      const float factor[2] = {softmax_.finish(0), softmax_.finish(1)};
      const int g = lane_ / 4;
      // Rows beyond the group are not written; their addresses are not used.
      store_rows(o_, factor,
                 problem_.out.at(segment.sequence, first_head) + g * problem_.out.strides[1],
                 problem_.out.strides[1], group - g);
      return;
    }
    store_part(at);
    __threadfence();
    __syncwarp();
    const int num_segments = ceil_div(segment.num_keys, kSegmentKeys);
    std::int32_t* const arrivals = problem_.plan.arrivals + segment.sequence * heads_ + at.head;
    int arrived = 0;
    if (lane_ == 0) arrived = atomicAdd(arrivals, 1) + 1;
    if (__shfl_sync(~0u, arrived, 0) != num_segments) return;
    if (lane_ == 0) *arrivals = 0;
    __threadfence();
    for (int row = 0; row < group; ++row) merge(at, row, num_segments);
  }

  [[nodiscard]] __device__ __forceinline__ float* part(const SegmentCursor& at, int index) const {
    return problem_.plan.parts +
           (static_cast<std::int64_t>(at.segment.first_part + index) * heads_ + at.head) *
               (problem_.group * Traits::kPartFloats);
  }

  __device__ __forceinline__ void store_part(const SegmentCursor& at) const {
    const int g = lane_ / 4, t = lane_ % 4;
    float* const to = part(at, at.segment.index);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = softmax_.total(r);
      if (g + 8 * r >= problem_.group) continue;
      float* const row = to + (g + 8 * r) * Traits::kPartFloats;
#pragma unroll
      for (int i = 0; i < Traits::kHeadDim / 8; ++i)
        *reinterpret_cast<float2*>(row + 8 * i + 2 * t) = {o_[4 * i + 2 * r],
                                                           o_[4 * i + 2 * r + 1]};
      if (t == 0) *reinterpret_cast<float2*>(row + Traits::kHeadDim) = {softmax_.max[r], sum};
    }
  }

  /// Puts the parts of one row together: a lane has head_dim / 32 of its columns.
  __device__ __forceinline__ void merge(const SegmentCursor& at, int row, int num_segments) const {
    constexpr int kColumns = Traits::kHeadDim / 32, kAhead = 8;
    const std::int64_t stride =
        static_cast<std::int64_t>(heads_) * problem_.group * Traits::kPartFloats;
    const float* from = part(at, 0) + row * Traits::kPartFloats;
    SegmentSum sum;
    float o[kColumns] = {};
    for (int first = 0; first < num_segments; first += kAhead) {
      float next[kAhead][kColumns];
      float2 state[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        state[i] = {-INFINITY, 0.f};
        if (first + i >= num_segments) continue;
        const float* const p = from + (first + i) * stride;
        state[i] = __ldcg(reinterpret_cast<const float2*>(p + Traits::kHeadDim));
#pragma unroll
        for (int j = 0; j < kColumns; j += 2) {
          const float2 x = __ldcg(reinterpret_cast<const float2*>(p + lane_ * kColumns + j));
          next[i][j] = x.x;
          next[i][j + 1] = x.y;
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= num_segments) break;
        const SegmentSum::Factors factors = sum.take(state[i].x, state[i].y, problem_.scale_log2);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) o[j] = SegmentSum::add(o[j], next[i][j], factors);
      }
    }
    const float factor = sum.finish();
    auto* const to = reinterpret_cast<std::uint32_t*>(
        problem_.out.at(at.segment.sequence, at.head * problem_.group + row) + lane_ * kColumns);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2)
      to[j / 2] = pack_pair<T>(o[j] * factor, o[j + 1] * factor);
  }

  const SegmentDecodeProblem<T>& problem_;
  std::uint32_t ring_;
  int lane_, heads_, num_units_ = 0;
  std::uint32_t k_at_, v_at_;  ///< what this lane gives to ldmatrix, within a piece

  SegmentCursor load_;       ///< the tile after the one that is being copied
  BlockId coming_[2];        ///< its pages
  std::int64_t offsets_[2];  ///< of keys lane and lane + 32 of the tile that is being copied
  int tile_keys_ = 0;
  int pieces_ = 0;  ///< of its keys
  int piece_ = 0;   ///< to copy next
  int filled_ = 0, used_ = 0;

  std::uint32_t q_[Traits::kSteps][4];
  RowSoftmax softmax_;
  float o_[Traits::kHeadDim / 2];
};

}  // namespace detail

/// Grid: a block an SM.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) batch_invariant_decode_attention_kernel(
    const __grid_constant__ SegmentDecodeProblem<typename Traits::Type> problem) {
  extern __shared__ uint4 segment_decode_ring[];
  grid_dependency_launch();
  const std::uint32_t begin = align_up(shared_address(segment_decode_ring), 1024u);
  detail::SegmentWarp<Traits>(
      problem, begin + static_cast<std::uint32_t>(threadIdx.x) / 32 * kSegmentRingBytes)
      .run();
}

/// The launcher; operands are not empty and fit the workspace. `early` promises that a kernel
/// before this one lets its successor start only after its own `grid_dependency_wait`, and that the
/// plan and the block tables were written before that one: then they are read while kernels ahead
/// still run.
template <int kHeadDim, MmaElement T, class Heads>
void batch_invariant_decode_attention(const DecodeAttentionArgs<T, T, Heads>& args,
                                      SegmentDecodeWorkspace& workspace, bool early,
                                      const Context& context) {
  const auto heads = static_cast<int>(args.kv.num_kv_heads);
  const SegmentDecodeProblem<T> problem{args.q,
                                        args.kv,
                                        args.block_tables,
                                        args.out,
                                        workspace.plan(),
                                        args.scale * static_cast<float>(kLog2E),
                                        static_cast<int>(args.q.extent(1)) / heads,
                                        static_cast<int>(workspace.max_segments()) * heads,
                                        early};
  const auto launch_traits = [&]<bool kWhole>() {
    using Traits = SegmentDecodeTraits<T, kHeadDim, kWhole>;
    launch(batch_invariant_decode_attention_kernel<Traits>,
           {.grid = static_cast<unsigned>(context.num_sms),
            .block = Traits::kThreads,
            .shared_bytes = static_cast<std::size_t>(Traits::kWarps * kSegmentRingBytes + 1024)},
           context, problem);
  };
  if (args.kv.block_size % 16 == 0)
    launch_traits.template operator()<true>();
  else
    launch_traits.template operator()<false>();
}

}  // namespace nanovllm::cuda
