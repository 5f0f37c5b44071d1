#pragma once
/// Names for the integers that travel through the engine.

#include <cstdint>

namespace nanovllm {

/// Index into the vocabulary, 0 ≤ id < vocab_size.
using TokenId = std::int32_t;

/// Index of a KV block in its pool, 0 ≤ id < num_blocks.
using BlockId = std::int32_t;

/// K and V of block `from`, in all layers, are to be copied to block `to`.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

/// Place of one token's K and V in the pool: block_id * block_size + offset in the block.
using Slot = std::int64_t;

/// Marks a padded row: `kv_store` writes nothing for it.
inline constexpr Slot kNoSlot = -1;

/// Handle of a request, unique in its engine.
using RequestId = std::uint64_t;

}  // namespace nanovllm
