#pragma once
/// Non-owning view of one layer's paged KV cache, trivially copyable.

#include <cstdint>

#include "nanovllm/core/config.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/ops/kv_format.hpp"

namespace nanovllm {

namespace detail {

/// What views of all formats have.
template <KvFormat F>
struct KvTiles {
  using Format = F;
  using Stored = KvStored<F>;

  Stored* data = nullptr;
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;  ///< tokens a block
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;

  /// Elements of one head's tile, its scales counted as elements.
  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t tile_size() const {
    return block_size * (head_dim + kScaleSize);
  }
  /// Elements of one block, K and V of all heads.
  [[nodiscard]] NANOVLLM_HD constexpr std::int64_t block_stride() const {
    return 2 * num_kv_heads * tile_size();
  }
  /// Keys of `head` in `block`, `[block_size, head_dim]`.
  [[nodiscard]] NANOVLLM_HD constexpr Stored* k(BlockId block, std::int64_t head) const {
    return data + block * block_stride() + head * tile_size();
  }
  /// Values of `head` in `block`, `[block_size, head_dim]`.
  [[nodiscard]] NANOVLLM_HD constexpr Stored* v(BlockId block, std::int64_t head) const {
    return k(block, num_kv_heads + head);
  }
  /// The scales of a tile that `k` or `v` gave, `[block_size]`, of a format that has them.
  [[nodiscard]] NANOVLLM_HD float* scales(Stored* tile) const requires(ScaledKvFormat<F>) {
    return reinterpret_cast<float*>(tile + block_size * head_dim);
  }

 private:
  static constexpr std::int64_t kScaleSize =
      kKvScaleBytes<F> / static_cast<std::int64_t>(sizeof(Stored));
};

}  // namespace detail

/// K and V of one layer for every block of the pool, in format `F`.
///
/// Layout, row-major: `[num_blocks][K | V][num_kv_heads]` tiles. A tile is `[block_size, head_dim]`
/// elements, dense, and in a format with scales the `[block_size]` floats of its rows after them.
template <KvFormat F>
struct KvView : detail::KvTiles<F> {
  /// Itself: what is stored does not depend on scales that are given.
  [[nodiscard]] constexpr KvView with(const KvScales&) const { return *this; }
};

/// The same with the scales that stores need.
template <FixedScaleKvFormat F>
struct KvView<F> : detail::KvTiles<F> {
  KvScales fixed{};  ///< of rows that are stored; those that are there have their own

  /// The scale of what is stored for `head`: keys' heads come first, then values'.
  [[nodiscard]] NANOVLLM_HD constexpr float fixed_scale(std::int64_t head) const {
    return head < this->num_kv_heads ? fixed.k : fixed.v;
  }
  /// The same cache, stored to by `scales`.
  [[nodiscard]] constexpr KvView with(const KvScales& scales) const {
    KvView out = *this;
    out.fixed = scales;
    return out;
  }
};

}  // namespace nanovllm
