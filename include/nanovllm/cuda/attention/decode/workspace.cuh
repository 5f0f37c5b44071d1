#pragma once
/// What the kernels of `decode_attention` hand to each other in device memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/cuda/attention/decode/tuning.hpp"
#include "nanovllm/cuda/runtime/check.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/device_claim.hpp"

namespace nanovllm::cuda {

/// Stands where an unfinished item is to come.
inline constexpr unsigned kDecodeEmptyWord = 0xffffffff;

/// An unfinished item of one warp. Each warp has room for two: an item that it did not begin, and
/// one that it does not end.
struct DecodeSlot {
  int item;        ///< sequence · num_kv_heads + head, or -1: empty
  bool has_first;  ///< has seen the item's first tile
  bool has_last;   ///< has seen the item's last tile
  bool is_member;  ///< its sequence shares a prefix with others
};
static_assert(sizeof(DecodeSlot) == kDecodeSlotBytes);

/// What one warp reads for single sequences. One 32-byte sector.
struct alignas(32) DecodeRange {
  std::int32_t sequence, head, tile;  ///< the first tile
  std::int32_t num_tiles;             ///< 0: nothing, and the fields above are 0
  std::int32_t kv_len;                ///< of `sequence`
  std::int32_t opening_block;         ///< the first block with a part of this block's first item
  std::int32_t first_tile;            ///< of `sequence`: those before it are read for many
  std::int32_t group;                 ///< of `sequence`, see DecodeSpan
};
static_assert(sizeof(DecodeRange) == 32);

/// What one block reads for the members of shared prefixes, before its warps read their ranges.
struct alignas(32) DecodeSharedRange {
  std::int32_t group, head, chunk, tile;  ///< the first tile, counted from the group's first one
  std::int32_t num_tiles;                 ///< 0: nothing
};
static_assert(sizeof(DecodeSharedRange) == 32);

/// One sequence.
struct alignas(16) DecodeSpan {
  std::int32_t kv_len;
  std::int32_t first_tile;  ///< those before it are read with the groups that the sequence is in
  std::int32_t group;       ///< the last of these, -1 for none
  std::int32_t place;       ///< in the order of the groups' members
};
static_assert(sizeof(DecodeSpan) == 16);

/// Tiles that many sequences read. The members' query heads fill the columns of `num_chunks`
/// products; an item of the group is a (head, chunk), and all its items have `num_tiles` tiles.
struct alignas(16) DecodeGroup {
  std::int32_t sequence;      ///< whose block table is read
  std::int32_t first, count;  ///< places of the members
  std::int32_t begin_tile;    ///< of a sequence
  std::int32_t num_tiles;
  std::int32_t num_chunks;
  std::int32_t item_base;                ///< items of the groups before it
  std::int32_t tile_base;                ///< and their tiles
  std::int32_t parent;                   ///< the group with the tiles before these, -1 for none
  std::int32_t list_tiles, list_blocks;  ///< of all groups, and the blocks that share them
  std::int32_t unused;
};
static_assert(sizeof(DecodeGroup) == 48);

/// Where the plan of a step is: what `plan_decode_kernel` writes and the decode kernel reads.
struct DecodePlan {
  DecodeRange* ranges;               ///< [warps]
  DecodeSharedRange* shared_ranges;  ///< [blocks]
  DecodeSpan* spans;                 ///< [sequences]
  DecodeGroup* groups;
  std::int32_t* order;  ///< [sequences]: which one is at a place
  /// Unfinished results of items of groups, one for each block that had a part of it:
  /// [items + blocks][kDecodeSharedColumns][head_dim + 4]; that of block b of item i is number
  /// i + b. All words are `kDecodeEmptyWord` between kernels.
  float* pieces;
  std::int32_t max_chunks;  ///< of all groups
};

/// Device memory of `plan_decode` and `decode_attention`: the plan and the unfinished results. One
/// workspace serves the layers of a model one after the other on one stream. Allocates on
/// construction only; movable.
class DecodeWorkspace {
 public:
  /// For steps of at most `max_num_seqs` sequences over `max_kv_heads` kv heads, each shared by
  /// `group` query heads of `head_dim`. Without `shares_prefixes` no keys are read for several
  /// sequences at once, and no memory is taken for it. Throws ConfigError when a size is not
  /// positive, CudaError when the device has no room.
  DecodeWorkspace(std::int64_t max_num_seqs, std::int64_t max_kv_heads, std::int64_t group,
                  std::int64_t head_dim, const Context& context, bool shares_prefixes = true)
      : DecodeWorkspace(
            max_num_seqs, max_kv_heads, group, head_dim, context,
            default_decode_grid(group, head_dim, context.num_sms, context.max_shared_bytes),
            shares_prefixes) {}

  /// The same with a given grid, for experiments.
  DecodeWorkspace(std::int64_t max_num_seqs, std::int64_t max_kv_heads, std::int64_t group,
                  std::int64_t head_dim, const Context& context, DecodeGrid grid,
                  bool shares_prefixes = true)
      : max_num_seqs_(max_num_seqs),
        max_kv_heads_(max_kv_heads),
        group_(group),
        head_dim_(head_dim),
        grid_(grid) {
    check<ConfigError>(max_num_seqs > 0 && max_kv_heads > 0 && group > 0 && head_dim > 0,
                       "DecodeWorkspace: sizes must be positive, got max_num_seqs = ", max_num_seqs,
                       ", max_kv_heads = ", max_kv_heads, ", group = ", group,
                       ", head_dim = ", head_dim);
    const std::int64_t most_seqs =
        static_cast<std::int64_t>(context.max_shared_bytes / (3 * sizeof(std::int32_t))) - 256;
    check<ConfigError>(max_num_seqs <= most_seqs, "DecodeWorkspace: max_num_seqs must be at most ",
                       most_seqs, " on this device, got ", max_num_seqs);
    check<ConfigError>(
        grid.num_blocks > 0 && grid.min_tiles_per_block > 0 &&
            (grid.warps_per_block == 4 || grid.warps_per_block == 8),
        "DecodeWorkspace: a grid must have blocks of 4 or 8 warps and at least 1 tile, got ",
        grid.num_blocks, " blocks of ", grid.warps_per_block, " warps, ", grid.min_tiles_per_block,
        " tiles");
    const auto blocks = static_cast<std::size_t>(grid.num_blocks);
    const auto warps = static_cast<std::size_t>(grid.num_warps());
    const auto seqs = static_cast<std::size_t>(max_num_seqs);
    const auto part_floats = static_cast<std::size_t>(head_dim + kDecodePartExtra);
    ranges_ = DeviceBuffer<DecodeRange>(warps);
    shared_ranges_ = DeviceBuffer<DecodeSharedRange>(blocks);
    spans_ = DeviceBuffer<DecodeSpan>(seqs);
    partials_ = DeviceBuffer<float>(
        blocks * 2 * static_cast<std::size_t>(std::min<std::int64_t>(group, kDecodeMaxGroup)) *
        part_floats);
    // Blocks wait for pieces of blocks after them: all must run at the same time.
    if (shares_prefixes && grid.num_blocks <= context.num_sms && group <= kDecodeMaxGroup &&
        (head_dim == 64 || head_dim == 128))
      claim_ = DeviceClaim<WaitsForLaterBlocks>(context.device);
    if (claim_) {
      // One level of groups that hold all sequences takes less; further levels get what is left.
      max_chunks_ = std::max<std::int64_t>(max_num_seqs / 2, 1);
      groups_ = DeviceBuffer<DecodeGroup>(static_cast<std::size_t>(max_chunks_));
      order_ = DeviceBuffer<std::int32_t>(seqs);
      pieces_ =
          DeviceBuffer<float>((static_cast<std::size_t>(max_chunks_ * max_kv_heads) + blocks) *
                              kDecodeSharedColumns * part_floats);
    }
    static_assert(kDecodeEmptyWord == 0xffffffffu);
    check_cuda(cudaMemset(partials_.data(), 0xff, partials_.size_bytes()), "cudaMemset");
    if (pieces_.size() > 0)
      check_cuda(cudaMemset(pieces_.data(), 0xff, pieces_.size_bytes()), "cudaMemset");
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  [[nodiscard]] std::int64_t max_num_seqs() const { return max_num_seqs_; }
  [[nodiscard]] std::int64_t max_kv_heads() const { return max_kv_heads_; }
  [[nodiscard]] std::int64_t group() const { return group_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }
  [[nodiscard]] const DecodeGrid& grid() const { return grid_; }

  /// Keys of groups are read once for as many as this many chunks of members; the rest of the
  /// groups is left out, and their members read for themselves. 0: nothing is shared.
  [[nodiscard]] std::int64_t max_chunks() const { return max_chunks_; }

  [[nodiscard]] DecodePlan plan() {
    return {.ranges = ranges_.data(),
            .shared_ranges = shared_ranges_.data(),
            .spans = spans_.data(),
            .groups = groups_.data(),
            .order = order_.data(),
            .pieces = pieces_.data(),
            .max_chunks = static_cast<std::int32_t>(max_chunks_)};
  }
  /// [num_blocks][2][group][head_dim + 4]; see `kernel.cuh`.
  /// All words are `kDecodeEmptyWord` between kernels.
  [[nodiscard]] float* partials() { return partials_.data(); }

  /// What the last plan enqueued was for; the host's check that plan and op belong together.
  std::int64_t planned_seqs = -1, planned_kv_heads = -1;
  bool planned_groups = false;  ///< whether there may be groups in it

 private:
  std::int64_t max_num_seqs_, max_kv_heads_, group_, head_dim_;
  DecodeGrid grid_;
  std::int64_t max_chunks_ = 0;
  DeviceClaim<WaitsForLaterBlocks> claim_;
  DeviceBuffer<DecodeRange> ranges_;
  DeviceBuffer<DecodeSharedRange> shared_ranges_;
  DeviceBuffer<DecodeSpan> spans_;
  DeviceBuffer<DecodeGroup> groups_;
  DeviceBuffer<std::int32_t> order_;
  DeviceBuffer<float> partials_, pieces_;
};

}  // namespace nanovllm::cuda
