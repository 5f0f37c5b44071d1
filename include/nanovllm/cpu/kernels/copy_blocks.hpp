#pragma once
/// `copy_blocks` on the CPU. Contract: ops/copy_blocks.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/copy_blocks.hpp"

namespace nanovllm::cpu {

/// Also throws ShapeError for copies that the contract rules out.
template <KvFormat Kv>
void copy_blocks(const CopyBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  const std::int64_t n = args.copies.extent(0);
  check_block_copies({args.copies.data, static_cast<std::size_t>(n)}, args.first_layer.num_blocks);
  const std::int64_t size = args.first_layer.block_stride();
  context.pool->parallel_for(
      n * args.num_layers, 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const BlockCopy copy = args.copies.data[i % n];
          auto* const layer = args.first_layer.data + i / n * args.layer_stride;
          std::copy_n(layer + copy.from * size, size, layer + copy.to * size);
        }
      });
}

template <KvFormat Kv>
void run_op(const CopyBlocksArgs<Kv>& args, Context& context) {
  copy_blocks(args, context);
}

}  // namespace nanovllm::cpu
