#pragma once
/// What is true of the blocks of a pool between two calls of their manager.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_list.hpp"

namespace nanovllm {

/// Counts of a manager's blocks that are published; the others are in its free list or in use.
struct PublishedCounts {
  std::int32_t all = 0;
  std::int32_t free = 0;  ///< of them, without a reference
};

/// Throws Error naming the broken invariant: each block is in use, or free and in the cache, or in
/// the free list. O(blocks).
/// @param is_published  `bool(BlockId)`
template <class IsPublished>
void check_block_states(std::span<const std::int32_t> ref_counts, const BlockList& free,
                        const IsPublished& is_published, const PublishedCounts& counted) {
  std::int32_t num_in_use = 0;
  PublishedCounts found;
  for (BlockId block = 0; block < static_cast<BlockId>(ref_counts.size()); ++block) {
    const std::int32_t ref_count = ref_counts[static_cast<std::size_t>(block)];
    check(ref_count >= 0, "block manager: block ", block, " has reference count ", ref_count);
    const bool in_use = ref_count > 0, published = is_published(block);
    check(free.contains(block) == (!in_use && !published), "block manager: block ", block,
          " has reference count ", ref_count, ", is ", published ? "" : "not ", "published and is ",
          free.contains(block) ? "" : "not ", "in the free list");
    num_in_use += in_use ? 1 : 0;
    found.all += published ? 1 : 0;
    found.free += published && !in_use ? 1 : 0;
  }
  check(found.free == counted.free, "block manager: ", found.free,
        " free blocks are published, but ", counted.free, " are counted");
  check(found.all == counted.all, "block manager: ", found.all,
        " blocks are published, but the cache counts ", counted.all);
  const std::int32_t num_free = free.size() + counted.free;
  check(num_in_use + num_free == static_cast<std::int32_t>(ref_counts.size()),
        "block manager: ", num_in_use, " in use and ", num_free, " free are not ",
        ref_counts.size(), " blocks");
}

}  // namespace nanovllm
