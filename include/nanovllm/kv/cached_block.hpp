#pragma once
/// What a prefix cache has, apart from the pool that it is of: to be saved, and put into another.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/separate.hpp"
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

/// A block that a cache could find, and what it knows of it.
struct ListedBlock {
  std::uint64_t id = 0;      ///< of the prefix that ends with it; higher than that of its parent
  std::uint64_t parent = 0;  ///< the id of the prefix before it; 0 for none
  BlockId block = 0;
  std::span<const TokenId> tokens{};
  CacheSalt salt{};  ///< of its prefix, where it has no parent
};

/// `blocks` as `entries()` gives them, but for those whose parents are not there.
[[nodiscard]] std::vector<CachedBlock> list_entries(std::vector<ListedBlock> blocks);

}  // namespace nanovllm

#if NANOVLLM_BODIES

#include <algorithm>
#include <unordered_map>

namespace nanovllm {

NANOVLLM_INLINE std::vector<CachedBlock> list_entries(std::vector<ListedBlock> blocks) {
  std::ranges::sort(blocks, {}, &ListedBlock::id);
  std::vector<CachedBlock> out;
  std::unordered_map<std::uint64_t, std::int32_t> place;
  for (const ListedBlock& b : blocks) {
    const auto parent = place.find(b.parent);
    if (b.parent != 0 && parent == place.end()) continue;  // it was evicted
    place[b.id] = static_cast<std::int32_t>(out.size());
    out.push_back({.block = b.block,
                   .parent = b.parent == 0 ? -1 : parent->second,
                   .tokens = {b.tokens.begin(), b.tokens.end()},
                   .salt = b.salt});
  }
  return out;
}

}  // namespace nanovllm

#endif  // NANOVLLM_BODIES
