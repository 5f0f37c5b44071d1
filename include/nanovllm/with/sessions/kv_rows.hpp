#pragma once
/// Keys and values apart from the pool's layout: a row a token, whatever the block size and however
/// many ranks.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "nanovllm/core/error.hpp"
#include "nanovllm/kv/kv_config.hpp"

namespace nanovllm {

/// From blocks as a runner reads and writes them, `[rank][block][layer][K | V][head]` tiles of that
/// rank's heads (see KvView), to rows of tokens, `[token][layer][K | V][head]` with the heads of
/// all ranks, each head_dim elements and its scale where there is one; and back. Bytes are copied
/// as they are.
class KvRows {
 public:
  /// @param shape  of one rank's part of a block.
  KvRows(const KvShape& shape, int num_ranks) : shape_(shape), num_ranks_(num_ranks) {}

  /// Bytes of a token.
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(2 * shape_.num_layers * num_ranks_ * shape_.num_kv_heads *
                                    shape_.row_bytes());
  }
  /// Bytes of `num_blocks` blocks on all ranks.
  [[nodiscard]] std::size_t block_bytes(std::size_t num_blocks) const {
    return num_blocks * static_cast<std::size_t>(shape_.block_bytes() * num_ranks_);
  }
  [[nodiscard]] std::int64_t block_size() const { return shape_.block_size; }

  /// Copies the token in `slot` of block `block`, of the `num_blocks` in `blocks`, to `row`.
  void read(std::span<const std::byte> blocks, std::size_t num_blocks, std::size_t block,
            std::size_t slot, std::byte* row) const {
    check(blocks.size() == block_bytes(num_blocks), "KV rows: ", num_blocks, " blocks have ",
          block_bytes(num_blocks), " bytes, got ", blocks.size());
    visit(num_blocks, block, slot,
          [&](std::size_t in_blocks, std::size_t in_row, std::size_t size) {
            std::memcpy(row + in_row, blocks.data() + in_blocks, size);
          });
  }

  /// The reverse.
  void write(std::span<std::byte> blocks, std::size_t num_blocks, std::size_t block,
             std::size_t slot, const std::byte* row) const {
    check(blocks.size() == block_bytes(num_blocks), "KV rows: ", num_blocks, " blocks have ",
          block_bytes(num_blocks), " bytes, got ", blocks.size());
    visit(num_blocks, block, slot,
          [&](std::size_t in_blocks, std::size_t in_row, std::size_t size) {
            std::memcpy(blocks.data() + in_blocks, row + in_row, size);
          });
  }

 private:
  /// Calls `copy(offset in the blocks, offset in the row, bytes)` for the elements of every head of
  /// every layer, and for its scale.
  template <class Copy>
  void visit(std::size_t num_blocks, std::size_t block, std::size_t slot, const Copy& copy) const {
    const auto layers = static_cast<std::size_t>(shape_.num_layers);
    const auto heads = static_cast<std::size_t>(shape_.num_kv_heads);
    const auto ranks = static_cast<std::size_t>(num_ranks_);
    const auto slots = static_cast<std::size_t>(shape_.block_size);
    const auto elements = static_cast<std::size_t>(shape_.head_dim * shape_.element_bytes);
    const auto scale = static_cast<std::size_t>(shape_.scale_bytes);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const std::size_t layer_at = (rank * num_blocks + block) * layers + layer;
        for (std::size_t kv = 0; kv < 2; ++kv) {
          for (std::size_t head = 0; head < heads; ++head) {
            const std::size_t tile =
                ((layer_at * 2 + kv) * heads + head) * slots * (elements + scale);
            const std::size_t to =
                (((layer * 2 + kv) * ranks + rank) * heads + head) * (elements + scale);
            copy(tile + slot * elements, to, elements);
            if (scale > 0) copy(tile + slots * elements + slot * scale, to + elements, scale);
          }
        }
      }
    }
  }

  KvShape shape_;
  int num_ranks_;
};

}  // namespace nanovllm
