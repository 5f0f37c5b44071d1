#pragma once
/// `swap_blocks` on the CPU: both pools are in the same memory. Contract:
/// with/tiers/swap_blocks.hpp.

#include <algorithm>
#include <cstdint>

#include "nanovllm/cpu/context.hpp"
#include "nanovllm/with/tiers/swap_blocks.hpp"

namespace nanovllm::cpu {

namespace detail {

/// Copies blocks of one pool to another, in all layers.
template <KvFormat Kv>
void swap_one_way(const KvView<Kv>& from, std::int64_t from_stride, const KvView<Kv>& to,
                  std::int64_t to_stride, std::int64_t num_layers,
                  VectorView<const BlockCopy> copies, const Context& context) {
  const std::int64_t n = copies.extent(0), size = from.block_stride();
  context.pool->parallel_for(n * num_layers, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const BlockCopy copy = copies.data[i % n];
      const std::int64_t layer = i / n;
      std::copy_n(from.data + layer * from_stride + copy.from * size, size,
                  to.data + layer * to_stride + copy.to * size);
    }
  });
}

}  // namespace detail

/// See `SwapBlocksArgs`. Throws ShapeError when the operands do not fit together.
template <KvFormat Kv>
void swap_blocks(const SwapBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  detail::swap_one_way(args.device, args.device_stride, args.host, args.host_stride,
                       args.num_layers, args.down, context);
  detail::swap_one_way(args.host, args.host_stride, args.device, args.device_stride,
                       args.num_layers, args.up, context);
}

template <KvFormat Kv>
void run_op(const SwapBlocksArgs<Kv>& args, Context& context) {
  swap_blocks(args, context);
}

}  // namespace nanovllm::cpu
