#pragma once
/// What each block of a KV pool is used for, for people.

#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

enum class BlockState : unsigned char {
  free,    ///< in no use, and it holds nothing that the prefix cache knows
  cached,  ///< in no use, but the prefix cache can find it
  in_use   ///< somebody has a reference to it
};

/// The state of every block at one time.
struct BlockMap {
  std::chrono::steady_clock::time_point time{};
  std::vector<BlockState> states{};  ///< indexed by block
};

/// The map of `blocks`, a block manager, now; null without memory for it. O(number of blocks).
template <class Blocks>
[[nodiscard]] std::shared_ptr<const BlockMap> map_blocks(const Blocks& blocks) noexcept try {
  BlockMap out{std::chrono::steady_clock::now(), {}};
  out.states.resize(static_cast<std::size_t>(blocks.num_blocks()));
  for (BlockId block = 0; block < blocks.num_blocks(); ++block) {
    BlockState& state = out.states[static_cast<std::size_t>(block)];
    if (blocks.ref_count(block) > 0) {
      state = BlockState::in_use;
    } else if (blocks.is_published(block)) {
      state = BlockState::cached;
    }
  }
  return std::make_shared<const BlockMap>(std::move(out));
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace nanovllm
