#pragma once
/// The second tier of the prefix cache: blocks in host memory that hold prefixes which the device's
/// pool had no more room for.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_list.hpp"
#include "nanovllm/kv/prefix_hash.hpp"
#include "nanovllm/kv/prefix_index.hpp"
#include "nanovllm/kv/prefix_match.hpp"

namespace nanovllm {

/// Which blocks of the host's pool hold which whole blocks of tokens; the least recently used goes
/// first. It stands beside a prefix cache of any kind: it is told of the same blocks, and names
/// those of the device, too, so that one that is given up can be saved under its name, and a match
/// can go on where the cache's ends. An entry is its tokens and the name of all before it; what is
/// found is what was entered, token for token.
///
/// The books of the pool, and the copies, are the block manager's. Allocates nothing after
/// construction. Not thread-safe.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        how prefixes are hashed; a PrefixHashLike.
template <int kBlockSize, PrefixHashLike Hash = XxPrefixHash>
class HostTier {
 public:
  /// For pools of so many blocks; without any of the host's it does nothing. The hashes depend on
  /// `seed`: as long as that is secret, prompts cannot be made to collide.
  explicit HostTier(std::int32_t num_device_blocks = 0, std::int32_t num_host_blocks = 0,
                    std::uint64_t seed = 0)
      : index_(num_host_blocks > 0 ? num_device_blocks + num_host_blocks : 0),
        unused_(num_host_blocks),
        held_(num_host_blocks),
        root_{.hash = seed, .id = 0},
        num_device_blocks_(num_device_blocks),
        num_host_blocks_(num_host_blocks) {}

  /// Blocks of the host's pool that hold prefixes.
  [[nodiscard]] std::int32_t size() const noexcept { return unused_.size() + held_.size(); }
  /// Of them, those that may be given up.
  [[nodiscard]] std::int32_t num_evictable() const noexcept { return unused_.size(); }
  [[nodiscard]] bool contains(BlockId host) const noexcept {
    return host >= 0 && host < num_host_blocks_ && (unused_.contains(host) || held_.contains(host));
  }
  /// Another number whenever `extend` could give another answer.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }

  /// Names the blocks of the device that tokens [begin, end) of a sequence have filled. Those
  /// before them have been named.
  void name(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
            std::int32_t begin, std::int32_t end) {
    if (num_host_blocks_ == 0) return;
    for (std::int32_t i = begin / kBlockSize; i < end / kBlockSize; ++i) {
      const BlockId block = block_table[static_cast<std::size_t>(i)];
      if (index_.contains(block)) continue;
      PrefixKey parent = root_;
      if (i > 0) {
        const BlockId before = block_table[static_cast<std::size_t>(i - 1)];
        if (!index_.contains(before)) return;
        parent = index_.key(before);
      }
      index_.insert(block, parent, block_of(tokens, i));
    }
  }

  /// The device's `block` is used for other tokens from now on.
  void forget_name(BlockId block) noexcept {
    if (num_host_blocks_ > 0 && index_.contains(block)) index_.erase(block);
  }

  /// Goes on with `match`, which a prefix cache has found for `tokens`, into whole blocks of the
  /// host. A tail that is to be copied gives way to a block that has more.
  void extend(PrefixMatch& match, std::span<const TokenId> tokens) const {
    if (size() == 0) return;
    PrefixKey prefix = root_;
    auto i = static_cast<std::int32_t>(match.blocks.size());
    if (i > 0) {
      if (!index_.contains(match.blocks.back())) return;
      prefix = index_.key(match.blocks.back());
    }
    for (; static_cast<std::size_t>(i + 1) * kBlockSize <= tokens.size(); ++i) {
      const std::optional<BlockId> found = index_.find(prefix, block_of(tokens, i));
      const std::optional<BlockId> host = found ? host_twin(*found) : std::nullopt;
      if (!host) break;
      match.host_blocks.push_back(*host);
      prefix = index_.key(*found);
    }
    if (match.host_blocks.empty()) return;
    match.copy_tail.reset();
    match.num_tokens = i * kBlockSize;
  }

  /// The block of the host that holds what the device's `block` does, if there is one.
  [[nodiscard]] std::optional<BlockId> copy_of(BlockId block) const noexcept {
    if (!has_name(block)) return std::nullopt;
    return host_twin(block);
  }
  /// Whether it is known what the device's `block` holds.
  [[nodiscard]] bool has_name(BlockId block) const noexcept {
    return num_host_blocks_ > 0 && index_.contains(block);
  }

  /// Enters `host`, which is not in the tier, as a copy of the device's `block`, which has a name.
  /// It is held.
  void enter(BlockId host, BlockId block) noexcept {
    index_.insert_twin(num_device_blocks_ + host, block);
    held_.push_back(host);
    ++version_;
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
    (unused_.contains(host) ? unused_ : held_).remove(host);
    index_.erase(num_device_blocks_ + host);
    ++version_;
  }

  /// Throws Error naming the broken invariant. O(blocks of both pools).
  void check_invariants() const {
    index_.check_invariants();
    unused_.check_invariants();
    held_.check_invariants();
    for (BlockId host = 0; host < num_host_blocks_; ++host) {
      const bool is_named = index_.contains(num_device_blocks_ + host);
      check(is_named == contains(host) && !(unused_.contains(host) && held_.contains(host)),
            "host tier: block ", host, is_named ? " has" : " has not", " a name, and is in ",
            unused_.contains(host) + held_.contains(host), " lists");
    }
  }

 private:
  [[nodiscard]] static std::span<const TokenId> block_of(std::span<const TokenId> tokens,
                                                         std::int32_t i) {
    return tokens.subspan(static_cast<std::size_t>(i) * kBlockSize, kBlockSize);
  }
  [[nodiscard]] std::optional<BlockId> host_twin(BlockId block) const noexcept {
    const auto twin =
        index_.find_twin(block, [this](BlockId b) { return b >= num_device_blocks_; });
    return twin ? std::optional(*twin - num_device_blocks_) : std::nullopt;
  }

  PrefixIndex<kBlockSize, Hash> index_;  ///< the device's blocks, and behind them the host's
  BlockList unused_;                     ///< the least recently used first
  BlockList held_;                       ///< read or written by the step that begins
  PrefixKey root_;
  std::int32_t num_device_blocks_;
  std::int32_t num_host_blocks_;
  std::uint64_t version_ = 0;
};

}  // namespace nanovllm
