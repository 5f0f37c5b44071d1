#pragma once
/// A block manager with a second pool, in host memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/block_manager.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"
#include "nanovllm/with/tiers/host_pool.hpp"
#include "nanovllm/with/tiers/host_prefix_cache.hpp"
#include "nanovllm/with/tiers/swapping.hpp"

namespace nanovllm {

/// Counters since the block manager was made.
struct TierStats {
  std::int64_t num_host_hit_tokens = 0;  ///< of BlockStats::num_hit_tokens, in host memory
  std::int64_t num_disk_hit_tokens = 0;  ///< and of these, read from a file for the sequence
  std::int64_t num_saved = 0;            ///< of BlockStats::num_evictions, copied to host memory
};

/// A BlockManager for two pools. The blocks of the one in host memory hold sequences that wait,
/// swapped out, and what room they leave is the prefix cache's second tier: blocks that the cache
/// evicts are copied there, and `match` continues into them. Without `add_host_pool` it behaves as
/// a BlockManager.
///
/// The members that it has in common with BlockManager hide that class's: do not call them through
/// a reference to the base.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Cache       a PrefixCacheLike.
template <int kBlockSize, class Cache>
class TieredBlockManager : public BlockManager<kBlockSize, Cache> {
  using Base = BlockManager<kBlockSize, Cache>;

 public:
  using Base::Base;

  /// Adds a pool of `num_host_blocks` blocks in host memory, once, before anything else is done.
  /// Throws ConfigError for a negative number.
  void add_host_pool(std::int32_t num_host_blocks) {
    host_ = HostPool(num_host_blocks);
    if (num_host_blocks > 0 && this->keeps_prefixes())
      tier_ = HostPrefixCache<kBlockSize>(this->num_blocks(), num_host_blocks, random_seed());
  }
  [[nodiscard]] const HostPool& host() const noexcept { return host_; }
  /// What the host's pool holds for the prefix cache.
  [[nodiscard]] const HostPrefixCache<kBlockSize>& tier() const noexcept { return tier_; }
  /// For a tier below it.
  [[nodiscard]] HostPrefixCache<kBlockSize>& tier() noexcept { return tier_; }
  [[nodiscard]] const TierStats& tier_stats() const noexcept { return tier_stats_; }
  [[nodiscard]] const SwapStats& swap_stats() const noexcept { return swap_stats_; }
  [[nodiscard]] SwapStats& swap_stats() noexcept { return swap_stats_; }  ///< for `Outside`
  /// Blocks of the host's pool that sequences can be swapped to.
  [[nodiscard]] std::int32_t num_free_host() const noexcept {
    return host_.num_free() + tier_.num_evictable();
  }

  /// The longest prefix of `tokens` without the last one that the cache and its second tier have,
  /// published with the same `salt`.
  [[nodiscard]] PrefixMatch match(std::span<const TokenId> tokens,
                                  const CacheSalt& salt = {}) const {
    PrefixMatch match = Base::match(tokens, salt);
    if (!tokens.empty()) tier_.extend(match, tokens.first(tokens.size() - 1), salt);
    return match;
  }

  /// Changes whenever `match` could give another answer for the same tokens.
  [[nodiscard]] std::uint64_t cache_version() const {
    return Base::cache_version() + tier_.version();
  }

  /// Throws Error unless the prefix cache has all of `host_blocks`.
  void check_in_tier(std::span<const BlockId> host_blocks) const {
    for (const BlockId block : host_blocks)
      check(tier_.contains(block), "adopt: block ", block,
            " of the host is not in the prefix cache");
  }

  /// As BlockManager's. None of `match.outside` is evicted before the next `end_copies`.
  void adopt(const PrefixMatch& match, std::int32_t num_tokens) {
    Base::adopt(match, num_tokens);
    for (std::size_t i = match.outside.size(); i-- > 0;) {  // the first is to go last
      const BlockId block = match.outside[i];
      if (!tier_.contains(block)) continue;  // the sequence's own
      tier_.hold(block);
      this->stats_.num_hit_tokens += kBlockSize;
      tier_stats_.num_host_hit_tokens += kBlockSize;
      if (tier_.is_first_use(block)) tier_stats_.num_disk_hit_tokens += kBlockSize;
    }
  }

  /// Takes a free block with one reference to it, or nothing when there is none. What it held is
  /// forgotten, or saved in the host's pool: then the copy that has to be made before the block is
  /// written to is appended to `saved`, which has room for it.
  [[nodiscard]] std::optional<BlockId> allocate(std::vector<BlockCopy>* saved = nullptr) noexcept {
    const std::optional<BlockId> block = Base::take_free_block([&](BlockId evicted) {
      if (saved != nullptr) save(evicted, *saved);
    });
    if (block) tier_.forget_name(*block);
    return block;
  }

  /// Takes `count` blocks of the host's pool and appends them to `out`, which has room for them.
  /// Returns false, and takes none, when there are fewer.
  [[nodiscard]] bool allocate_host(std::size_t count, std::vector<BlockId>& out) noexcept {
    if (static_cast<std::size_t>(num_free_host()) < count) return false;
    for (; count > 0; --count) out.push_back(*take_host());
    return true;
  }

  /// Takes up to `most` blocks of the host's pool, to be filled with what comes after `match`:
  /// none of its blocks is evicted for them. They are loading until `end_loads`.
  [[nodiscard]] std::vector<BlockId> begin_loads(const PrefixMatch& match, std::int32_t most) {
    std::vector<BlockId> taken;
    const auto num_matched = static_cast<std::int32_t>(match.outside.size());
    const std::int32_t count = std::min(most, num_free_host() - num_matched);
    if (count <= 0) return taken;
    taken.reserve(static_cast<std::size_t>(count));
    touch_host_blocks(match);
    while (std::ssize(taken) < count) {
      taken.push_back(*take_host());
      tier_.begin_load(taken.back());
    }
    return taken;
  }

  /// `hosts` were filled with block `first` of `tokens` and those after it, by the names `keys`,
  /// which have the salt of the tokens.
  /// Those that go on where the prefix cache ends are entered there, and are pinned: they are
  /// returned. The others are given back, all of them if this throws std::bad_alloc.
  [[nodiscard]] std::vector<BlockId> end_loads(std::span<const TokenId> tokens, std::int32_t first,
                                               std::span<const BlockId> hosts,
                                               std::span<const DiskKey> keys,
                                               const CacheSalt& salt = {}) {
    for (const BlockId host : hosts) tier_.end_load(host);
    std::vector<BlockId> entered;
    PrefixMatch there;
    try {
      entered.reserve(hosts.size());
      there = match(tokens, salt);
    } catch (...) {
      release_host(hosts);
      throw;
    }
    touch_host_blocks(there);
    std::optional<PrefixKey> prefix = tier_.end_of(there, salt);
    const std::int64_t next = std::ssize(there.blocks) + std::ssize(there.outside);
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const std::size_t block = static_cast<std::size_t>(first) + i;
      // What is there already is not entered again; nor is anything after a gap.
      const bool goes_on = prefix && first <= next && static_cast<std::int64_t>(block) >= next &&
                           tier_.enter_loaded(hosts[i], keys[i], *prefix,
                                              tokens.subspan(block * kBlockSize, kBlockSize));
      if (goes_on) {
        entered.push_back(hosts[i]);
      } else {
        host_.release(hosts[i]);
      }
    }
    return entered;
  }

  /// All copies of a step are listed: what its `allocate` has saved, and the blocks of the host
  /// that it reads, may be evicted by the next.
  void end_copies() noexcept { tier_.release_held(); }

  /// `copies`, to the host's pool, may not have been made: the prefix cache forgets those of their
  /// targets that it has.
  void forget_saved(std::span<const BlockCopy> copies) noexcept {
    for (const BlockCopy& copy : copies) {
      if (!tier_.contains(copy.to)) continue;
      tier_.forget(copy.to);
      host_.release(copy.to);
    }
  }

  /// Gives back blocks of the host's pool. Throws Error for one that is not taken.
  void release_host(std::span<const BlockId> blocks) { host_.release(blocks); }

  /// As BlockManager's.
  void publish(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
               std::int32_t begin, std::int32_t end, const CacheSalt& salt = {}) {
    tier_.name(block_table, tokens, begin, end, salt);
    Base::publish(block_table, tokens, begin, end, salt);
  }

  /// Empties the prefix cache but for blocks in use: what the pools hold is not worth finding.
  void forget() noexcept {
    while (const std::optional<BlockId> block = tier_.evict()) host_.release(*block);
    Base::forget();
  }

  /// Throws Error naming the broken invariant of either pool. O(blocks of both).
  void check_invariants() const {
    host_.check_invariants();
    tier_.check_invariants();
    for (BlockId block = 0; block < host_.num_blocks(); ++block)
      check(!tier_.contains(block) || host_.is_taken(block), "block manager: block ", block,
            " of the host is in the prefix cache, but free");
    Base::check_invariants();
  }

 private:
  /// Those of the host in `match` go later than all others, the first of them last.
  void touch_host_blocks(const PrefixMatch& match) noexcept {
    for (std::size_t i = match.outside.size(); i-- > 0;) tier_.touch(match.outside[i]);
  }
  /// A block of the host's pool that no sequence holds.
  [[nodiscard]] std::optional<BlockId> take_host() noexcept {
    const std::optional<BlockId> block = host_.allocate();
    return block ? block : tier_.evict();
  }
  /// The cache has evicted `block`: its second tier keeps a copy, if there is none and it has room.
  void save(BlockId block, std::vector<BlockCopy>& saved) noexcept {
    if (!tier_.has_name(block)) return;
    if (const std::optional<BlockId> copy = tier_.copy_of(block)) return tier_.touch(*copy);
    const std::optional<BlockId> host = take_host();
    if (!host) return;
    tier_.enter(*host, block);
    saved.push_back({block, *host});
    ++tier_stats_.num_saved;
  }

  HostPool host_;
  HostPrefixCache<kBlockSize> tier_;  ///< of the blocks of host_ that no sequence has
  TierStats tier_stats_;
  SwapStats swap_stats_;
};

}  // namespace nanovllm
