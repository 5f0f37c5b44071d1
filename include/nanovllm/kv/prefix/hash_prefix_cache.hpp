#pragma once
/// The default prefix cache: whole blocks, found by a chained hash, with the least recently used
/// evicted first unless told otherwise. Source: Kwon et al., "PagedAttention", SOSP 2023; vLLM's
/// automatic prefix caching.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/eviction_order.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"
#include "nanovllm/kv/prefix/prefix_hash.hpp"
#include "nanovllm/kv/prefix/prefix_index.hpp"

namespace nanovllm {

/// Enters every full block, even if an equal one is entered, because the key of its sequence's next
/// block is chained to it; but of equal free blocks only one is kept. Allocates nothing after
/// construction.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        how prefixes are hashed; a PrefixHashLike.
/// @tparam Eviction    which free block goes first; an EvictionLike. Those of more urgent requests
///                     are kept longer by LeastRecentlyUsed.
template <int kBlockSize, class Hash, class Eviction>
class HashPrefixCache {
  static_assert(PrefixHashLike<Hash>,
                "'Hash' must have a static hash(std::uint64_t, std::span<const TokenId>) that "
                "returns std::uint64_t");
  static_assert(EvictionLike<Eviction>,
                "'Eviction' must be LeastRecentlyUsed, EvictionByValue<Value>, or have what "
                "kv/eviction_order.hpp states");

 public:
  static constexpr bool kFullBlocksOnly = true;

  /// For a pool of `num_blocks`. The hashes depend on `seed`: while it is secret, no user can make
  /// prompts that collide.
  explicit HashPrefixCache(std::int32_t num_blocks, std::uint64_t seed = random_seed())
      : index_(num_blocks), unused_(num_blocks), seed_(seed) {}

  [[nodiscard]] static constexpr std::int32_t block_size() { return kBlockSize; }

  /// The longest prefix of whole blocks. Of equal blocks, one that is in use. O(size of the match).
  [[nodiscard]] PrefixMatch match(std::span<const TokenId> tokens,
                                  const CacheSalt& salt = {}) const {
    PrefixMatch match;
    PrefixKey prefix = PrefixKey::root(seed_, salt);
    for (std::size_t begin = 0; begin + kBlockSize <= tokens.size(); begin += kBlockSize) {
      const auto block = index_.find(prefix, tokens.subspan(begin, kBlockSize), salt);
      if (!block) break;
      match.blocks.push_back(*block);
      match.num_tokens += kBlockSize;
      prefix = index_.key(*block);
    }
    return match;
  }

  /// Enters the blocks that tokens [begin, end) have filled. O(end - begin + B).
  void insert(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
              std::int32_t begin, std::int32_t end, const CacheSalt& salt = {}) {
    for (std::int32_t i = begin / kBlockSize; i < end / kBlockSize; ++i) {
      const BlockId block = block_table[static_cast<std::size_t>(i)];
      if (contains(block)) continue;
      PrefixKey parent = PrefixKey::root(seed_, salt);
      if (i > 0) {
        const BlockId before = block_table[static_cast<std::size_t>(i - 1)];
        check(contains(before), "prefix cache: block ", before, " before block ", block,
              " was not entered");
        parent = index_.key(before);
      }
      index_.insert(block, parent,
                    tokens.subspan(static_cast<std::size_t>(i) * kBlockSize, kBlockSize), salt);
      ++version_;
    }
  }

  [[nodiscard]] bool contains(BlockId block) const noexcept { return index_.contains(block); }

  /// The block was used by a sequence of this priority.
  void rate(BlockId block, std::int32_t priority) noexcept { unused_.rate(block, priority); }

  void lock(BlockId block) noexcept { unused_.remove(block); }

  /// The block is free: `Eviction` says when it goes. If an equal block is in use, the
  /// cache drops this one; if an equal block is free, it drops that. Returns the block that was
  /// dropped, which is free for reuse.
  [[nodiscard]] std::optional<BlockId> unlock(BlockId block) noexcept {
    const std::optional<BlockId> duplicate = index_.duplicate(block);
    if (duplicate && !unused_.contains(*duplicate)) {
      unused_.inherit(*duplicate, block);
      erase(block);
      return block;
    }
    if (duplicate) {
      unused_.remove(*duplicate);
      unused_.inherit(block, *duplicate);
      erase(*duplicate);
    }
    unused_.add(block);
    return duplicate;
  }

  [[nodiscard]] std::optional<BlockId> evict() noexcept {
    const std::optional<BlockId> block = unused_.pop();
    if (block) erase(*block);
    return block;
  }

  [[nodiscard]] std::int32_t size() const { return index_.size(); }
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

  /// The tokens of an entered block.
  [[nodiscard]] std::span<const TokenId> tokens(BlockId block) const {
    return index_.tokens(block);
  }
  /// All that a lookup could find, parents first. O(num_blocks log num_blocks).
  [[nodiscard]] std::vector<CachedBlock> entries() const { return index_.entries(); }

  /// Most blocks that a lookup compares. O(size).
  [[nodiscard]] std::int32_t longest_walk() const { return index_.longest_walk(); }

  void check_invariants() const {
    index_.check_invariants();
    unused_.check_invariants();
  }

 private:
  void erase(BlockId block) noexcept {
    index_.erase(block);
    unused_.forget(block);
    ++version_;
  }

  PrefixIndex<kBlockSize, Hash> index_;
  Eviction unused_;  ///< those entered and free
  std::uint64_t seed_;
  std::uint64_t version_ = 0;
};

static_assert(PrefixCacheLike<HashPrefixCache<16>>);

}  // namespace nanovllm
