#pragma once
/// The memory of a KV pool, and of the pool in host memory that its blocks are copied to.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/kv/kv_config.hpp"
#include "nanovllm/kv/kv_pool.hpp"
#include "nanovllm/ops/kv_format.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

namespace detail {

template <class Backend, class T>
struct HostBufferOf {
  using type = typename Backend::template Buffer<T>;
};
template <class Backend, class T>
requires requires { typename Backend::template HostBuffer<T>; }
struct HostBufferOf<Backend, T> {
  using type = typename Backend::template HostBuffer<T>;
};

}  // namespace detail

/// The backend's `HostBuffer` where it has one; else its memory is the host's.
template <class Backend, class T>
using HostBufferOf = typename detail::HostBufferOf<Backend, T>::type;

/// A KvPool, and blocks in host memory in the same layout.
///
/// @tparam HostBuffer  where these are: page-locked, if there is a device.
template <KvFormat F, class Buffer, class HostBuffer = Buffer>
class HostKvPool : public KvPool<F, Buffer> {
  using Base = KvPool<F, Buffer>;
  using typename Base::Stored;
  static_assert(KvBufferLike<HostBuffer, Stored>,
                "'HostBuffer' must be constructible from a number of elements and have a data() "
                "that converts to a pointer to one");

 public:
  /// As KvPool, and takes num_host_blocks · shape.block_bytes() bytes of the host's memory.
  HostKvPool(const KvShape& shape, std::int32_t num_blocks, std::int32_t num_host_blocks = 0)
      : Base(shape, num_blocks),
        num_host_blocks_(checked(num_host_blocks)),
        host_buffer_(this->elements(num_host_blocks)) {}

  /// As `layer`, of the blocks in host memory.
  [[nodiscard]] KvView<F> host_layer(std::int64_t layer) {
    return this->view(host_buffer_.data(), num_host_blocks_, layer);
  }
  [[nodiscard]] std::int32_t num_host_blocks() const { return num_host_blocks_; }

  /// Appends the bytes of the host's `block`, layer by layer. Returns false if there is none.
  [[nodiscard]] bool append_outside(BlockId block, std::vector<std::span<std::byte>>& to) {
    if (block < 0 || block >= num_host_blocks_) return false;
    const std::size_t count =
        static_cast<std::size_t>(this->shape().layer_bytes()) / sizeof(Stored);
    for (std::int64_t layer = 0; layer < this->num_layers(); ++layer)
      to.push_back(std::as_writable_bytes(std::span(host_layer(layer).k(block, 0), count)));
    return true;
  }

 private:
  static std::int32_t checked(std::int32_t num_host_blocks) {
    check<ConfigError>(num_host_blocks >= 0,
                       "KV pool: the number of blocks in host memory must be >= 0, got ",
                       num_host_blocks);
    return num_host_blocks;
  }

  std::int32_t num_host_blocks_;
  HostBuffer host_buffer_;
};

/// The pools of ranks with blocks in host memory.
struct HostPools {
  template <KvFormat F, class Backend>
  using Pool = HostKvPool<F, typename Backend::template Buffer<KvStored<F>>,
                          HostBufferOf<Backend, KvStored<F>>>;
};

}  // namespace nanovllm
