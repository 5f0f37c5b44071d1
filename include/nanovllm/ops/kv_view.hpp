#pragma once
/// Non-owning view of one layer's paged KV cache, trivially copyable.

#include <cstdint>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"

namespace nanovllm {

/// K and V of one layer for every block of the pool.
///
/// Layout, row-major: `[num_blocks][K | V][num_kv_heads][block_size][head_dim]`. The keys of one
/// head in one block are thus a dense `[block_size, head_dim]` tile, and so are the values.
template <Element T>
struct KvView {
  T* data = nullptr;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;  ///< tokens a block
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;

  /// Elements of one head's tile.
  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t tile_size() const {
    return block_size * head_dim;
  }
  /// Elements of one block, K and V of all heads.
  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t block_stride() const {
    return 2 * num_kv_heads * tile_size();
  }
  /// Keys of `head` in `block`, `[block_size, head_dim]`.
  [[nodiscard]] NANOVLLM_HD constexpr T* k(BlockId block, std::int64_t head) const {
    return data + block * block_stride() + head * tile_size();
  }
  /// Values of `head` in `block`, `[block_size, head_dim]`.
  [[nodiscard]] NANOVLLM_HD constexpr T* v(BlockId block, std::int64_t head) const {
    return k(block, num_kv_heads + head);
  }
};

}  // namespace nanovllm
