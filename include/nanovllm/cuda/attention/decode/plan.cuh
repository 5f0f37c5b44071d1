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
/// Keys that several sequences have in common (`SharedPrefixes`) are not in that list: the
/// tiles of a group stand once for as many members as fill the columns of a product, in a list of
/// their own, ordered by (group, kv head, chunk of members, tile). Of that list, too, every warp
/// gets an equal range; it comes before its range of the other, so that what is shared is there
/// when the sequences that need it come to their end.
///
/// The plan depends on the lengths, the groups and the number of kv heads alone. It is made once a
/// step, by one small kernel, and serves all layers. Grids and buffers do not depend on the
/// lengths, so the kernels can be captured in a graph and replayed with other lengths in device
/// memory. Source: Dao et al., "Flash-Decoding", 2023; Osama et al., "Stream-K", 2023; Ye et al.,
/// "Cascade Inference", 2024.
/// Measured: decode_attention_bench, cuda_decode_attention.json, needed: 2.4 to 3.5 us a step.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/attention/decode/tuning.hpp"
#include "nanovllm/cuda/attention/decode/workspace.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/attention.hpp"

namespace nanovllm::cuda {
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

/// Sums of `value(i)` over all i before one: sums[i] for i ≤ count, in shared memory. All threads
/// of the block.
template <class Value>
__device__ __forceinline__ void sum_up(int count, int* sums, const Value& value) {
  constexpr int kWarps = kDecodePlanThreads / 32;
  __shared__ int warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  int total = 0;
  for (int base = 0; base < count; base += kDecodePlanThreads) {
    const int i = base + thread;
    int sum = warp_inclusive_sum(i < count ? value(i) : 0);
    __syncthreads();  // the sums of the pass before have been read
    if (thread % 32 == 31) warp_sums[warp] = sum;
    __syncthreads();
    sum += total;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) sum += warp_sums[w];
      total += warp_sums[w];
    }
    if (i < count) sums[i + 1] = sum;
  }
  if (thread == 0) sums[0] = 0;
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

/// The shared prefixes of a step, as far as the plan keeps them.
struct DecodeGroupList {
  const SharedPrefix* groups;
  const PrefixMember* members;
  int num_groups;     ///< the first ones; 0: nothing is shared
  const int* chunks;  ///< [num_groups + 1]: chunks of all groups before
  const int* tiles;   ///< [num_groups + 1]: tiles of one head in all chunks before
  int num_heads;
  int num_tiles, num_blocks;  ///< of all heads, and the blocks that get them

  __device__ int chunks_of(int g) const { return chunks[g + 1] - chunks[g]; }
  __device__ int tiles_of(int g) const {
    return (groups[g].end - groups[g].begin) / kDecodeTileKeys;
  }
  /// First tile of a block.
  __device__ int begin(int block) const {
    return static_cast<int>(static_cast<std::int64_t>(block) * num_tiles / num_blocks);
  }
  /// The group that a tile belongs to.
  __device__ int group_of(int tile) const {
    int low = 0, high = num_groups;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (tiles[middle] * num_heads <= tile)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  /// What a sequence reads for itself: its group is the last one of its chain that is kept.
  __device__ DecodeSpan span(const std::int32_t* kv_lens, int s) const {
    DecodeSpan out{max(kv_lens[s], 0), 0, -1, 0};
    if (num_groups == 0 || out.kv_len == 0) return out;
    int g = members[s].group;
    while (g >= num_groups) g = groups[g].parent;
    if (g < 0) return out;
    return {out.kv_len, groups[g].end / kDecodeTileKeys, g, members[s].place};
  }
  __device__ DecodeGroup record(int g) const {
    const SharedPrefix& group = groups[g];
    return {members[group.first].decode,
            group.first,
            group.count,
            group.begin / kDecodeTileKeys,
            tiles_of(g),
            chunks_of(g),
            chunks[g] * num_heads,
            tiles[g] * num_heads,
            group.parent,
            num_tiles,
            num_blocks,
            0};
  }
  __device__ DecodeSharedRange range(int block) const {
    DecodeSharedRange out{};
    if (block >= num_blocks) return out;
    const int tile = begin(block), g = group_of(tile);
    const int size = tiles_of(g), offset = tile - tiles[g] * num_heads;
    const int item = offset / size;
    return {g, item / chunks_of(g), item % chunks_of(g), offset % size, begin(block + 1) - tile};
  }
};

/// Counts the tiles of the groups that there is room for. `sums`: 2 · (number of groups + 1) ints
/// of shared memory. All threads of the block.
__device__ __forceinline__ DecodeGroupList list_groups(const SharedPrefixes& shared, int num_heads,
                                                       int members_at_once, int max_chunks,
                                                       DecodeGrid grid, int* sums) {
  DecodeGroupList list{shared.groups.data, shared.members.data, 0, sums, nullptr, num_heads, 0, 0};
  const int most = static_cast<int>(shared.groups.extent(0));
  if (most == 0 || max_chunks == 0 || list.groups[0].count == 0) return list;
  list.tiles = sums + most + 1;
  const auto num_chunks = [&](int g) {
    return (list.groups[g].count + members_at_once - 1) / members_at_once;
  };
  sum_up(most, sums, num_chunks);
  for (int base = 0; base < most; base += kDecodePlanThreads) {
    const int g = base + static_cast<int>(threadIdx.x);
    list.num_groups +=
        __syncthreads_count(g < most && list.groups[g].count > 0 && sums[g + 1] <= max_chunks);
  }
  sum_up(list.num_groups, sums + most + 1, [&](int g) { return num_chunks(g) * list.tiles_of(g); });
  list.num_tiles = list.num_groups == 0 ? 0 : list.tiles[list.num_groups] * num_heads;
  // A block's warps take turns at its tiles; a part of an item that is small costs more than it
  // saves.
  list.num_blocks =
      min(max(list.num_tiles / (kDecodeSharedTiles * grid.warps_per_block), 1), grid.num_blocks);
  if (list.num_tiles == 0) list.num_blocks = 0;
  return list;
}

/// Blocks that share the tiles of `num_items` items, of `most`: `wanted`, or a multiple of the
/// items near it, so that of items of one length none reaches into another's blocks and is merged
/// through device memory. Where the items are few and short, that is worth blocks; else it must
/// cost hardly any, because keys come at the rate that all multiprocessors read at, and blocks must
/// be done soon enough for the merge to count.
__device__ __forceinline__ int whole_item_blocks(int wanted, int most, int num_items,
                                                 int num_tiles) {
  if (num_items == 0 || num_items > most) return wanted;
  const bool few = num_items <= most / 4 && wanted < most;
  const int whole = num_items * max(wanted / num_items, 1);
  if (few) return whole;
  const bool costs_little =
      whole >= wanted - wanted / 16 && num_tiles / whole <= kDecodeWholeItemTiles;
  return wanted >= num_items && costs_little ? whole : wanted;
}

/// Each block sums up all lengths, and computes the ranges of `kDecodePlanWarps` warps. Dynamic
/// shared memory: num_seqs + 1 ints, and 2 · (number of groups + 1).
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    plan_decode_kernel(const std::int32_t* kv_lens, int num_seqs, int num_heads,
                       SharedPrefixes shared, int members_at_once, DecodeGrid grid,
                       DecodePlan plan) {
  extern __shared__ int decode_starts[];
  int* const starts = decode_starts;  // first tile of every sequence, counting one head
  const int thread = static_cast<int>(threadIdx.x);
  const int max_warps = grid.num_blocks * grid.warps_per_block;
  grid_dependency_launch();
  grid_dependency_wait();
  const DecodeGroupList groups = list_groups(shared, num_heads, members_at_once, plan.max_chunks,
                                             grid, decode_starts + num_seqs + 1);
  sum_up(num_seqs, starts, [&](int s) {
    const DecodeSpan span = groups.span(kv_lens, s);
    if (blockIdx.x == 0) plan.spans[s] = span;
    return ceil_div(span.kv_len, kDecodeTileKeys) - span.first_tile;
  });
  if (blockIdx.x == 0 && groups.num_groups > 0) {
    for (int s = thread; s < num_seqs; s += kThreads) plan.order[s] = groups.members[s].decode;
    for (int g = thread; g < groups.num_groups; g += kThreads) plan.groups[g] = groups.record(g);
  }
  int num_items = 0;  // of one head
  for (int base = 0; base < num_seqs; base += kThreads) {
    const int s = base + thread;
    num_items += __syncthreads_count(s < num_seqs && starts[s + 1] > starts[s]);
  }
  const int warp = static_cast<int>(blockIdx.x) * kDecodePlanWarps + thread;
  if (thread >= kDecodePlanWarps || warp >= max_warps) return;

  const int total = starts[num_seqs] * num_heads;
  const int blocks =
      whole_item_blocks(min(max(total / grid.min_tiles_per_block, 1), grid.num_blocks),
                        grid.num_blocks, num_items * num_heads, total);
  const DecodeTileList list{
      starts, num_seqs, num_heads, total, blocks * grid.warps_per_block, grid.warps_per_block};
  DecodeRange range{};
  range.group = -1;
  if (warp < list.num_warps && total > 0) {
    const int begin = list.begin(warp);
    range.num_tiles = list.begin(warp + 1) - begin;
    if (range.num_tiles > 0) {
      range.sequence = list.sequence_of(begin);
      const DecodeSpan span = groups.span(kv_lens, range.sequence);
      const int size = starts[range.sequence + 1] - starts[range.sequence];
      const int offset = begin - starts[range.sequence] * num_heads;
      range.head = offset / size;
      range.tile = span.first_tile + offset % size;
      range.kv_len = span.kv_len;
      range.first_tile = span.first_tile;
      range.group = span.group;
    }
    const int block = warp / grid.warps_per_block;
    range.opening_block = list.block_of(list.item_begin(list.begin(block * grid.warps_per_block)));
  }
  plan.ranges[warp] = range;
  if (warp < grid.num_blocks) plan.shared_ranges[warp] = groups.range(warp);
}

}  // namespace detail

/// Enqueues the plan for `decode_attention` of sequences with `kv_lens` keys (device memory, ≤ 0:
/// padding) and `num_kv_heads` kv heads: once a step, before the first layer. The lengths must
/// still be the same when `decode_attention` runs, which checks that their tiles can be counted
/// (`can_count_decode_tiles`). What `shared` says that sequences have in common is read once for
/// 32 / group of them; it must be in whole tiles of 16 keys. Throws ShapeError when there are more
/// sequences or heads than the workspace is for.
void plan_decode(VectorView<const std::int32_t> kv_lens, std::int64_t num_kv_heads,
                 DecodeWorkspace& workspace, const LaunchContext auto& context,
                 SharedPrefixes shared = {}) {
  const std::int64_t num_seqs = kv_lens.extent(0);
  check<ShapeError>(num_seqs <= workspace.max_num_seqs(), "plan_decode: ", num_seqs,
                    " sequences, the workspace is for ", workspace.max_num_seqs());
  check<ShapeError>(num_kv_heads > 0 && num_kv_heads <= workspace.max_kv_heads(),
                    "plan_decode: the number of kv heads must be in [1, ", workspace.max_kv_heads(),
                    "], got ", num_kv_heads);
  // A list without the other, or of other rows, says nothing; nor is there room for more groups.
  if (shared.members.extent(0) != num_seqs || workspace.max_chunks() == 0) shared = {};
  shared.groups = shared.groups.slice(0, std::min(shared.groups.extent(0), num_seqs));
  workspace.planned_seqs = num_seqs;
  workspace.planned_groups = shared.groups.extent(0) > 0;
  workspace.planned_kv_heads = num_kv_heads;
  if (num_seqs == 0) return;
  launch(
      detail::plan_decode_kernel<kDecodePlanThreads>,
      {.grid = static_cast<unsigned>(ceil_div(workspace.grid().num_warps(), kDecodePlanWarps)),
       .block = kDecodePlanThreads,
       .shared_bytes = static_cast<std::size_t>(num_seqs + 1 + 2 * (shared.groups.extent(0) + 1)) *
                       sizeof(int)},
      context, kv_lens.data, static_cast<int>(num_seqs), static_cast<int>(num_kv_heads), shared,
      decode_members_at_once(std::min<std::int64_t>(workspace.group(), kDecodeMaxGroup)),
      workspace.grid(), workspace.plan());
}

}  // namespace nanovllm::cuda
