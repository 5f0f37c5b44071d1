#pragma once
/// The memory of the paged KV cache, all layers in one piece.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// Memory that a KvPool may live in: made from a number of elements, it owns them and says where
/// they are. The elements need no initial value: a slot is written before it is read.
template <class Buffer, class T>
concept KvBufferLike = std::constructible_from<Buffer, std::size_t> && requires(Buffer& buffer) {
  { buffer.data() } -> std::convertible_to<T*>;
};

/// Owns the keys and values of every layer, `[layer][block][K | V][kv_head]` tiles, row-major, and
/// hands out views of single layers. See KvView for a tile.
///
/// @tparam F       format of the cache.
/// @tparam Buffer  where it lives: `cpu::AlignedBuffer<KvStored<F>>`, or device memory.
template <KvFormat F, class Buffer>
class KvPool {
 protected:
  using Stored = KvStored<F>;
  static_assert(KvBufferLike<Buffer, Stored>,
                "'Buffer' must be constructible from a number of elements and have a data() that "
                "converts to a pointer to one");

 public:
  /// Takes num_blocks · shape.block_bytes() bytes. `shape` must have the format's bytes of an
  /// element and of a scale. Throws ConfigError for numbers that cannot be.
  /// @param num_outside  of a pool that has more blocks outside; here 0.
  KvPool(const KvShape& shape, std::int32_t num_blocks, std::int32_t num_outside = 0)
      : shape_(checked(shape, num_blocks, num_outside)),
        num_blocks_(num_blocks),
        buffer_(elements(num_blocks)) {}

  /// Keys and values of layer `layer`, 0 ≤ layer < num_layers(). Valid as long as the pool is; the
  /// views of different layers do not overlap.
  [[nodiscard]] KvView<F> layer(std::int64_t layer) {
    return view(buffer_.data(), num_blocks_, layer);
  }

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t num_layers() const { return shape_.num_layers; }
  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(num_blocks_); }
  /// Bytes of the whole pool.
  [[nodiscard]] std::int64_t size_bytes() const { return num_blocks_ * shape_.block_bytes(); }

 private:
  static constexpr std::int64_t kElementBytes = sizeof(Stored);
  static constexpr std::int64_t kScaleBytes = kKvScaleBytes<F>;

  static const KvShape& checked(const KvShape& shape, std::int32_t num_blocks,
                                std::int32_t num_outside) {
    check<ConfigError>(shape.element_bytes == kElementBytes, "KV pool: element_bytes must be ",
                       kElementBytes, ", got ", shape.element_bytes);
    check<ConfigError>(shape.scale_bytes == kScaleBytes, "KV pool: scale_bytes must be ",
                       kScaleBytes, ", got ", shape.scale_bytes);
    check<ConfigError>(shape.block_size * shape.head_dim * kElementBytes %
                               std::max(kScaleBytes, std::int64_t{1}) ==
                           0,
                       "KV pool: ", kv_format_name<F>(),
                       " needs tiles of a multiple of 4 bytes, got ", shape.block_size,
                       " tokens of ", shape.head_dim, " elements");
    check<ConfigError>(shape.block_bytes() > 0 && num_blocks > 0,
                       "KV pool: needs at least one block of at least one byte, got ", num_blocks,
                       " blocks of ", shape.block_bytes(), " bytes");
    check<ConfigError>(num_outside == 0, "KV pool: ", num_outside,
                       " blocks outside of it were asked for; the policy's Tiers has none");
    return shape;
  }

 protected:
  /// Of so many blocks.
  [[nodiscard]] std::size_t elements(std::int64_t num_blocks) const {
    return static_cast<std::size_t>(num_blocks * shape_.block_bytes() / kElementBytes);
  }
  /// Of a layer in `data`, which has all layers of `num_blocks` blocks.
  [[nodiscard]] KvView<F> view(Stored* data, std::int64_t num_blocks, std::int64_t layer) const {
    check(layer >= 0 && layer < shape_.num_layers, "KV pool: layer must be in [0, ",
          shape_.num_layers, "), got ", layer);
    return {{data + layer * num_blocks * shape_.layer_bytes() / kElementBytes, num_blocks,
             shape_.block_size, shape_.num_kv_heads, shape_.head_dim}};
  }

 private:
  KvShape shape_;
  std::int64_t num_blocks_;
  Buffer buffer_;
};

}  // namespace nanovllm
