#pragma once
/// Finds the blocks whose keys and values belong to a given prefix of tokens.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix_hash.hpp"

namespace nanovllm {

/// The name of a prefix that is a whole number of blocks long.
///
/// `hash` finds it; `id` is what it is. Two blocks of the index have the same id exactly when all
/// their tokens and all tokens before them are equal, and an id is never given to another prefix,
/// so that comparing a block's own tokens and its parent's id compares the whole prefix.
struct PrefixKey {
  std::uint64_t hash = 0;
  std::uint64_t id = 0;  ///< 0 is the empty prefix
};

/// A hash table from prefixes to published blocks, chained through per-block records. Nothing is
/// allocated after construction. Several blocks may hold equal content: each has its own entry, and
/// an entry is the block itself, so it cannot outlive or outdate it.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        a PrefixHashLike.
template <int kBlockSize, PrefixHashLike Hash>
class PrefixIndex {
 public:
  explicit PrefixIndex(std::int32_t num_blocks)
      : entries_(static_cast<std::size_t>(num_blocks)),
        tokens_(static_cast<std::size_t>(num_blocks) * kBlockSize),
        buckets_(std::bit_ceil(static_cast<std::size_t>(std::max(1, num_blocks))), kNone) {}

  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] bool contains(BlockId block) const { return entry(block).key.id != 0; }

  /// Name of the prefix that ends with `block`, which must be in the index.
  [[nodiscard]] PrefixKey key(BlockId block) const { return entry(block).key; }

  /// The tokens of `block`, which must be in the index.
  [[nodiscard]] std::span<const TokenId> tokens(BlockId block) const {
    return {tokens_.data() + static_cast<std::size_t>(block) * kBlockSize, kBlockSize};
  }

  /// A block that holds `block_tokens` behind the prefix `parent`. Among several, one for which
  /// `preferred(block)` is true, if there is any.
  template <class Preferred>
  [[nodiscard]] std::optional<BlockId> find(PrefixKey parent, std::span<const TokenId> block_tokens,
                                            Preferred preferred) const {
    const std::uint64_t hash = Hash::hash(parent.hash, block_tokens);
    std::optional<BlockId> found;
    for (BlockId block = buckets_[bucket(hash)]; block != kNone; block = entry(block).next) {
      if (!matches(block, hash, parent, block_tokens)) continue;
      if (preferred(block)) return block;
      if (!found) found = block;
    }
    return found;
  }

  /// Enters `block`, which must not be in the index, as holding `block_tokens` behind `parent`.
  void insert(BlockId block, PrefixKey parent, std::span<const TokenId> block_tokens) {
    const auto any = [](BlockId) { return true; };
    const std::optional<BlockId> twin = find(parent, block_tokens, any);
    Entry& e = entry(block);
    e.key = twin ? key(*twin) : PrefixKey{Hash::hash(parent.hash, block_tokens), ++last_id_};
    e.parent_id = parent.id;
    std::copy(block_tokens.begin(), block_tokens.end(),
              tokens_.begin() + static_cast<std::ptrdiff_t>(block) * kBlockSize);
    BlockId& head = buckets_[bucket(e.key.hash)];
    e.prev = kNone;
    e.next = head;
    if (head != kNone) entry(head).prev = block;
    head = block;
    ++size_;
  }

  /// Takes `block`, which must be in the index, out of it. No other block's entry changes.
  void erase(BlockId block) {
    const Entry e = entry(block);
    (e.prev == kNone ? buckets_[bucket(e.key.hash)] : entry(e.prev).next) = e.next;
    if (e.next != kNone) entry(e.next).prev = e.prev;
    entry(block) = {};
    --size_;
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    std::int32_t count = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      BlockId prev = kNone;
      for (BlockId block = buckets_[b]; block != kNone; block = entry(block).next) {
        check(++count <= size_, "prefix index: more blocks are linked than its size, ", size_);
        check(contains(block), "prefix index: block ", block, " is linked but has no prefix");
        check(bucket(key(block).hash) == b, "prefix index: block ", block, " is in bucket ", b,
              ", not in its own, ", bucket(key(block).hash));
        check(entry(block).prev == prev, "prefix index: block ", block,
              " is not its predecessor's successor");
        prev = block;
      }
    }
    check(count == size_, "prefix index: ", count, " blocks are linked, but its size is ", size_);
  }

 private:
  static constexpr BlockId kNone = -1;

  struct Entry {
    PrefixKey key;
    std::uint64_t parent_id = 0;
    BlockId prev = kNone;  ///< in the chain of its bucket
    BlockId next = kNone;
  };

  [[nodiscard]] Entry& entry(BlockId block) { return entries_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Entry& entry(BlockId block) const {
    return entries_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::size_t bucket(std::uint64_t hash) const {
    return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
  }
  [[nodiscard]] bool matches(BlockId block, std::uint64_t hash, PrefixKey parent,
                             std::span<const TokenId> block_tokens) const {
    const Entry& e = entry(block);
    return e.key.hash == hash && e.parent_id == parent.id &&
           std::ranges::equal(tokens(block), block_tokens);
  }

  std::vector<Entry> entries_;    ///< one a block; id 0 where it is not in the index
  std::vector<TokenId> tokens_;   ///< kBlockSize a block
  std::vector<BlockId> buckets_;  ///< heads of the chains; a power of two of them
  std::uint64_t last_id_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace nanovllm
