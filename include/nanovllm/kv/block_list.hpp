#pragma once
/// Blocks of a pool in the order in which they will be reused.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// A doubly linked list of block ids, threaded through one array: every operation but the invariant
/// check is O(1) and allocates nothing. The front is reused first.
///
/// To add a block that is in the list, or to remove one that is not, is a mistake of the caller
/// that would write outside of the array. Debug builds (without NDEBUG) and those that define
/// NANOVLLM_CHECKS throw Error then.
class BlockList {
 public:
  /// Empty, with room for the blocks [0, num_blocks).
  explicit BlockList(std::int32_t num_blocks)
      : links_(static_cast<std::size_t>(num_blocks) + 1), sentinel_(num_blocks) {
    links_.back() = {sentinel_, sentinel_};
  }

  /// All of [0, num_blocks), ascending.
  [[nodiscard]] static BlockList all(std::int32_t num_blocks) {
    BlockList list(num_blocks);
    for (BlockId block = 0; block < num_blocks; ++block) list.push_back(block);
    return list;
  }

  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  [[nodiscard]] bool contains(BlockId block) const noexcept {
    return link(block).next != kUnlinked;
  }

  /// Adds a block to be reused before all others. It must not be in the list.
  void push_front(BlockId block) { insert_before(link(sentinel_).next, block); }

  /// Adds a block to be reused after all others. It must not be in the list.
  void push_back(BlockId block) { insert_before(sentinel_, block); }

  /// Takes out a block that is in the list.
  void remove(BlockId block) {
    check_membership(block, true);
    const Link at = link(block);
    link(at.prev).next = at.next;
    link(at.next).prev = at.prev;
    link(block) = {};
    --size_;
  }

  /// The block that is reused first, if there is one.
  [[nodiscard]] std::optional<BlockId> front() const noexcept {
    return size_ == 0 ? std::nullopt : std::optional(link(sentinel_).next);
  }

  /// Takes out the block at the front, if there is one.
  std::optional<BlockId> pop_front() noexcept {
    if (size_ == 0) return std::nullopt;
    const BlockId front = link(sentinel_).next;
    remove(front);
    return front;
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const {
    std::int32_t count = 0;
    for (BlockId block = link(sentinel_).next; block != sentinel_; block = link(block).next) {
      check(++count <= size_, "block list: more blocks are linked than its size, ", size_);
      check(link(link(block).prev).next == block, "block list: block ", block,
            " is not its predecessor's successor");
    }
    check(count == size_, "block list: ", count, " blocks are linked, but its size is ", size_);
  }

 private:
  static constexpr BlockId kUnlinked = -1;

  struct Link {
    BlockId prev = kUnlinked;
    BlockId next = kUnlinked;
  };

  [[nodiscard]] Link& link(BlockId block) noexcept {
    return links_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] const Link& link(BlockId block) const noexcept {
    return links_[static_cast<std::size_t>(block)];
  }

  void check_membership([[maybe_unused]] BlockId block, [[maybe_unused]] bool expected) const {
#if defined(NANOVLLM_CHECKS) || !defined(NDEBUG)
    check(block >= 0 && block < sentinel_, "block list: expected a block in [0, ", sentinel_,
          "), got ", block);
    check(contains(block) == expected, "block list: block ", block, " is ",
          expected ? "not in the list" : "in the list already");
#endif
  }

  void insert_before(BlockId next, BlockId block) {
    check_membership(block, false);
    const BlockId prev = link(next).prev;
    link(block) = {prev, next};
    link(prev).next = block;
    link(next).prev = block;
    ++size_;
  }

  std::vector<Link> links_;  ///< one a block, and the sentinel that closes the ring
  BlockId sentinel_;
  std::int32_t size_ = 0;
};

}  // namespace nanovllm
