#pragma once
/// Where a token's key and value lie in the paged cache (ops/kv_view.hpp).

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm::cuda {

/// Distance from the cache's first element to head `head` of a slot: its key, or its value for
/// `head` + num_kv_heads. The slot is below 2^31 (`check_num_slots`).
template <class T>
__device__ __forceinline__ std::int64_t slot_offset(const KvView<T>& kv, Slot slot,
                                                    std::uint32_t head) {
  const auto block_size = static_cast<std::uint32_t>(kv.block_size);
  const auto index = static_cast<std::uint32_t>(slot);
  const std::uint32_t block = index / block_size;
  return block * kv.block_stride() + head * kv.tile_size() +
         (index - block * block_size) * kv.head_dim;
}

/// Throws ShapeError unless 31 bits can count the cache's slots.
template <class T>
void check_num_slots(const char* op, const KvView<T>& kv) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  check<ShapeError>(kv.block_size > 0 && kv.num_blocks <= kMost / kv.block_size, op,
                    ": a cache of at most ", kMost, " slots is supported, got ", kv.num_blocks,
                    " blocks of ", kv.block_size);
}

}  // namespace nanovllm::cuda
