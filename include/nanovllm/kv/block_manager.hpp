#pragma once
/// Who holds which block of the KV pool, and which blocks can be shared.

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/free_list.hpp"
#include "nanovllm/kv/prefix_hash.hpp"
#include "nanovllm/kv/prefix_index.hpp"

namespace nanovllm {

/// What the prefix cache has of a sequence, and what taking it costs.
struct PrefixHit {
  std::vector<BlockId> blocks;       ///< hold the sequence's first blocks.size() · B tokens
  std::int32_t num_free_blocks = 0;  ///< of them, in the free list: adopting takes them out of it
};

/// Counters since the block manager was made.
struct BlockStats {
  std::int64_t num_queried_tokens = 0;  ///< tokens of the sequences that were admitted
  std::int64_t num_hit_tokens = 0;      ///< of them, found in the prefix cache
  std::int64_t num_evictions = 0;       ///< cached blocks that were reused for other tokens
};

/// Reference counts, free list and prefix cache of a pool of `num_blocks` blocks. It deals in block
/// ids only and never touches the pool's memory. Not thread-safe.
///
/// A block is *in use* (reference count ≥ 1) or *free*. When its tokens are computed and fill it, a
/// block may be *published*: `lookup` then finds it, also when it is free, until it is reused. Free
/// blocks that were never published are reused first, then the least recently used.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        how prefixes are hashed; a PrefixHashLike.
template <int kBlockSize, class Hash>
class BlockManager {
  static_assert(kBlockSize >= 1, "a block must hold at least one token");
  static_assert(PrefixHashLike<Hash>,
                "'Hash' must have a static hash(std::uint64_t, std::span<const TokenId>) that "
                "returns std::uint64_t");

 public:
  /// A pool in which every block is free. Throws ConfigError when it would have no blocks.
  BlockManager(std::int32_t num_blocks, bool enable_prefix_caching)
      : ref_counts_(checked_size(num_blocks), 0),
        free_(num_blocks),
        index_(enable_prefix_caching ? num_blocks : 0),
        enable_prefix_caching_(enable_prefix_caching) {}

  [[nodiscard]] static constexpr std::int32_t block_size() { return kBlockSize; }
  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(ref_counts_.size());
  }
  [[nodiscard]] std::int32_t num_free() const { return free_.size(); }
  [[nodiscard]] std::int32_t num_published() const { return index_.size(); }
  [[nodiscard]] std::int32_t ref_count(BlockId block) const {
    return ref_counts_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] bool is_published(BlockId block) const {
    return enable_prefix_caching_ && index_.contains(block);
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

  /// The longest prefix of `tokens` that is published, in whole blocks, and what it costs to take.
  /// The last token is never part of it: its logits are wanted, so it must be computed. Blocks in
  /// use are preferred to free ones of equal content. O(hits · B).
  [[nodiscard]] PrefixHit lookup(std::span<const TokenId> tokens) const {
    PrefixHit hit;
    if (!enable_prefix_caching_ || tokens.empty()) return hit;
    const auto in_use = [this](BlockId block) { return ref_count(block) > 0; };
    PrefixKey prefix;
    for (std::size_t end = kBlockSize; end < tokens.size(); end += kBlockSize) {
      const std::optional<BlockId> block =
          index_.find(prefix, tokens.subspan(end - kBlockSize, kBlockSize), in_use);
      if (!block) break;
      hit.blocks.push_back(*block);
      hit.num_free_blocks += in_use(*block) ? 0 : 1;
      prefix = index_.key(*block);
    }
    return hit;
  }

  /// Takes one reference to each of `blocks`, published ones that `lookup` found for a sequence of
  /// `num_tokens` tokens. Blocks that were free leave the free list; none is evicted.
  void adopt(std::span<const BlockId> blocks, std::int32_t num_tokens) {
    for (BlockId block : blocks) {
      check(is_published(block), "adopt: block ", block, " is not in the prefix cache");
      if (count(block)++ == 0) free_.remove(block);
    }
    if (!enable_prefix_caching_) return;
    stats_.num_queried_tokens += num_tokens;
    stats_.num_hit_tokens += static_cast<std::int64_t>(blocks.size()) * kBlockSize;
  }

  /// Takes a free block with one reference to it, or nothing when there is none. What the block was
  /// published as is forgotten.
  [[nodiscard]] std::optional<BlockId> allocate() {
    const std::optional<BlockId> block = free_.pop_front();
    if (!block) return std::nullopt;
    if (is_published(*block)) {
      index_.erase(*block);
      ++stats_.num_evictions;
    }
    count(*block) = 1;
    return block;
  }

  /// Gives back one reference to each of `blocks`, a block table or the end of one. Blocks without
  /// references become free; those that are published can still be found, and the later a block is
  /// in the table, the earlier it is reused, for it is worth nothing without those before it.
  void release(std::span<const BlockId> blocks) {
    for (std::size_t i = blocks.size(); i-- > 0;) {
      const BlockId block = blocks[i];
      check(ref_count(block) > 0, "release: block ", block, " is not in use");
      if (--count(block) > 0) continue;
      if (is_published(block)) {
        free_.push_back(block);
      } else {
        free_.push_front(block);
      }
    }
  }

  /// Publishes the blocks that tokens [begin, end) of a sequence have filled: call it when their
  /// keys and values are in the pool, for one range after the other from the first token that was
  /// not adopted. A block that is not full stays private. O(end - begin + B).
  void publish(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
               std::int32_t begin, std::int32_t end) {
    if (!enable_prefix_caching_) return;
    for (std::int32_t i = begin / kBlockSize; i < end / kBlockSize; ++i) {
      const BlockId block = block_table[static_cast<std::size_t>(i)];
      PrefixKey parent;
      if (i > 0) {
        const BlockId before = block_table[static_cast<std::size_t>(i - 1)];
        check(is_published(before), "publish: block ", before, " before block ", block,
              " is not published");
        parent = index_.key(before);
      }
      check(!is_published(block), "publish: block ", block, " is published already");
      index_.insert(block, parent,
                    tokens.subspan(static_cast<std::size_t>(i) * kBlockSize, kBlockSize));
    }
  }

  /// The tokens that a published block holds.
  [[nodiscard]] std::span<const TokenId> published_tokens(BlockId block) const {
    return index_.tokens(block);
  }

  /// Throws Error naming the broken invariant: a block is either in use or in the free list, the
  /// list and the index are well linked. O(num_blocks).
  void check_invariants() const {
    free_.check_invariants();
    if (enable_prefix_caching_) index_.check_invariants();
    std::int32_t num_in_use = 0;
    for (BlockId block = 0; block < num_blocks(); ++block) {
      check(ref_count(block) >= 0, "block manager: block ", block, " has reference count ",
            ref_count(block));
      check((ref_count(block) == 0) == free_.contains(block), "block manager: block ", block,
            " has reference count ", ref_count(block), " and is ",
            free_.contains(block) ? "" : "not ", "in the free list");
      num_in_use += ref_count(block) > 0 ? 1 : 0;
    }
    check(num_in_use + num_free() == num_blocks(), "block manager: ", num_in_use, " in use and ",
          num_free(), " free are not ", num_blocks(), " blocks");
  }

 private:
  static std::size_t checked_size(std::int32_t num_blocks) {
    check<ConfigError>(num_blocks >= 1, "block manager: needs at least one block, got ",
                       num_blocks);
    return static_cast<std::size_t>(num_blocks);
  }
  [[nodiscard]] std::int32_t& count(BlockId block) {
    return ref_counts_[static_cast<std::size_t>(block)];
  }

  std::vector<std::int32_t> ref_counts_;
  FreeList free_;
  PrefixIndex<kBlockSize, Hash> index_;
  BlockStats stats_;
  bool enable_prefix_caching_;
};

}  // namespace nanovllm
