#pragma once
/// Finds the blocks whose keys and values belong to a given prefix of tokens.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_hash.hpp"

namespace nanovllm {

/// The name of a prefix that is a whole number of blocks long.
///
/// `hash` finds it; `id` is what it is. Two blocks of the index have the same id only if all their
/// tokens, all tokens before them and their salts are equal, and an id is never given to another
/// prefix, so that comparing a block's own tokens and its parent's id compares the whole prefix.
/// The empty prefix of every salt has the id 0: for a first block the salt is compared as well.
struct PrefixKey {
  std::uint64_t hash = 0;  ///< of the empty prefix: the seed, mixed with the salt
  std::uint64_t id = 0;    ///< 0 is the empty prefix

  /// Of the empty prefix of `salt`.
  [[nodiscard]] static PrefixKey root(std::uint64_t seed, const CacheSalt& salt) {
    return {.hash = salt.mixed_with(seed), .id = 0};
  }
};

/// A hash table from prefixes to blocks, chained through per-block records. Nothing is allocated
/// after construction. Several blocks may hold equal content: they are *duplicates*, of which only
/// the newest is in the table, with the others in a list after it. An entry is the block itself,
/// so it cannot outlive or outdate it.
///
/// A lookup compares no more than `kMaxWalk` blocks. Those that collide beyond that are not found,
/// which costs a miss; among hashes that are any good it does not happen.
///
/// @tparam kBlockSize  tokens a block.
/// @tparam Hash        a PrefixHashLike.
template <int kBlockSize, PrefixHashLike Hash>
class PrefixIndex {
 public:
  static constexpr int kMaxWalk = 32;

  explicit PrefixIndex(std::int32_t num_blocks)
      : entries_(static_cast<std::size_t>(num_blocks)),
        tokens_(static_cast<std::size_t>(num_blocks) * kBlockSize),
        salts_(static_cast<std::size_t>(num_blocks)),
        buckets_(std::bit_ceil(static_cast<std::size_t>(std::max(1, num_blocks))), kNone) {}

  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] bool contains(BlockId block) const noexcept { return entry(block).key.id != 0; }

  /// Name of the prefix that ends with `block`, which must be in the index.
  [[nodiscard]] PrefixKey key(BlockId block) const { return entry(block).key; }

  /// The tokens of `block`, which must be in the index.
  [[nodiscard]] std::span<const TokenId> tokens(BlockId block) const {
    return {tokens_.data() + static_cast<std::size_t>(block) * kBlockSize, kBlockSize};
  }

  /// The salt of `block`, which must be in the index and the first of its prefix.
  [[nodiscard]] const CacheSalt& salt(BlockId block) const {
    return salts_[static_cast<std::size_t>(block)];
  }

  /// The block that holds `block_tokens` after the prefix `parent`; the newest of duplicates.
  /// @param salt  of the prefix; read only where `parent` is empty.
  [[nodiscard]] std::optional<BlockId> find(PrefixKey parent, std::span<const TokenId> block_tokens,
                                            const CacheSalt& salt = {}) const {
    return find(Hash::hash(parent.hash, block_tokens), parent, block_tokens, salt);
  }

  /// Enters `block`, which must not be in the index, as holding `block_tokens` after `parent`.
  void insert(BlockId block, PrefixKey parent, std::span<const TokenId> block_tokens,
              const CacheSalt& salt = {}) {
    const std::uint64_t hash = Hash::hash(parent.hash, block_tokens);
    const std::optional<BlockId> duplicate = find(hash, parent, block_tokens, salt);
    Entry& e = entry(block);
    e = Entry();
    e.parent_id = parent.id;
    if (parent.id == 0) salts_[static_cast<std::size_t>(block)] = salt;
    std::copy(block_tokens.begin(), block_tokens.end(),
              tokens_.begin() + static_cast<std::ptrdiff_t>(block) * kBlockSize);
    ++size_;
    if (duplicate) return link_duplicate(block, *duplicate);
    e.key = {.hash = hash, .id = ++last_id_};
    BlockId& head = buckets_[bucket(hash)];
    e.next = head;
    if (head != kNone) entry(head).prev = block;
    head = block;
  }

  /// Enters `block`, which must not be in the index, as having the content of `duplicate`, which
  /// is.
  void insert_duplicate(BlockId block, BlockId duplicate) noexcept {
    const std::span<const TokenId> from = tokens(duplicate);
    std::copy(from.begin(), from.end(),
              tokens_.begin() + static_cast<std::ptrdiff_t>(block) * kBlockSize);
    entry(block) = Entry();
    entry(block).parent_id = entry(duplicate).parent_id;
    if (parent_id(duplicate) == 0) salts_[static_cast<std::size_t>(block)] = salt(duplicate);
    ++size_;
    while (entry(duplicate).newer_duplicate != kNone) duplicate = entry(duplicate).newer_duplicate;
    link_duplicate(block, duplicate);
  }

  /// Of `block`, which must be in the index, and the others of its content one that is `wanted`.
  template <class Wanted>
  [[nodiscard]] std::optional<BlockId> find_duplicate(BlockId block, const Wanted& wanted) const {
    for (BlockId b = block; b != kNone; b = entry(b).older_duplicate) {
      if (wanted(b)) return b;
    }
    for (BlockId b = entry(block).newer_duplicate; b != kNone; b = entry(b).newer_duplicate) {
      if (wanted(b)) return b;
    }
    return std::nullopt;
  }

  /// The id of the prefix before `block`, which must be in the index.
  [[nodiscard]] std::uint64_t parent_id(BlockId block) const { return entry(block).parent_id; }

  /// Whether `block`, which must be in the index, is the one that a lookup finds.
  [[nodiscard]] bool is_newest(BlockId block) const {
    return entry(block).newer_duplicate == kNone;
  }

  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(entries_.size());
  }

  /// Another block of the same content as `block`, which must be in the index, if there is one: the
  /// next newer, or else the next older.
  [[nodiscard]] std::optional<BlockId> duplicate(BlockId block) const noexcept {
    const Entry& e = entry(block);
    const BlockId duplicate = e.newer_duplicate != kNone ? e.newer_duplicate : e.older_duplicate;
    return duplicate == kNone ? std::nullopt : std::optional(duplicate);
  }

  /// Takes `block`, which must be in the index, out of it. No other block's name changes.
  void erase(BlockId block) noexcept {
    const Entry e = entry(block);
    if (e.newer_duplicate != kNone) {
      entry(e.newer_duplicate).older_duplicate = e.older_duplicate;
    } else if (e.older_duplicate != kNone) {
      replace_in_chain(block, e.older_duplicate);
    } else {
      (e.prev == kNone ? buckets_[bucket(e.key.hash)] : entry(e.prev).next) = e.next;
      if (e.next != kNone) entry(e.next).prev = e.prev;
    }
    if (e.older_duplicate != kNone) entry(e.older_duplicate).newer_duplicate = e.newer_duplicate;
    entry(block) = {};
    --size_;
  }

  /// All that `find` could find, parents first. O(num_blocks log num_blocks).
  [[nodiscard]] std::vector<CachedBlock> entries() const {
    std::vector<ListedBlock> out;
    for (BlockId block = 0; block < num_blocks(); ++block) {
      if (!contains(block) || !is_newest(block)) continue;
      const std::uint64_t parent = parent_id(block);
      out.push_back({.id = key(block).id,
                     .parent = parent,
                     .block = block,
                     .tokens = tokens(block),
                     .salt = parent == 0 ? salt(block) : CacheSalt()});
    }
    return list_entries(std::move(out));
  }

  /// Most blocks that a lookup compares. O(num_blocks).
  [[nodiscard]] std::int32_t longest_walk() const {
    std::int32_t longest = 0;
    for (BlockId block : buckets_) {
      std::int32_t length = 0;
      for (; block != kNone && length < kMaxWalk; block = entry(block).next) ++length;
      longest = std::max(longest, length);
    }
    return longest;
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    std::int32_t count = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      BlockId prev = kNone;
      for (BlockId block = buckets_[b]; block != kNone; block = entry(block).next) {
        check(bucket(key(block).hash) == b, "prefix index: block ", block, " is in bucket ", b,
              ", not in its own, ", bucket(key(block).hash));
        check(entry(block).prev == prev, "prefix index: block ", block,
              " is not its predecessor's successor");
        BlockId newer = kNone;
        for (BlockId duplicate = block; duplicate != kNone;
             duplicate = entry(duplicate).older_duplicate) {
          check(++count <= size_, "prefix index: more blocks are linked than its size, ", size_);
          check(contains(duplicate) && key(duplicate).id == key(block).id, "prefix index: block ",
                duplicate, " is linked as a duplicate of block ", block,
                " but has another prefix or none");
          check(entry(duplicate).parent_id != 0 || salt(duplicate) == salt(block),
                "prefix index: block ", duplicate, " is linked as a duplicate of block ", block,
                " but has another salt");
          check(entry(duplicate).newer_duplicate == newer, "prefix index: block ", duplicate,
                " does not know its newer duplicate");
          newer = duplicate;
        }
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
    BlockId prev = kNone;  ///< in the chain of its bucket, where the newest of duplicates is
    BlockId next = kNone;
    BlockId newer_duplicate = kNone;
    BlockId older_duplicate = kNone;
  };

  [[nodiscard]] Entry& entry(BlockId block) noexcept {
    return entries_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] const Entry& entry(BlockId block) const noexcept {
    return entries_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::size_t bucket(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
  }
  [[nodiscard]] std::optional<BlockId> find(std::uint64_t hash, PrefixKey parent,
                                            std::span<const TokenId> block_tokens,
                                            const CacheSalt& salt) const {
    BlockId block = buckets_[bucket(hash)];
    for (int i = 0; block != kNone && i < kMaxWalk; block = entry(block).next, ++i) {
      if (matches(block, hash, parent, block_tokens, salt)) return block;
    }
    return std::nullopt;
  }
  /// `block` is the newest of the duplicates of `newest`, which was that.
  void link_duplicate(BlockId block, BlockId newest) noexcept {
    Entry& e = entry(block);
    e.key = key(newest);
    e.older_duplicate = newest;
    entry(newest).newer_duplicate = block;
    replace_in_chain(newest, block);
  }
  /// `block` takes the place of its duplicate `old` in the chain of their bucket.
  void replace_in_chain(BlockId old, BlockId block) noexcept {
    Entry& from = entry(old);
    Entry& to = entry(block);
    to.prev = std::exchange(from.prev, kNone);
    to.next = std::exchange(from.next, kNone);
    (to.prev == kNone ? buckets_[bucket(to.key.hash)] : entry(to.prev).next) = block;
    if (to.next != kNone) entry(to.next).prev = block;
  }
  [[nodiscard]] bool matches(BlockId block, std::uint64_t hash, PrefixKey parent,
                             std::span<const TokenId> block_tokens, const CacheSalt& salt) const {
    const Entry& e = entry(block);
    return e.key.hash == hash && e.parent_id == parent.id &&
           std::ranges::equal(tokens(block), block_tokens) &&
           (parent.id != 0 || this->salt(block) == salt);
  }

  std::vector<Entry> entries_;    ///< one a block; id 0 where it is not in the index
  std::vector<TokenId> tokens_;   ///< kBlockSize a block
  std::vector<CacheSalt> salts_;  ///< one a block; of use where that is the first of its prefix
  std::vector<BlockId> buckets_;  ///< heads of the chains; a power of two of them
  std::uint64_t last_id_ = 0;
  std::int32_t size_ = 0;
};

}  // namespace nanovllm
