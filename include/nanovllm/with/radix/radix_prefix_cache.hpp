#pragma once
/// A prefix cache to the token: a tree of blocks, found by the tokens themselves.
/// Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
/// NeurIPS 2024 (RadixAttention); Seidel and Aragon, "Randomized Search Trees", 1996.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/random_seed.hpp"
#include "nanovllm/fwd.hpp"
#include "nanovllm/kv/cached_block.hpp"
#include "nanovllm/kv/eviction_order.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"
#include "nanovllm/kv/prefix/prefix_cache.hpp"
#include "nanovllm/with/radix/token_trie.hpp"

namespace nanovllm {

/// A node is a block that continues its parent's tokens: B of them, or fewer, and then it has no
/// children. Siblings differ in their tokens and are kept in their order, so that a lookup finds
/// the one that has most in common with what it looks for: where that is all of the block, the walk
/// goes on below it; where it is the block's beginning, the match ends with a copy of that.
///
/// A block that is not full is entered as well, unless a sibling begins with all of its tokens.
/// What its sequence adds to it later is seen when the block is full or when the sequence gives it
/// back: a step that draws one token more for each of its sequences must not search.
///
/// Full blocks of equal content after the same tokens are *duplicates* of one node. A sequence
/// that uses a block uses one of each node before it, too. So a free block without duplicates has
/// nothing below it that is in use, and was given back later than what is below it. Nor does it go
/// before that (`Eviction::keep_up`). So the free block that goes first is a leaf, or has a
/// duplicate.
///
/// With n tokens in all, s siblings at the most on the way: `match` is O(n + n/B · log s), and
/// so is `insert` for its range; `lock`, `unlock` and `evict` are O(B log s). Allocates nothing
/// after construction: 4 B + 109 bytes a block of the pool.
///
/// @tparam kBlockSize  tokens a block, from 1.
/// @tparam Eviction    which free block goes first; an EvictionLike.
template <int kBlockSize, class Eviction>
class RadixPrefixCache {
  static_assert(EvictionLike<Eviction>,
                "'Eviction' must be LeastRecentlyUsed, EvictionByValue<Value>, or have what "
                "kv/eviction_order.hpp states");

 public:
  /// For a pool of `num_blocks`. `seed` shuffles the search trees of siblings: as long as that is
  /// secret, prompts cannot be made that degrade them.
  explicit RadixPrefixCache(std::int32_t num_blocks, std::uint64_t seed = random_seed())
      : trie_(num_blocks, kBlockSize, seed),
        nodes_(static_cast<std::size_t>(num_blocks)),
        places_(static_cast<std::size_t>(num_blocks)),
        unused_(num_blocks) {
    free_nodes_.reserve(nodes_.size());
    for (NodeId n = num_blocks; n-- > 0;) free_nodes_.push_back(n);
  }

  [[nodiscard]] static constexpr std::int32_t block_size() { return kBlockSize; }

  /// The longest prefix, to the token.
  [[nodiscard]] PrefixMatch match(std::span<const TokenId> tokens,
                                  const CacheSalt& salt = {}) const {
    PrefixMatch match;
    std::size_t begin = 0;
    const auto wanted = [&] {
      return tokens.subspan(begin, std::min(kBlock, tokens.size() - begin));
    };
    auto found = trie_.find(salt, wanted());
    while (found.num_common == kBlockSize) {
      match.blocks.push_back(node(found.node).block);
      begin += kBlockSize;
      found = trie_.find(found.node, wanted());
    }
    if (found.num_common > 0) match.copy_tail = node(found.node).block;
    match.num_tokens = static_cast<std::int32_t>(begin) + found.num_common;
    return match;
  }

  /// Enters the blocks that hold tokens [begin, end), or adds the tokens to those that are entered.
  void insert(std::span<const BlockId> block_table, std::span<const TokenId> tokens,
              std::int32_t begin, std::int32_t end, const CacheSalt& salt = {}) {
    for (std::int32_t first = begin / kBlockSize * kBlockSize; first < end; first += kBlockSize) {
      const auto i = static_cast<std::size_t>(first / kBlockSize);
      const auto held = tokens.subspan(static_cast<std::size_t>(first),
                                       std::min(kBlock, static_cast<std::size_t>(end - first)));
      NodeId parent = trie_.root();
      if (i > 0) {
        const BlockId before = block_table[i - 1];
        check(contains(before) && is_full(place(before).node), "prefix cache: block ", before,
              " before block ", block_table[i], " was not entered, or not as full");
        parent = place(before).node;
      }
      if (contains(block_table[i])) {
        grow(block_table[i], held);
      } else {
        enter(block_table[i], parent, held, salt);
      }
    }
  }

  [[nodiscard]] bool contains(BlockId block) const noexcept { return place(block).node != kNone; }

  /// The block was used by a sequence of this priority.
  void rate(BlockId block, std::int32_t priority) noexcept { unused_.rate(block, priority); }

  void lock(BlockId block) noexcept { unused_.remove(block); }

  /// The block is free: `Eviction` says when it goes. The cache does without it when another block
  /// has all of its tokens.
  [[nodiscard]] std::optional<BlockId> unlock(BlockId block) noexcept {
    const NodeId n = place(block).node;
    keep_parent(n, block);
    if (has_duplicate(block)) {
      leave_duplicates(block);
      return block;
    }
    if (!is_full(n)) {
      take_out(n);
      if (find_beside(n, written(n)).num_common == node(n).num_written) {
        forget(n);
        return block;
      }
      put_in(n);
    }
    unused_.add(block);
    return std::nullopt;
  }

  [[nodiscard]] std::optional<BlockId> evict() noexcept {
    const std::optional<BlockId> block = unused_.pop();
    if (!block) return std::nullopt;
    if (has_duplicate(*block)) {
      leave_duplicates(*block);
    } else {
      const NodeId n = place(*block).node;
      take_out(n);
      forget(n);
    }
    return block;
  }

  /// Blocks entered, duplicates and all.
  [[nodiscard]] std::int32_t size() const { return size_; }
  [[nodiscard]] std::uint64_t version() const { return version_; }

  /// All that a lookup could find, parents first. O(num_blocks · depth).
  [[nodiscard]] std::vector<CachedBlock> entries() const {
    std::vector<std::pair<std::int32_t, NodeId>> by_depth;
    for (NodeId n = 0; n < trie_.root(); ++n) {
      if (node(n).block == kNone) continue;
      std::int32_t depth = 0;
      for (NodeId at = n; at != trie_.root(); at = node(at).parent) ++depth;
      by_depth.emplace_back(depth, n);
    }
    std::sort(by_depth.begin(), by_depth.end());
    std::vector<CachedBlock> out;
    std::vector<std::int32_t> place(nodes_.size(), -1);
    for (const auto& [depth, n] : by_depth) {
      const std::span<const TokenId> held = written(n);
      place[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(out.size());
      out.push_back({.block = node(n).block,
                     .parent = depth == 1 ? -1 : place[static_cast<std::size_t>(node(n).parent)],
                     .tokens = {held.begin(), held.end()},
                     .salt = depth == 1 ? trie_.salt(n) : CacheSalt()});
    }
    return out;
  }

  /// Most siblings that a lookup compares to find one child. O(num_blocks).
  [[nodiscard]] std::int32_t longest_walk() const {
    std::int32_t longest = 0;
    for (NodeId n = 0; n <= trie_.root(); ++n) longest = std::max(longest, trie_.longest_walk(n));
    return longest;
  }

  /// Throws Error naming the broken invariant. O(num_blocks · (B + log s)).
  void check_invariants() const {
    unused_.check_invariants();
    std::int32_t num_blocks = 0;
    std::size_t num_nodes = 0, num_children = 0;
    for (NodeId n = 0; n <= trie_.root(); ++n) {
      trie_.check_children(n, [&](NodeId child) {
        ++num_children;
        check(node(child).block != kNone && node(child).parent == n, "radix cache: node ", child,
              " is among the children of node ", n, ", but is not one");
      });
      if (n == trie_.root() || node(n).block == kNone) continue;
      ++num_nodes;
      num_blocks += check_node(n);
    }
    check(num_nodes == num_children, "radix cache: of ", num_nodes, " nodes ", num_children,
          " are in the tree");
    check(num_nodes + free_nodes_.size() == nodes_.size(), "radix cache: ", num_nodes,
          " nodes and ", free_nodes_.size(), " free ones are not ", nodes_.size());
    check(num_blocks == size_, "radix cache: ", num_blocks, " blocks are entered, but its size is ",
          size_);
  }

 private:
  using NodeId = TokenTrie::NodeId;
  static constexpr NodeId kNone = TokenTrie::kNone;
  static constexpr std::size_t kBlock = kBlockSize;

  struct Node {
    BlockId block = kNone;  ///< one of its duplicates; kNone where the node is not in the tree
    NodeId parent = kNone;
    std::int32_t num_written = 0;  ///< tokens; trie_ may still sort it by fewer
  };
  /// Where a block is in the tree.
  struct Place {
    NodeId node = kNone;
    BlockId prev_duplicate = kNone,
            next_duplicate = kNone;  ///< a ring; itself if there is no other
  };

  [[nodiscard]] Place& place(BlockId b) noexcept { return places_[static_cast<std::size_t>(b)]; }
  [[nodiscard]] const Place& place(BlockId b) const noexcept {
    return places_[static_cast<std::size_t>(b)];
  }
  [[nodiscard]] Node& node(NodeId n) noexcept { return nodes_[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const Node& node(NodeId n) const noexcept {
    return nodes_[static_cast<std::size_t>(n)];
  }
  [[nodiscard]] bool is_full(NodeId n) const noexcept { return trie_.size(n) == kBlockSize; }
  /// All tokens of the node, also those by which it is not sorted yet.
  [[nodiscard]] std::span<const TokenId> written(NodeId n) const noexcept {
    return trie_.tokens(n).first(static_cast<std::size_t>(node(n).num_written));
  }

  /// Among the children of `parent`, those with `salt` where that is the root.
  [[nodiscard]] TokenTrie::Found find(NodeId parent, const CacheSalt& salt,
                                      std::span<const TokenId> wanted) const noexcept {
    return parent == trie_.root() ? trie_.find(salt, wanted) : trie_.find(parent, wanted);
  }
  /// Where node `n` belongs.
  [[nodiscard]] TokenTrie::Found find_beside(NodeId n,
                                             std::span<const TokenId> wanted) const noexcept {
    return find(node(n).parent, trie_.salt(n), wanted);
  }

  /// A block that is not in the tree, after `parent`.
  void enter(BlockId block, NodeId parent, std::span<const TokenId> held,
             const CacheSalt& salt) noexcept {
    const auto found = find(parent, salt, held);
    const bool is_there = found.num_common == static_cast<std::int32_t>(held.size());
    if (is_there && held.size() < kBlock) return;
    ++size_;
    if (is_there) return join_duplicates(block, found.node);
    const NodeId n = free_nodes_.back();
    free_nodes_.pop_back();
    node(n) = {block, parent, 0};
    if (parent == trie_.root()) trie_.salt(n) = salt;
    place(block) = {n, block, block};
    write(n, held);
    put_in(n);
  }

  /// The tokens of a block in the tree are the first of `held`; it gets the others.
  void grow(BlockId block, std::span<const TokenId> held) noexcept {
    const NodeId n = place(block).node;
    if (is_full(n)) return;
    write(n, held);
    if (held.size() < kBlock) return;
    take_out(n);
    const auto found = find_beside(n, held);
    if (found.num_common < kBlockSize) return put_in(n);
    free_nodes_.push_back(n);
    node(n) = {};
    join_duplicates(block, found.node);
  }

  void write(NodeId n, std::span<const TokenId> held) noexcept {
    const auto done = static_cast<std::size_t>(node(n).num_written);
    if (held.size() <= done) return;
    std::copy(held.begin() + static_cast<std::ptrdiff_t>(done), held.end(),
              trie_.tokens(n).begin() + static_cast<std::ptrdiff_t>(done));
    node(n).num_written = static_cast<std::int32_t>(held.size());
  }

  /// Among its siblings, by all of its tokens.
  void put_in(NodeId n) noexcept {
    trie_.insert(node(n).parent, n, node(n).num_written);
    ++version_;
  }
  void take_out(NodeId n) noexcept {
    trie_.erase(node(n).parent, n);
    ++version_;
  }
  /// A node that was taken out, and its one block.
  void forget(NodeId n) noexcept {
    place(node(n).block) = {};
    unused_.forget(node(n).block);
    node(n) = {};
    free_nodes_.push_back(n);
    --size_;
  }

  [[nodiscard]] bool has_duplicate(BlockId block) const noexcept {
    return place(block).next_duplicate != block;
  }
  /// `block` is in use. If there was one block and that is free, it is the first to go.
  void join_duplicates(BlockId block, NodeId n) noexcept {
    const BlockId next = node(n).block, prev = place(next).prev_duplicate;
    place(block) = {n, prev, next};
    place(prev).next_duplicate = block;
    place(next).prev_duplicate = block;
    node(n).block = block;
    if (!unused_.contains(next)) return;
    unused_.remove(next);
    unused_.add_first(next);
  }
  /// `block` is no duplicate any more. What it was used for, its duplicates stand for.
  void leave_duplicates(BlockId block) noexcept {
    const Place old = std::exchange(place(block), {});
    place(old.prev_duplicate).next_duplicate = old.next_duplicate;
    place(old.next_duplicate).prev_duplicate = old.prev_duplicate;
    if (node(old.node).block == block) node(old.node).block = old.next_duplicate;
    --size_;
    ++version_;
    const BlockId heir = used_duplicate(old.next_duplicate);
    const bool is_free = unused_.contains(heir);  // and becomes as recent as `block`
    if (is_free) unused_.remove(heir);
    unused_.inherit(heir, block);
    keep_parent(old.node, heir);
    if (is_free) unused_.add(heir);
    unused_.forget(block);
  }
  /// The block before node `n`, which is in use if `block` of it was, goes no earlier than `block`.
  void keep_parent(NodeId n, BlockId block) noexcept {
    if (const NodeId parent = node(n).parent; parent != trie_.root())
      unused_.keep_up(used_duplicate(node(parent).block), block);
  }
  /// `block`, or a duplicate of it that is in use: no two duplicates are free. Itself where it has
  /// none.
  [[nodiscard]] BlockId used_duplicate(BlockId block) const noexcept {
    return unused_.contains(block) ? place(block).next_duplicate : block;
  }

  /// Throws Error unless a node of the tree is as it should be. Returns how many blocks it has.
  [[nodiscard]] std::int32_t check_node(NodeId n) const {
    std::int32_t num_duplicates = 0, num_unused = 0;
    for (BlockId block = node(n).block; num_duplicates == 0 || block != node(n).block;
         block = place(block).next_duplicate) {
      check(++num_duplicates <= size_, "radix cache: the duplicates of node ", n, " are no ring");
      check(place(block).node == n && place(place(block).next_duplicate).prev_duplicate == block,
            "radix cache: block ", block, " is not linked to its duplicates in node ", n);
      num_unused += unused_.contains(block) ? 1 : 0;
    }
    check(trie_.size(n) >= 1 && trie_.size(n) <= node(n).num_written &&
              node(n).num_written <= kBlockSize,
          "radix cache: node ", n, " is sorted by ", trie_.size(n), " of ", node(n).num_written,
          " tokens");
    check(is_full(n) || (num_duplicates == 1 && !trie_.has_children(n)), "radix cache: node ", n,
          " is not full, but has duplicates or children");
    check(num_unused <= 1, "radix cache: ", num_unused, " duplicates of node ", n, " are free");
    check(node(n).parent == trie_.root() || is_full(node(n).parent), "radix cache: node ", n,
          " is after node ", node(n).parent, ", which is not full");
    if (num_duplicates > 1 || num_unused == 0) return num_duplicates;
    trie_.check_children(n, [this, n](NodeId child) {
      check(!has_duplicate(node(child).block) && unused_.contains(node(child).block),
            "radix cache: node ", child, " is in use, but not node ", n, " before it");
      check(unused_.goes_before(node(child).block, node(n).block), "radix cache: node ", n,
            " goes before node ", child, ", which is after it");
    });
    return num_duplicates;
  }

  TokenTrie trie_;
  std::vector<Node> nodes_;    ///< no more than blocks
  std::vector<Place> places_;  ///< one a block
  std::vector<NodeId> free_nodes_;
  Eviction unused_;  ///< those entered and free
  std::int32_t size_ = 0;
  std::uint64_t version_ = 0;
};

static_assert(PrefixCacheLike<RadixPrefixCache<16>>);

}  // namespace nanovllm
