#pragma once
/// Where a token's key and value lie in the paged cache (ops/kv_view.hpp), and how a group of lanes
/// stores them in a cache of any format.

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm::cuda {

/// A block of the cache, and a row of its tiles.
struct SlotPlace {
  std::uint32_t block, row;

  /// Of a slot below 2^31 (`check_num_slots`).
  template <KvFormat F>
  __device__ __forceinline__ SlotPlace(const KvView<F>& kv, Slot slot) {
    const auto block_size = static_cast<std::uint32_t>(kv.block_size);
    const auto index = static_cast<std::uint32_t>(slot);
    block = index / block_size;
    row = index - block * block_size;
  }
};

/// Distance from the cache's first element to head `head` of a slot: its key, or its value for
/// `head` + num_kv_heads.
template <KvFormat F>
__device__ __forceinline__ std::int64_t slot_offset(const KvView<F>& kv, Slot slot,
                                                    std::uint32_t head) {
  const SlotPlace place(kv, slot);
  return place.block * kv.block_stride() + head * kv.tile_size() + place.row * kv.head_dim;
}

/// The scale of the same row.
template <ScaledKvFormat F>
__device__ __forceinline__ float* slot_scale(const KvView<F>& kv, Slot slot, std::uint32_t head) {
  const SlotPlace place(kv, slot);
  return kv.scales(kv.k(static_cast<BlockId>(place.block), head)) + place.row;
}

/// Throws ShapeError unless 31 bits can count the cache's slots, and its scales are aligned.
template <KvFormat F>
void check_num_slots(const char* op, const KvView<F>& kv) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  check<ShapeError>(kv.block_size > 0 && kv.num_blocks <= kMost / kv.block_size, op,
                    ": a cache of at most ", kMost, " slots is supported, got ", kv.num_blocks,
                    " blocks of ", kv.block_size);
  check<ShapeError>(!ScaledKvFormat<F> || kv.block_size * kv.head_dim % 4 == 0, op,
                    ": block_size times head_dim must be a multiple of 4 in a cache with scales, "
                    "got ",
                    kv.block_size, " times ", kv.head_dim);
}

/// Stores `raw`, a row of a key or value, unless `slot` is `kNoSlot`. In a format with scales `raw`
/// becomes what attention reads of it, rounded to T, and the result is true. All lanes of the warp
/// take part.
template <class Row, KvFormat F>
__device__ __forceinline__ bool store_kv_row(const KvView<F>& kv, Slot slot, std::uint32_t head,
                                             typename Row::Raw& raw) {
  const auto head_dim = static_cast<int>(kv.head_dim);
  if constexpr (ScaledKvFormat<F>) {
    Row row(raw, head_dim);
    float scale;
    if constexpr (FixedScaleKvFormat<F>) {
      scale = kv.fixed_scale(head);
    } else {
      scale = F::scale_of(__uint_as_float(row.largest()));
    }
    if (slot == kNoSlot) return false;
    row.template quantise<F>(scale, kv.data + slot_offset(kv, slot, head));
    if (threadIdx.x % Row::kGroup == 0) *slot_scale(kv, slot, head) = scale;
    raw = row.rounded();
    return true;
  } else {
    if (slot != kNoSlot) Row::store(raw, kv.data + slot_offset(kv, slot, head), head_dim);
    return false;
  }
}

}  // namespace nanovllm::cuda
