#pragma once
/// What is in the KV pools of a runner.

#include <cstddef>
#include <span>
#include <vector>

#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// The pools of all ranks, to be read and written. Every call throws Error where ranks are in other
/// processes, and ShapeError for a block that is not there.
class PoolContents {
 public:
  PoolContents() = default;
  PoolContents(const PoolContents&) = delete;
  PoolContents& operator=(const PoolContents&) = delete;
  virtual ~PoolContents() = default;

  /// Copies `blocks` out of the device's pools, `[rank][block][layer][K | V][head][slot][head_dim]`
  /// with each rank's heads: ranks · blocks.size() · KvShape::block_bytes() bytes. No step may be
  /// under way.
  virtual void read_blocks(std::span<const BlockId> blocks, std::span<std::byte> bytes) = 0;
  /// The reverse.
  virtual void write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> bytes) = 0;

  /// The memory of a block of the host's pools, a piece for each layer of each rank, `[K |
  /// V][head][slot][head_dim]`. It may be read and written while no step copies the block.
  [[nodiscard]] virtual std::vector<std::span<std::byte>> host_block(BlockId block) = 0;
};

}  // namespace nanovllm
