#pragma once
/// `swap_blocks` on the CPU: both pools are in the same memory. Contract: ops/swap_blocks.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/swap_blocks.hpp"

namespace nanovllm::cpu {

/// Also throws ShapeError for copies that the contract rules out.
template <Element Kv>
void swap_blocks(const SwapBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.copies.extent(0);
  check_swap_blocks({args.copies.data, static_cast<std::size_t>(n)}, args.from().num_blocks,
                    args.to().num_blocks);
  const std::int64_t size = args.device.block_stride();
  context.pool->parallel_for(
      n * args.num_layers, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const BlockCopy copy = args.copies.data[i % n];
          const std::int64_t layer = i / n;
          std::copy_n(args.from().data + layer * args.from_stride() + copy.from * size, size,
                      args.to().data + layer * args.to_stride() + copy.to * size);
        }
      });
}

template <Element Kv>
void run_op(const SwapBlocksArgs<Kv>& args, Context& context) {
  swap_blocks(args, context);
}

}  // namespace nanovllm::cpu
