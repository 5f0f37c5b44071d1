#pragma once
/// The second tier of the prefix cache: blocks in host memory that hold prefixes which the device's
/// pool had no more room for.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_list.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_hash.hpp"
#include "nanovllm/kv/prefix/prefix_index.hpp"
#include "nanovllm/kv/prefix/prefix_match.hpp"
#include "nanovllm/with/tiers/disk_name.hpp"

namespace nanovllm {

/// Which blocks of the host's pool hold which whole blocks of tokens; the least recently used is
/// evicted first. It works with any prefix cache: it is told of the same blocks and names those of
/// the device as well, so that an evicted block can be saved under its name, and a match can
/// continue where the cache's ends. An entry is its tokens and the name of all before it; a match
/// is what was entered, token for token and with the same salt.
///
/// There may be a tier below it, on disk. Then every block has a name there as well (`key`); a
/// block that is being written, or was read for a sequence that is not admitted yet, is *pinned*;
/// and one that is being read is *loading*: it is not in the tier, nor anywhere else.
///
/// The block manager has the free list of the pool, and makes the copies. Allocates nothing after
/// construction and `name_on_disk`. Not thread-safe.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        how prefixes are hashed; a PrefixHashLike.
template <int kBlockSize, PrefixHashLike Hash = XxPrefixHash>
class HostPrefixCache {
 public:
  /// For pools of so many blocks; without any of the host's it does nothing. The hashes depend on
  /// `seed`: while it is secret, no user can make prompts that collide.
  explicit HostPrefixCache(std::int32_t num_device_blocks = 0, std::int32_t num_host_blocks = 0,
                           std::uint64_t seed = 0)
      : index_(num_host_blocks > 0 ? num_device_blocks + num_host_blocks : 0),
        unused_(num_host_blocks),
        held_(num_host_blocks),
        seed_(seed),
        num_device_blocks_(num_device_blocks),
        num_host_blocks_(num_host_blocks) {}

  /// Blocks of the host's pool that hold prefixes.
  [[nodiscard]] std::int32_t size() const noexcept {
    return unused_.size() + held_.size() + pinned_.size();
  }
  /// Of them, those that may be evicted.
  [[nodiscard]] std::int32_t num_evictable() const noexcept { return unused_.size(); }
  [[nodiscard]] bool contains(BlockId host) const noexcept {
    return host >= 0 && host < num_host_blocks_ &&
           (unused_.contains(host) || held_.contains(host) || is_pinned(host));
  }
  /// Changes whenever `extend` could give another answer.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  /// Names the blocks of the device that tokens [begin, end) of a sequence have filled. Those
  /// before them have been named.
  void name(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
            std::int32_t begin, std::int32_t end, const CacheSalt& salt = {}) {
    if (num_host_blocks_ == 0) return;
    for (std::int32_t i = begin / kBlockSize; i < end / kBlockSize; ++i) {
      const BlockId block = block_table[static_cast<std::size_t>(i)];
      if (index_.contains(block)) continue;
      PrefixKey parent;
      DiskName above;
      if (i == 0) {
        parent = PrefixKey::root(seed_, salt);
        if (!keys_.empty()) above = disk_root_.with(salt);
      } else {
        const BlockId before = block_table[static_cast<std::size_t>(i - 1)];
        if (!index_.contains(before)) return;
        parent = index_.key(before);
        if (!keys_.empty()) above = key_of(before).name;
      }
      index_.insert(block, parent, block_of(tokens, i), salt);
      if (!keys_.empty())
        key_of(block) = {.name = above.next(block_of(tokens, i)), .parent = above, .salt = salt};
    }
  }

  /// The device's `block` is used for other tokens from now on.
  void forget_name(BlockId block) noexcept {
    if (num_host_blocks_ > 0 && index_.contains(block)) index_.erase(block);
  }

  /// Goes on with `match`, which a prefix cache has found for `tokens`, into whole blocks of the
  /// host. A tail that is to be copied gives way to a block that has more.
  void extend(PrefixMatch& match, std::span<const TokenId> tokens,
              const CacheSalt& salt = {}) const {
    if (size() == 0) return;
    const std::optional<PrefixKey> end = end_of(match, salt);
    if (!end) return;
    PrefixKey prefix = *end;
    auto i = static_cast<std::int32_t>(match.blocks.size());
    for (; static_cast<std::size_t>(i + 1) * kBlockSize <= tokens.size(); ++i) {
      const std::optional<BlockId> found = index_.find(prefix, block_of(tokens, i), salt);
      const std::optional<BlockId> host = found ? host_copy(*found) : std::nullopt;
      if (!host) break;
      match.outside.push_back(*host);
      prefix = index_.key(*found);
    }
    if (match.outside.empty()) return;
    match.copy_tail.reset();
    match.num_tokens = i * kBlockSize;
  }

  /// The block of the host that holds what the device's `block` does, if there is one.
  [[nodiscard]] std::optional<BlockId> copy_of(BlockId block) const noexcept {
    if (!has_name(block)) return std::nullopt;
    return host_copy(block);
  }
  /// Whether it is known what the device's `block` holds.
  [[nodiscard]] bool has_name(BlockId block) const noexcept {
    return num_host_blocks_ > 0 && index_.contains(block);
  }

  /// Enters `host`, which is not in the tier, as a copy of the device's `block`, which has a name.
  /// It is held.
  void enter(BlockId host, BlockId block) noexcept {
    index_.insert_duplicate(num_device_blocks_ + host, block);
    held_.push_back(host);
    ++version_;
    if (keys_.empty()) return;
    key_of(num_device_blocks_ + host) = key_of(block);
    is_new_[static_cast<std::size_t>(host)] = false;
  }

  /// `host` is used: it goes later than all others.
  void touch(BlockId host) noexcept {
    if (!unused_.contains(host)) return;
    unused_.remove(host);
    unused_.push_back(host);
  }
  /// `host` is about to be read: it does not go before `release_held`.
  void hold(BlockId host) noexcept {
    if (!unused_.contains(host)) return;
    unused_.remove(host);
    held_.push_back(host);
  }
  /// What was held may go again, later than all others.
  void release_held() noexcept {
    while (const std::optional<BlockId> host = held_.pop_front()) unused_.push_back(*host);
  }

  /// Gives up the block that is used least recently and not held, if there is one.
  [[nodiscard]] std::optional<BlockId> evict() noexcept {
    const std::optional<BlockId> host = unused_.front();
    if (host) forget(*host);
    return host;
  }
  /// Gives up `host`, which is in the tier.
  void forget(BlockId host) noexcept {
    (unused_.contains(host) ? unused_ : held_.contains(host) ? held_ : pinned_).remove(host);
    index_.erase(num_device_blocks_ + host);
    ++version_;
  }

  // ---- The tier below ----

  /// From now on blocks have names on disk, too; before any has one here.
  /// @param root  of the empty prefix without a salt.
  void name_on_disk(const DiskName& root) {
    disk_root_ = root;
    keys_.resize(static_cast<std::size_t>(num_device_blocks_ + num_host_blocks_));
    is_new_.resize(static_cast<std::size_t>(num_host_blocks_));
    pinned_ = BlockList(num_host_blocks_);
    loading_ = BlockList(num_host_blocks_);
  }

  /// The name on disk of `host`, which is in the tier, and its tokens.
  [[nodiscard]] const DiskKey& key(BlockId host) const { return key_of(num_device_blocks_ + host); }
  [[nodiscard]] std::span<const TokenId> tokens(BlockId host) const {
    return index_.tokens(num_device_blocks_ + host);
  }

  [[nodiscard]] bool is_pinned(BlockId host) const noexcept {
    return !keys_.empty() && pinned_.contains(host);
  }
  /// `host`, which is in the tier, does not go before `unpin`.
  void pin(BlockId host) noexcept {
    (unused_.contains(host) ? unused_ : held_).remove(host);
    pinned_.push_back(host);
  }
  /// `host`, which is pinned, may go, later than all others.
  void unpin(BlockId host) noexcept {
    pinned_.remove(host);
    unused_.push_back(host);
  }

  /// A block of either pool, and what it is.
  struct Named {
    DiskKey key{};
    std::span<const TokenId> tokens{};
    BlockId block = 0;
    bool is_host = false;
  };
  /// Calls `visit(Named)` for all that have names. O(blocks of both pools).
  template <class Visit>
  void for_each_named(const Visit& visit) const {
    for (BlockId b = 0; b < index_.num_blocks(); ++b) {
      if (!index_.contains(b)) continue;
      const bool is_host = b >= num_device_blocks_;
      visit(Named{.key = key_of(b),
                  .tokens = index_.tokens(b),
                  .block = is_host ? b - num_device_blocks_ : b,
                  .is_host = is_host});
    }
  }

  [[nodiscard]] bool is_loading(BlockId host) const noexcept {
    return !keys_.empty() && loading_.contains(host);
  }
  [[nodiscard]] std::int32_t num_loading() const noexcept { return loading_.size(); }
  /// `host`, which is taken and not in the tier, is to be filled from a file.
  void begin_load(BlockId host) noexcept { loading_.push_back(host); }
  /// It is filled, or dropped.
  void end_load(BlockId host) noexcept { loading_.remove(host); }

  /// The prefix that `match`, of tokens with `salt`, ends with; none where its last block has no
  /// name.
  [[nodiscard]] std::optional<PrefixKey> end_of(const PrefixMatch& match,
                                                const CacheSalt& salt = {}) const {
    if (!match.outside.empty()) return index_.key(num_device_blocks_ + match.outside.back());
    if (match.blocks.empty()) return PrefixKey::root(seed_, salt);
    if (!index_.contains(match.blocks.back())) return std::nullopt;
    return index_.key(match.blocks.back());
  }

  /// Enters `host`, which holds `tokens` after `prefix` as the file of name `key` does, and pins
  /// it; `prefix` becomes the one that ends with it. Returns false, and enters nothing, where the
  /// tier has such a block.
  bool enter_loaded(BlockId host, const DiskKey& key, PrefixKey& prefix,
                    std::span<const TokenId> tokens) noexcept {
    const BlockId block = num_device_blocks_ + host;
    const std::optional<BlockId> found = index_.find(prefix, tokens, key.salt);
    const bool is_there = found && host_copy(*found);
    if (!is_there) {
      index_.insert(block, prefix, tokens, key.salt);
      pinned_.push_back(host);
      key_of(block) = key;
      is_new_[static_cast<std::size_t>(host)] = true;
      ++version_;
    }
    prefix = index_.key(is_there ? *found : block);
    return !is_there;
  }

  /// Whether `host` came from a file and is used for the first time since.
  [[nodiscard]] bool is_first_use(BlockId host) noexcept {
    if (keys_.empty() || !is_new_[static_cast<std::size_t>(host)]) return false;
    is_new_[static_cast<std::size_t>(host)] = false;
    return true;
  }

  /// Throws Error naming the broken invariant. O(blocks of both pools).
  void check_invariants() const {
    index_.check_invariants();
    unused_.check_invariants();
    held_.check_invariants();
    pinned_.check_invariants();
    loading_.check_invariants();
    for (BlockId host = 0; host < num_host_blocks_; ++host) {
      const bool is_named = index_.contains(num_device_blocks_ + host);
      const int num_lists = unused_.contains(host) + held_.contains(host) + is_pinned(host);
      check(num_lists == (is_named ? 1 : 0) && !(is_named && is_loading(host)), "host tier: block ",
            host, is_named ? " has" : " has not", " a name, is in ", num_lists, " lists and is ",
            is_loading(host) ? "" : "not ", "loading");
    }
  }

 private:
  [[nodiscard]] static std::span<const TokenId> block_of(std::span<const TokenId> tokens,
                                                         std::int32_t i) {
    return tokens.subspan(static_cast<std::size_t>(i) * kBlockSize, kBlockSize);
  }
  [[nodiscard]] const DiskKey& key_of(BlockId block) const {
    return keys_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] DiskKey& key_of(BlockId block) { return keys_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] std::optional<BlockId> host_copy(BlockId block) const noexcept {
    const auto duplicate =
        index_.find_duplicate(block, [this](BlockId b) { return b >= num_device_blocks_; });
    return duplicate ? std::optional(*duplicate - num_device_blocks_) : std::nullopt;
  }

  PrefixIndex<kBlockSize, Hash> index_;  ///< the device's blocks, and after them the host's
  BlockList unused_;                     ///< the least recently used first
  BlockList held_;                       ///< read or written by the step that begins
  std::uint64_t seed_;
  std::int32_t num_device_blocks_;
  std::int32_t num_host_blocks_;
  std::uint64_t version_ = 0;

  // With a tier below:
  BlockList pinned_{0};
  BlockList loading_{0};
  std::vector<DiskKey> keys_;  ///< of the blocks in index_
  std::vector<bool> is_new_;   ///< of the host's blocks: read, and not used yet
  DiskName disk_root_;
};

}  // namespace nanovllm
