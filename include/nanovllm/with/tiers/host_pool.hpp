#pragma once
/// Which blocks of the pool in host memory are taken.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/block_list.hpp"

namespace nanovllm {

/// The state of a pool of blocks in host memory, [0, num_blocks), next to the one that steps
/// compute in. What is in it is only copied: down from the device's pool, and up to it again. A
/// block has one owner or is free. Allocates nothing after construction. Not thread-safe.
class HostPool {
 public:
  /// A pool in which every block is free; of none by default. Throws ConfigError for a negative
  /// number.
  explicit HostPool(std::int32_t num_blocks = 0)
      : free_(BlockList::all(checked(num_blocks))), num_blocks_(num_blocks) {}

  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  [[nodiscard]] std::int32_t num_free() const noexcept { return free_.size(); }
  [[nodiscard]] bool is_taken(BlockId block) const noexcept { return !free_.contains(block); }

  /// Takes a free block, or nothing when there is none.
  [[nodiscard]] std::optional<BlockId> allocate() noexcept { return free_.pop_front(); }

  /// Gives `block` back. Throws Error if it is not taken, which is a mistake of the caller.
  void release(BlockId block) {
    check(block >= 0 && block < num_blocks_ && is_taken(block), "host pool: block ", block,
          " is not taken");
    free_.push_front(block);
  }
  /// The same for each of `blocks`.
  void release(std::span<const BlockId> blocks) {
    for (const BlockId block : blocks) release(block);
  }

  /// Throws Error naming the broken invariant. O(num_blocks).
  void check_invariants() const { free_.check_invariants(); }

 private:
  static std::int32_t checked(std::int32_t num_blocks) {
    check<ConfigError>(num_blocks >= 0, "host pool: the number of blocks must be >= 0, got ",
                       num_blocks);
    return num_blocks;
  }

  BlockList free_;
  std::int32_t num_blocks_;
};

/// A block manager that has a second pool, in host memory.
template <class Blocks>
concept HasHostPool = requires(const Blocks& blocks) {
  blocks.host();
  blocks.tier();
};

}  // namespace nanovllm
