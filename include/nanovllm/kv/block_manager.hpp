#pragma once
/// Who holds which block of the KV pool, and which blocks can be shared.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/block_checks.hpp"
#include "nanovllm/kv/block_list.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/hash_prefix_cache.hpp"
#include "nanovllm/kv/prefix/no_prefix_cache.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"

namespace nanovllm {

/// Counters since the block manager was made.
struct BlockStats {
  std::int64_t num_queried_tokens = 0;  ///< tokens of the sequences that were admitted
  std::int64_t num_hit_tokens = 0;      ///< of them, found in the prefix cache
  std::int64_t num_evictions = 0;       ///< cached blocks that were reused for other tokens
};

/// The state of a pool of `num_blocks` blocks: reference counts, the free list, and which blocks
/// the prefix cache has. It deals in block ids and touches no memory. Not thread-safe.
///
/// A block is *in use* (reference count ≥ 1) or *free*. When tokens of a sequence are computed,
/// their blocks are *published*: the prefix cache may enter them, and `match` then finds them, also
/// when they are free, until they are reused. Free blocks that the cache does not have are reused
/// first, the last one freed before the others; then the cache evicts the one worth least.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Cache       a PrefixCacheLike.
template <int kBlockSize, class Cache>
class BlockManager {
  static_assert(kBlockSize >= 1, "a block must hold at least one token");
  static_assert(PrefixCacheLike<Cache>);
  static_assert(Cache::block_size() == kBlockSize,
                "the prefix cache must have the block manager's block size");

 public:
  /// A pool in which every block is free. `cache_args` go to the cache after the number of blocks.
  /// Without `enable_prefix_caching` the cache is never used. Throws ConfigError when the pool
  /// would have no blocks.
  template <class... CacheArgs>
  requires std::constructible_from<Cache, std::int32_t, const CacheArgs&...> BlockManager(
      std::int32_t num_blocks, bool enable_prefix_caching, const CacheArgs&... cache_args)
      : ref_counts_(checked_size(num_blocks), 0),
        free_(BlockList::all(num_blocks)),
        cache_(enable_prefix_caching ? num_blocks : 0, cache_args...),
        enable_prefix_caching_(enable_prefix_caching) {}

  [[nodiscard]] static constexpr std::int32_t block_size() { return kBlockSize; }
  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(ref_counts_.size());
  }
  [[nodiscard]] std::int32_t num_free() const { return free_.size() + num_evictable_; }
  [[nodiscard]] std::int32_t num_published() const { return cache_.size(); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const {
    return ref_counts_[static_cast<std::size_t>(block)];
  }
  /// Indexed by block.
  [[nodiscard]] std::span<const std::int32_t> ref_counts() const { return ref_counts_; }
  [[nodiscard]] bool is_published(BlockId block) const noexcept {
    return enable_prefix_caching_ && cache_.contains(block);
  }
  [[nodiscard]] const Cache& cache() const { return cache_; }
  /// Whether published blocks can be found at all.
  [[nodiscard]] bool keeps_prefixes() const noexcept {
    if constexpr (requires { Cache::kKeepsNothing; }) return false;
    return enable_prefix_caching_;
  }
  [[nodiscard]] const BlockStats& stats() const { return stats_; }

  /// Blocks that hold `num_tokens` tokens.
  [[nodiscard]] static constexpr std::int32_t blocks_for(std::int32_t num_tokens) {
    return ceil_div(num_tokens, kBlockSize);
  }

  /// Where the token at `position` of a sequence with `block_table` is in the pool.
  [[nodiscard]] static constexpr Slot slot(std::span<const BlockId> block_table,
                                           std::int32_t position) {
    return Slot{block_table[static_cast<std::size_t>(position / kBlockSize)]} * kBlockSize +
           position % kBlockSize;
  }

  /// The longest prefix of `tokens` that the cache has, published with the same `salt`. The last
  /// token is never part of it: its logits are needed, so it must be computed.
  [[nodiscard]] PrefixMatch match(std::span<const TokenId> tokens,
                                  const CacheSalt& salt = {}) const {
    if (!enable_prefix_caching_ || tokens.empty()) return {};
    return cache_.match(tokens.first(tokens.size() - 1), salt);
  }

  /// Changes whenever `match` could give another answer for the same tokens.
  [[nodiscard]] std::uint64_t cache_version() const { return cache_.version(); }

  /// Throws Error unless all blocks of `match` can be adopted, those outside apart.
  void check_adoptable(const PrefixMatch& match) const {
    for_each_block(match, [this](BlockId block) {
      check(is_published(block), "adopt: block ", block, " is not in the prefix cache");
    });
  }

  /// Throws Error unless all blocks of `match` can be shared.
  void check_shareable(const PrefixMatch& match) const {
    for_each_block(match, [this](BlockId block) {
      check(ref_count(block) > 0, "share: block ", block, " is not in use");
    });
  }

  /// Takes one reference to each block of `match`, found for a sequence of `num_tokens` tokens, and
  /// one to its `copy_tail`, which the caller releases when the copy's target is allocated.
  /// Blocks that were free leave the free ones; none is evicted. Throws Error, having changed
  /// nothing, for a block that the cache does not have.
  void adopt(const PrefixMatch& match, std::int32_t num_tokens) {
    check_adoptable(match);
    for_each_block(match, [this](BlockId block) { take(block); });
    if (!enable_prefix_caching_) return;
    stats_.num_queried_tokens += num_tokens;
    stats_.num_hit_tokens +=
        match.outside.empty() ? match.num_tokens : match.num_shared_tokens(kBlockSize);
  }

  /// The same for blocks of another sequence, not from the cache. Throws Error, having changed
  /// nothing, for a block that is not in use.
  void share(const PrefixMatch& match) {
    check_shareable(match);
    for_each_block(match, [this](BlockId block) { take(block); });
  }

  /// Takes a free block with one reference to it, or nothing if there is none; forgets what it has.
  [[nodiscard]] std::optional<BlockId> allocate() noexcept {
    return take_free_block([](BlockId) {});
  }

  /// Releases one reference to each of `blocks`, a block table or the end of one. Blocks without
  /// references become free; those that are published can still be found, and the later a block is
  /// in the table, the earlier it is reused, for it is worth nothing without those before it.
  /// Throws Error for a block that is not in use, which is a mistake of the caller.
  /// @param priority  of the sequence, lower being more urgent, for caches that keep blocks by it.
  void release(std::span<const BlockId> blocks,
               std::optional<std::int32_t> priority = std::nullopt) {
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const BlockId block = blocks[i];
      check(ref_count(block) > 0, "release: block ", block, " is not in use");
      if constexpr (RatesBlocks<Cache>) {
        if (priority && is_published(block)) cache_.rate(block, *priority);
      }
      if (--count(block) > 0) continue;
      std::optional<BlockId> unwanted = block;
      if (is_published(block)) {
        unwanted = cache_.unlock(block);
        ++num_evictable_;
        if (unwanted) --num_evictable_;  // the block itself, or one that was free before
      }
      if (unwanted) free_.push_front(*unwanted);
    }
  }

  /// Tells the cache that tokens [begin, end) of a sequence are computed: call it when their keys
  /// and values are in the pool, for one range after the other from the first token that was not
  /// adopted, or from token 0. Throws what the cache throws; no block changes hands.
  void publish(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
               std::int32_t begin, std::int32_t end, const CacheSalt& salt = {}) {
    if (!enable_prefix_caching_) return;
    cache_.insert(block_table, tokens, begin, end, salt);
  }

  /// Empties the prefix cache except blocks in use: the pool's contents are no longer valid.
  void forget() noexcept {
    while (num_evictable_ > 0) {
      const std::optional<BlockId> block = cache_.evict();
      if (!block) return;
      --num_evictable_;
      free_.push_front(*block);
    }
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    free_.check_invariants();
    if (enable_prefix_caching_) cache_.check_invariants();
    check_block_states(ref_counts_, free_, [this](BlockId block) { return is_published(block); },
                       {.all = cache_.size(), .free = num_evictable_});
  }

 protected:
  /// `allocate`, which calls `evicted(block)` for a block that the cache has evicted.
  template <class Evicted>
  [[nodiscard]] std::optional<BlockId> take_free_block(const Evicted& evicted) noexcept {
    std::optional<BlockId> block = free_.pop_front();
    if (!block && num_evictable_ > 0) {
      block = cache_.evict();
      if (block) --num_evictable_, ++stats_.num_evictions, evicted(*block);
    }
    if (block) count(*block) = 1;
    return block;
  }

  BlockStats stats_;

 private:
  static std::size_t checked_size(std::int32_t num_blocks) {
    check<ConfigError>(num_blocks >= 1, "block manager: needs at least one block, got ",
                       num_blocks);
    return static_cast<std::size_t>(num_blocks);
  }
  template <class Visit>
  static void for_each_block(const PrefixMatch& match, const Visit& visit) {
    for (const BlockId block : match.blocks) visit(block);
    if (match.copy_tail) visit(*match.copy_tail);
  }
  [[nodiscard]] std::int32_t& count(BlockId block) noexcept {
    return ref_counts_[static_cast<std::size_t>(block)];
  }
  void take(BlockId block) noexcept {
    if (count(block)++ > 0) return;
    cache_.lock(block);
    --num_evictable_;
  }

  std::vector<std::int32_t> ref_counts_;
  BlockList free_;  ///< blocks that are neither in use nor in the cache
  Cache cache_;
  std::int32_t num_evictable_ = 0;  ///< blocks in the cache that are not in use
  bool enable_prefix_caching_;
};

}  // namespace nanovllm
