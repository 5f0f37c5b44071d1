#pragma once
/// What a prefix cache has, apart from the pool that it is of: to be saved, and put into another.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"

namespace nanovllm {

/// A block of a prefix cache and the tokens that it holds, after those of its parent.
struct CachedBlock {
  BlockId block = 0;
  std::int32_t parent = -1;  ///< index in the list of all, lower than its own; -1 for none
  std::vector<TokenId> tokens{};
  CacheSalt salt{};  ///< of its prefix, where it has no parent
};

/// A cache that can be saved offers `entries()`: one CachedBlock for every prefix that it could
/// find, parents first.
template <class C>
concept ListsEntries = requires(const C& cache) {
  { cache.entries() } -> std::same_as<std::vector<CachedBlock>>;
};

/// Whether `blocks` can find a block of `num_tokens` tokens, 1 to its size, when it is published.
template <class Blocks>
[[nodiscard]] bool keeps_block_of(const Blocks& blocks, std::int32_t num_tokens) noexcept {
  if constexpr (requires { std::remove_cvref_t<decltype(blocks.cache())>::kFullBlocksOnly; }) {
    if (num_tokens < Blocks::block_size()) return false;
  }
  return blocks.keeps_prefixes();
}

/// Puts `entries` of another pool into the cache of `blocks`, parents first, as many as there are
/// free blocks for; those that the cache had and that are in no use give way. Entries that it does
/// not keep, as blocks that are not full of another kind of cache, are left out. Returns how many
/// were put in.
/// @param write  called once as write(blocks, indices of entries), parallel lists, before the cache
///               is told: fills the blocks. What it throws is thrown, and nothing is kept.
template <class Blocks, class Write>
std::int32_t restore_cached(Blocks& blocks, std::span<const CachedBlock> entries,
                            const Write& write) {
  const auto size = static_cast<std::size_t>(Blocks::block_size());
  std::vector<BlockId> taken, block_of(entries.size(), -1);
  std::vector<std::size_t> kept;
  taken.reserve(entries.size());
  kept.reserve(entries.size());
  try {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!keeps_block_of(blocks, static_cast<std::int32_t>(entries[i].tokens.size()))) continue;
      const std::int32_t parent = entries[i].parent;
      if (parent >= 0 && block_of[static_cast<std::size_t>(parent)] < 0) continue;
      const std::optional<BlockId> block = blocks.allocate();
      if (!block) break;
      taken.push_back(block_of[i] = *block);
      kept.push_back(i);
    }
    write(std::span<const BlockId>(taken), std::span<const std::size_t>(kept));
    for (const std::size_t i : kept) {
      std::vector<std::size_t> path;  // from the entry to the first block
      for (auto at = static_cast<std::int32_t>(i); at >= 0;
           at = entries[static_cast<std::size_t>(at)].parent)
        path.push_back(static_cast<std::size_t>(at));
      std::vector<BlockId> table;
      std::vector<TokenId> tokens;
      for (std::size_t j = path.size(); j-- > 0;) {
        table.push_back(block_of[path[j]]);
        const std::vector<TokenId>& more = entries[path[j]].tokens;
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      blocks.publish(table, tokens, static_cast<std::int32_t>((path.size() - 1) * size),
                     static_cast<std::int32_t>(tokens.size()), entries[path.back()].salt);
    }
  } catch (...) {
    blocks.release(taken);
    throw;
  }
  blocks.release(taken);  // the last ones first: children before their parents
  return static_cast<std::int32_t>(taken.size());
}

}  // namespace nanovllm
