#pragma once
/// The plan of `decode_attention`: which warp reads which keys, decided on the device.
///
/// The keys of a sequence are cut into tiles of 16. All tiles of a step stand in one list, ordered
/// by (sequence, kv head, tile), and the warps of the grid get equal, contiguous ranges of it,
/// balanced to one tile, whatever the lengths are. The tiles of one (sequence, kv head), an 'item',
/// may thus be shared by neighbouring warps, and by neighbouring blocks: only a block's first item
/// and its last can reach into other blocks, so two unfinished results a block are all the memory
/// that sharing takes.
///
/// The plan depends on the lengths and the number of kv heads alone. It is made once a step, by one
/// small kernel, and serves all layers. Grids and buffers do not depend on the lengths, so the
/// kernels can be captured in a graph and replayed with other lengths in device memory.
/// Source: Dao et al., "Flash-Decoding", 2023; Osama et al., "Stream-K", 2023.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/attention/decode/tuning.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda {

/// Stands where an unfinished item is to come.
inline constexpr unsigned kDecodeEmptyWord = 0xffffffff;

/// An unfinished item of one warp. Each warp has room for two: an item that it did not begin, and
/// one that it does not end.
struct DecodeSlot {
  int item;        ///< sequence · num_kv_heads + head, or -1: empty
  bool has_first;  ///< has seen the item's first tile
  bool has_last;   ///< has seen the item's last tile
};
static_assert(sizeof(DecodeSlot) == kDecodeSlotBytes);

/// What one warp reads. One 32-byte sector.
struct alignas(32) DecodeRange {
  std::int32_t sequence, head, tile;  ///< the first tile
  std::int32_t num_tiles;             ///< 0: nothing, and the fields above are 0
  std::int32_t kv_len;                ///< of `sequence`
  std::int32_t opening_block;         ///< the first block with a part of this block's first item
};
static_assert(sizeof(DecodeRange) == 32);

/// Device memory of `plan_decode` and `decode_attention`: the plan and the unfinished results. One
/// workspace serves the layers of a model one after the other on one stream. Allocates on
/// construction only; movable.
class DecodeWorkspace {
 public:
  /// For steps of at most `max_num_seqs` sequences over `max_kv_heads` kv heads, each shared by `group`
  /// query heads of `head_dim`. Throws ConfigError when a size is not positive, CudaError when the
  /// device has no room.
  DecodeWorkspace(std::int64_t max_num_seqs, std::int64_t max_kv_heads, std::int64_t group,
                  std::int64_t head_dim, const Context& context)
      : DecodeWorkspace(
            max_num_seqs, max_kv_heads, group, head_dim, context,
            default_decode_grid(group, head_dim, context.num_sms, context.max_shared_bytes)) {}

  /// The same with a grid of one's own, for experiments.
  DecodeWorkspace(std::int64_t max_num_seqs, std::int64_t max_kv_heads, std::int64_t group,
                  std::int64_t head_dim, const Context& context, DecodeGrid grid)
      : max_num_seqs_(max_num_seqs),
        max_kv_heads_(max_kv_heads),
        group_(group),
        head_dim_(head_dim),
        grid_(grid) {
    nanovllm::check<ConfigError>(
        max_num_seqs > 0 && max_kv_heads > 0 && group > 0 && head_dim > 0,
        "DecodeWorkspace: sizes must be positive, got max_num_seqs = ", max_num_seqs,
        ", max_kv_heads = ", max_kv_heads, ", group = ", group, ", head_dim = ", head_dim);
    const std::int64_t most_seqs =
        static_cast<std::int64_t>(context.max_shared_bytes / sizeof(std::int32_t)) - 256;
    nanovllm::check<ConfigError>(max_num_seqs <= most_seqs,
                                 "DecodeWorkspace: max_num_seqs must be at most ", most_seqs,
                                 " on this device, got ", max_num_seqs);
    nanovllm::check<ConfigError>(
        grid.num_blocks > 0 && grid.min_tiles_per_block > 0 &&
            (grid.warps_per_block == 4 || grid.warps_per_block == 8),
        "DecodeWorkspace: a grid must have blocks of 4 or 8 warps and at least 1 tile, got ",
        grid.num_blocks, " blocks of ", grid.warps_per_block, " warps, ", grid.min_tiles_per_block,
        " tiles");
    const auto blocks = static_cast<std::size_t>(grid.num_blocks);
    ranges_ = DeviceBuffer<DecodeRange>(static_cast<std::size_t>(grid.num_warps()));
    partials_ = DeviceBuffer<float>(
        blocks * 2 *
        static_cast<std::size_t>(std::min<std::int64_t>(group, kDecodeMaxGroup) *
                                 (head_dim + kDecodePartExtra)));
    static_assert(kDecodeEmptyWord == 0xffffffffu);
    check(cudaMemset(partials_.data(), 0xff, partials_.size_bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] std::int64_t max_num_seqs() const { return max_num_seqs_; }
  [[nodiscard]] std::int64_t max_kv_heads() const { return max_kv_heads_; }
  [[nodiscard]] std::int64_t group() const { return group_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }
  [[nodiscard]] const DecodeGrid& grid() const { return grid_; }

  [[nodiscard]] DecodeRange* ranges() { return ranges_.data(); }
  /// [num_blocks][2][group][head_dim + 4]; see `kernel.cuh`.
  /// All words are `kDecodeEmptyWord` between kernels.
  [[nodiscard]] float* partials() { return partials_.data(); }

  /// What the last plan enqueued was for; the host's check that plan and op belong together.
  std::int64_t planned_seqs = -1, planned_kv_heads = -1;

 private:
  std::int64_t max_num_seqs_, max_kv_heads_, group_, head_dim_;
  DecodeGrid grid_;
  DeviceBuffer<DecodeRange> ranges_;
  DeviceBuffer<float> partials_;
};

namespace detail {

/// Sum over the lanes up to this one.
__device__ __forceinline__ int warp_inclusive_sum(int value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

/// First tile of every sequence, counting one head: starts[s] for s ≤ num_seqs, in shared memory.
__device__ __forceinline__ void sum_tiles(const std::int32_t* kv_lens, int num_seqs, int* starts) {
  constexpr int kWarps = kDecodePlanThreads / 32;
  __shared__ int warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  int total = 0;
  for (int base = 0; base < num_seqs; base += kDecodePlanThreads) {
    const int s = base + thread;
    const int kv_len = s < num_seqs ? max(kv_lens[s], 0) : 0;
    int sum = warp_inclusive_sum(ceil_div(kv_len, kDecodeTileKeys));
    __syncthreads();  // the sums of the pass before have been read
    if (thread % 32 == 31) warp_sums[warp] = sum;
    __syncthreads();
    sum += total;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) sum += warp_sums[w];
      total += warp_sums[w];
    }
    if (s < num_seqs) starts[s + 1] = sum;
  }
  if (thread == 0) starts[0] = 0;
  __syncthreads();
}

/// The list of tiles, and its division among the warps.
struct DecodeTileList {
  const int* starts;  ///< [num_seqs + 1]: tiles of one head in all sequences before
  int num_seqs, num_heads;
  int num_tiles;  ///< of all heads
  int num_warps;  ///< warps that get tiles
  int warps_per_block;

  /// First tile of a warp: ⌊warp · num_tiles / num_warps⌋.
  __device__ int begin(int warp) const {
    const unsigned remainder = static_cast<unsigned>(num_tiles % num_warps);
    return warp * (num_tiles / num_warps) +
           static_cast<int>(static_cast<unsigned>(warp) * remainder / num_warps);
  }
  /// The block that gets a tile.
  __device__ int block_of(int tile) const {
    const auto warp = (static_cast<std::uint64_t>(tile + 1) * num_warps - 1) / num_tiles;
    return static_cast<int>(warp) / warps_per_block;
  }
  /// The sequence a tile belongs to: the last one that starts at or before it.
  __device__ int sequence_of(int tile) const {
    int low = 0, high = num_seqs;  // starts[low] · heads ≤ tile < starts[high] · heads
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] * num_heads <= tile)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  /// The first tile of the item that a tile belongs to.
  __device__ int item_begin(int tile) const {
    const int sequence = sequence_of(tile);
    const int begin = starts[sequence] * num_heads, size = starts[sequence + 1] - starts[sequence];
    return begin + (tile - begin) / size * size;
  }
};

/// Each block sums up all lengths, and computes the ranges of `kDecodePlanWarps` warps. Dynamic
/// shared memory: num_seqs + 1 ints.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    plan_decode_kernel(const std::int32_t* kv_lens, int num_seqs, int num_heads, DecodeGrid grid,
                       DecodeRange* ranges) {
  extern __shared__ int decode_starts[];
  int* const starts = decode_starts;
  grid_dependency_wait();
  grid_dependency_launch();
  sum_tiles(kv_lens, num_seqs, starts);
  const int warp = static_cast<int>(blockIdx.x) * kDecodePlanWarps + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kDecodePlanWarps || warp >= grid.num_blocks * grid.warps_per_block) return;

  const int total = starts[num_seqs] * num_heads;
  const int blocks = min(max(total / grid.min_tiles_per_block, 1), grid.num_blocks);
  const DecodeTileList list{
      starts, num_seqs, num_heads, total, blocks * grid.warps_per_block, grid.warps_per_block};
  DecodeRange range{};
  if (warp < list.num_warps && total > 0) {
    const int begin = list.begin(warp);
    range.num_tiles = list.begin(warp + 1) - begin;
    if (range.num_tiles > 0) {
      range.sequence = list.sequence_of(begin);
      const int size = starts[range.sequence + 1] - starts[range.sequence];
      const int offset = begin - starts[range.sequence] * num_heads;
      range.head = offset / size;
      range.tile = offset % size;
      range.kv_len = kv_lens[range.sequence];
    }
    const int block = warp / grid.warps_per_block;
    range.opening_block = list.block_of(list.item_begin(list.begin(block * grid.warps_per_block)));
  }
  ranges[warp] = range;
}

}  // namespace detail

/// Enqueues the plan for `decode_attention` of sequences with `kv_lens` keys (device memory, ≤ 0:
/// padding) and `num_kv_heads` kv heads: once a step, before the first layer. The lengths must
/// still be the same when `decode_attention` runs, which checks that their tiles can be counted
/// (`can_count_decode_tiles`). Throws ShapeError when there are more sequences or heads than the
/// workspace is for.
inline void plan_decode(VectorView<const std::int32_t> kv_lens, std::int64_t num_kv_heads,
                        DecodeWorkspace& workspace, const Context& context) {
  const std::int64_t num_seqs = kv_lens.extent(0);
  nanovllm::check<ShapeError>(num_seqs <= workspace.max_num_seqs(), "plan_decode: ", num_seqs,
                              " sequences, the workspace is for ", workspace.max_num_seqs());
  nanovllm::check<ShapeError>(num_kv_heads > 0 && num_kv_heads <= workspace.max_kv_heads(),
                              "plan_decode: the number of kv heads must be in [1, ",
                              workspace.max_kv_heads(), "], got ", num_kv_heads);
  workspace.planned_seqs = num_seqs;
  workspace.planned_kv_heads = num_kv_heads;
  if (num_seqs == 0) return;
  launch(detail::plan_decode_kernel<kDecodePlanThreads>,
         {.grid = static_cast<unsigned>(ceil_div(workspace.grid().num_warps(), kDecodePlanWarps)),
          .block = kDecodePlanThreads,
          .shared_bytes = static_cast<std::size_t>(num_seqs + 1) * sizeof(int)},
         context, kv_lens.data, static_cast<int>(num_seqs), static_cast<int>(num_kv_heads),
         workspace.grid(), workspace.ranges());
}

}  // namespace nanovllm::cuda
