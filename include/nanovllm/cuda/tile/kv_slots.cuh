#pragma once
/// Where a token's key and value lie in the paged cache (ops/kv_view.hpp).

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
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

}  // namespace nanovllm::cuda
