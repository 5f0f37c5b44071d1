#pragma once
/// `copy_blocks` and `swap_blocks` on CUDA: whole blocks of the paged cache, byte by byte, within
/// the device's pool, or between it and page-locked host memory, which the kernel reads and writes
/// over the bus. Contracts: ops/copy_blocks.hpp, ops/swap_blocks.hpp.
///
/// Grid: (pieces of a block, layers, copies). 16 bytes a thread at a time where a block's elements
/// are a multiple of that, else one element. The copies are device memory and are not checked.
/// Bytes moved: 2 · copies · layers · bytes of a block in a layer.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/swap_blocks.hpp"

namespace nanovllm::cuda {

inline constexpr int kCopyBlocksThreads = 256;

/// Where the blocks are, in units of `Unit`. `from` and `to` may be the same pool.
template <class Unit>
struct CopyBlocksProblem {
  const Unit* from;
  std::int64_t from_stride;  ///< from a layer to the next
  Unit* to;
  std::int64_t to_stride;
  std::int64_t block_stride;
  std::int64_t num_copies;
  const BlockCopy* copies;
};

template <class Unit>
__global__ void __launch_bounds__(kCopyBlocksThreads)
    copy_blocks_kernel(const CopyBlocksProblem<Unit> problem) {
  grid_dependency_wait();
  const Unit* const from_layer = problem.from + blockIdx.y * problem.from_stride;
  Unit* const to_layer = problem.to + blockIdx.y * problem.to_stride;
  const std::int64_t step = std::int64_t{gridDim.x} * kCopyBlocksThreads;
  for (std::int64_t c = blockIdx.z; c < problem.num_copies; c += gridDim.z) {
    const BlockCopy copy = problem.copies[c];
    const Unit* const from = from_layer + copy.from * problem.block_stride;
    Unit* const to = to_layer + copy.to * problem.block_stride;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kCopyBlocksThreads + threadIdx.x;
         i < problem.block_stride; i += step) {
      to[i] = from[i];
    }
  }
}

namespace detail {

/// A pool: layer 0, and elements from a layer to the next.
template <class Kv>
struct CopyBlocksPool {
  KvView<Kv> first_layer;
  std::int64_t layer_stride;

  /// Whether its blocks are whole numbers of `Unit`s, and aligned as these are.
  template <class Unit>
  [[nodiscard]] bool has_whole() const {
    constexpr auto kElements = static_cast<std::int64_t>(sizeof(Unit) / sizeof(Kv));
    return reinterpret_cast<std::uintptr_t>(first_layer.data) % sizeof(Unit) == 0 &&
           layer_stride % kElements == 0 && first_layer.block_stride() % kElements == 0;
  }
};

template <class Unit, class Kv>
void copy_blocks_by(const CopyBlocksPool<Kv>& from, const CopyBlocksPool<Kv>& to,
                    std::int64_t num_layers, VectorView<const BlockCopy> copies,
                    const Context& context) {
  constexpr auto kElements = static_cast<std::int64_t>(sizeof(Unit) / sizeof(Kv));
  const CopyBlocksProblem<Unit> problem{
      .from = reinterpret_cast<const Unit*>(from.first_layer.data),
      .from_stride = from.layer_stride / kElements,
      .to = reinterpret_cast<Unit*>(to.first_layer.data),
      .to_stride = to.layer_stride / kElements,
      .block_stride = from.first_layer.block_stride() / kElements,
      .num_copies = copies.extent(0),
      .copies = copies.data};
  // Four units a thread: enough blocks for all SMs without a wave of tiny ones.
  const std::int64_t pieces = ceil_div(problem.block_stride, 4 * kCopyBlocksThreads);
  launch(copy_blocks_kernel<Unit>,
         {.grid = {static_cast<unsigned>(std::min<std::int64_t>(pieces, 1 << 16)),
                   static_cast<unsigned>(num_layers),
                   static_cast<unsigned>(std::min<std::int64_t>(problem.num_copies, 65535))},
          .block = kCopyBlocksThreads},
         context, problem);
}

template <class Kv>
void copy_blocks(const char* op, const CopyBlocksPool<Kv>& from, const CopyBlocksPool<Kv>& to,
                 std::int64_t num_layers, VectorView<const BlockCopy> copies,
                 const Context& context) {
  if (copies.empty() || num_layers == 0 || from.first_layer.block_stride() == 0) return;
  nanovllm::check<ShapeError>(num_layers <= 65535, op, ": at most 65535 layers, got ", num_layers);
  if (from.template has_whole<uint4>() && to.template has_whole<uint4>()) {
    copy_blocks_by<uint4>(from, to, num_layers, copies, context);
  } else {
    copy_blocks_by<Kv>(from, to, num_layers, copies, context);
  }
}

}  // namespace detail

/// See `CopyBlocksArgs`. Asynchronous. Throws ShapeError when the operands do not fit together.
template <Element Kv>
void copy_blocks(const CopyBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  const detail::CopyBlocksPool<Kv> pool{args.first_layer, args.layer_stride};
  detail::copy_blocks("copy_blocks", pool, pool, args.num_layers, args.copies, context);
}

/// See `SwapBlocksArgs`. Asynchronous. Throws ShapeError when the operands do not fit together.
template <Element Kv>
void swap_blocks(const SwapBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  const detail::CopyBlocksPool<Kv> from{args.from(), args.from_stride()};
  const detail::CopyBlocksPool<Kv> to{args.to(), args.to_stride()};
  detail::copy_blocks("swap_blocks", from, to, args.num_layers, args.copies, context);
}

template <Element Kv, class State>
void run_op(const CopyBlocksArgs<Kv>& args, State& state) {
  copy_blocks(args, state.context);
}

template <Element Kv, class State>
void run_op(const SwapBlocksArgs<Kv>& args, State& state) {
  swap_blocks(args, state.context);
}

}  // namespace nanovllm::cuda
