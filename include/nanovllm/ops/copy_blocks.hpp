#pragma once
/// Contract of `copy_blocks`: whole blocks of the paged cache to other places in it.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// For each i, K and V of block copies[i].to become those of copies[i].from, in all layers, byte by
/// byte. All copies happen at once: no block is written twice, and none is both written and read
/// (`check_block_copies`).
template <KvFormat Kv>
struct CopyBlocksArgs {
  KvView<Kv> first_layer;         ///< layer 0
  std::int64_t layer_stride = 0;  ///< elements from a layer to the next
  std::int64_t num_layers = 0;
  VectorView<const BlockCopy> copies;
};

/// Throws ShapeError unless all blocks are in [0, num_blocks) and no block that is written is also
/// read, or written again.
inline void check_block_copies(std::span<const BlockCopy> copies, std::int64_t num_blocks) {
  if (copies.empty()) return;
  std::vector<BlockId> targets;
  for (const BlockCopy& copy : copies) {
    check<ShapeError>(
        std::min(copy.from, copy.to) >= 0 && std::max(copy.from, copy.to) < num_blocks,
        "copy_blocks: blocks must be in [0, ", num_blocks, "), got ", copy.from, " -> ", copy.to);
    targets.push_back(copy.to);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  check<ShapeError>(twice == targets.end(), "copy_blocks: a block is written twice: ",
                    twice == targets.end() ? BlockId{} : *twice);
  for (const BlockCopy& copy : copies) {
    check<ShapeError>(!std::binary_search(targets.begin(), targets.end(), copy.from),
                      "copy_blocks: block ", copy.from, " is both read and written");
  }
}

/// Throws ShapeError when the operands do not fit together.
template <KvFormat Kv>
void validate(const CopyBlocksArgs<Kv>& args) {
  check<ShapeError>(
      args.num_layers <= 1 ||
          args.layer_stride >= args.first_layer.num_blocks * args.first_layer.block_stride(),
      "copy_blocks: layers of ", args.first_layer.num_blocks, " blocks of ",
      args.first_layer.block_stride(), " elements do not fit into a stride of ", args.layer_stride);
}

}  // namespace nanovllm
