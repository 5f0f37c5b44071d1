#pragma once
/// A tree of token strings, in which a node's children are searched for the one that has most in
/// common with a given string.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/prefix/cache_salt.hpp"

namespace nanovllm {

/// Nodes [0, num_nodes) and a root above them all. Each node in the tree has a parent, which the
/// caller knows, and a string of up to `capacity` tokens. The children of a node are sorted by
/// their strings, one before those that it begins; no two may be equal. Those of the root have a
/// salt as well and are sorted by it first. They are a search tree of their own, balanced by random
/// priorities, so that of s siblings one is found in O(log s) steps.
/// Allocates nothing after construction.
/// Source: Seidel and Aragon, "Randomized Search Trees", Algorithmica 16, 1996.
class TokenTrie {
 public:
  using NodeId = std::int32_t;
  static constexpr NodeId kNone = -1;

  /// The node that has the longest beginning in common with a string, and how long that is.
  struct Found {
    NodeId node = kNone;
    std::int32_t num_common = 0;
  };

  /// The priorities come from `seed`.
  TokenTrie(std::int32_t num_nodes, std::int32_t capacity, std::uint64_t seed)
      : links_(static_cast<std::size_t>(num_nodes) + 1),
        tokens_(static_cast<std::size_t>(num_nodes) * static_cast<std::size_t>(capacity)),
        salts_(static_cast<std::size_t>(num_nodes)),
        capacity_(static_cast<std::size_t>(capacity)),
        seed_(seed),
        root_(num_nodes) {}

  [[nodiscard]] NodeId root() const noexcept { return root_; }
  [[nodiscard]] bool has_children(NodeId node) const noexcept {
    return link(node).children != kNone;
  }

  /// Room for the tokens of `node`. Those it is sorted by must not be written to.
  [[nodiscard]] std::span<TokenId> tokens(NodeId node) noexcept {
    return {tokens_.data() + static_cast<std::size_t>(node) * capacity_, capacity_};
  }
  [[nodiscard]] std::span<const TokenId> tokens(NodeId node) const noexcept {
    return {tokens_.data() + static_cast<std::size_t>(node) * capacity_, capacity_};
  }
  /// Tokens that `node` is, or was last, sorted by.
  [[nodiscard]] std::int32_t size(NodeId node) const noexcept { return link(node).size; }
  /// The salt of `node` as a child of the root. It must not change while the node is one.
  [[nodiscard]] CacheSalt& salt(NodeId node) noexcept {
    return salts_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] const CacheSalt& salt(NodeId node) const noexcept {
    return salts_[static_cast<std::size_t>(node)];
  }

  /// Among the children of `parent`, which is not the root. O(log s) comparisons of strings.
  [[nodiscard]] Found find(NodeId parent, std::span<const TokenId> wanted) const noexcept {
    return search(parent, wanted, [](NodeId) { return std::strong_ordering::equal; });
  }
  /// Among the children of the root with this salt.
  [[nodiscard]] Found find(const CacheSalt& wanted_salt,
                           std::span<const TokenId> wanted) const noexcept {
    return search(root_, wanted, [&](NodeId at) { return salt(at) <=> wanted_salt; });
  }

  /// Puts `node`, which is not in the tree, among the children of `parent`, sorted by its first
  /// `size` tokens.
  void insert(NodeId parent, NodeId node, std::int32_t size) noexcept {
    link(node).size = size;
    NodeId* slot = &link(parent).children;
    while (*slot != kNone && priority(*slot) >= priority(node))
      slot = is_less(parent, node, *slot) ? &link(*slot).left : &link(*slot).right;
    NodeId rest = *slot;
    *slot = node;
    NodeId* less = &link(node).left;
    NodeId* greater = &link(node).right;
    while (rest != kNone) {
      NodeId*& side = is_less(parent, rest, node) ? less : greater;
      *side = rest;
      side = side == less ? &link(rest).right : &link(rest).left;
      rest = *side;
    }
    *less = *greater = kNone;
  }

  /// Takes `node`, a child of `parent`, out of the tree.
  void erase(NodeId parent, NodeId node) noexcept {
    NodeId* slot = &link(parent).children;
    while (*slot != node)
      slot = is_less(parent, node, *slot) ? &link(*slot).left : &link(*slot).right;
    NodeId less = link(node).left, greater = link(node).right;
    while (less != kNone && greater != kNone) {
      if (priority(less) >= priority(greater)) {
        *slot = less;
        slot = &link(less).right;
        less = *slot;
      } else {
        *slot = greater;
        slot = &link(greater).left;
        greater = *slot;
      }
    }
    *slot = less != kNone ? less : greater;
  }

  /// Most strings that `find` compares among the children of `parent`. O(s).
  [[nodiscard]] std::int32_t longest_walk(NodeId parent) const {
    return depth(link(parent).children);
  }

  /// Calls `visit(node)` for each child of `parent`, in their order. Throws Error when they are not
  /// sorted or not balanced by their priorities. O(s).
  template <class Visit>
  void check_children(NodeId parent, const Visit& visit) const {
    NodeId last = kNone;
    walk(link(parent).children, [&](NodeId node) {
      check(last == kNone || is_less(parent, last, node), "token trie: node ", last,
            " is before node ", node, ", but its tokens are not");
      for (const NodeId below : {link(node).left, link(node).right}) {
        check(below == kNone || priority(below) <= priority(node), "token trie: node ", below,
              " is below node ", node, ", whose priority is lower");
      }
      last = node;
      visit(node);
    });
  }

 private:
  struct Link {
    NodeId left = kNone, right = kNone;  ///< of its siblings, those sorted before and after
    NodeId children = kNone;             ///< one of them, with the others left and right of it
    std::int32_t size = 0;
  };

  [[nodiscard]] Link& link(NodeId node) noexcept { return links_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] const Link& link(NodeId node) const noexcept {
    return links_[static_cast<std::size_t>(node)];
  }
  [[nodiscard]] std::span<const TokenId> sorted_by(NodeId node) const noexcept {
    return tokens(node).first(static_cast<std::size_t>(link(node).size));
  }

  [[nodiscard]] static std::size_t num_common(std::span<const TokenId> a,
                                              std::span<const TokenId> b) noexcept {
    constexpr std::size_t kStride = 16;  // a cache line
    const std::size_t n = std::min(a.size(), b.size());
    std::size_t i = 0;
    while (i + kStride <= n &&
           std::memcmp(a.data() + i, b.data() + i, kStride * sizeof(TokenId)) == 0)
      i += kStride;
    while (i < n && a[i] == b[i]) ++i;
    return i;
  }

  /// The node below `parent` that has most in common with `wanted`, of those that `side` calls
  /// equal; it says of the others on which side of these they are.
  template <class Side>
  [[nodiscard]] Found search(NodeId parent, std::span<const TokenId> wanted,
                             const Side& side) const noexcept {
    Found best;
    for (NodeId at = link(parent).children; at != kNone;) {
      if (const std::strong_ordering aside = side(at); aside != 0) {
        at = aside < 0 ? link(at).right : link(at).left;
        continue;
      }
      const auto held = sorted_by(at);
      const std::size_t n = num_common(held, wanted);
      if (static_cast<std::int32_t>(n) > best.num_common) best = {at, static_cast<std::int32_t>(n)};
      if (n == wanted.size()) break;
      at = n == held.size() || held[n] < wanted[n] ? link(at).right : link(at).left;
    }
    return best;
  }

  [[nodiscard]] bool is_less(NodeId parent, NodeId a, NodeId b) const noexcept {
    if (parent == root_ && salt(a) != salt(b)) return salt(a) < salt(b);
    const auto of_a = sorted_by(a), of_b = sorted_by(b);
    const std::size_t n = num_common(of_a, of_b);
    return n < of_a.size() && n < of_b.size() ? of_a[n] < of_b[n] : of_a.size() < of_b.size();
  }

  /// The same for a node whenever it is asked. Source: splitmix64.
  [[nodiscard]] std::uint64_t priority(NodeId node) const noexcept {
    std::uint64_t x = seed_ + static_cast<std::uint64_t>(node) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  [[nodiscard]] std::int32_t depth(NodeId node) const {
    if (node == kNone) return 0;
    return 1 + std::max(depth(link(node).left), depth(link(node).right));
  }

  template <class Visit>
  void walk(NodeId node, const Visit& visit) const {
    if (node == kNone) return;
    walk(link(node).left, visit);
    visit(node);
    walk(link(node).right, visit);
  }

  std::vector<Link> links_;       ///< one a node, and the root's
  std::vector<TokenId> tokens_;   ///< `capacity_` a node
  std::vector<CacheSalt> salts_;  ///< one a node; of use where that is a child of the root
  std::size_t capacity_;
  std::uint64_t seed_;
  NodeId root_;
};

}  // namespace nanovllm
