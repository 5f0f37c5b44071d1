#pragma once
/// `rope` on CUDA: rotary position embedding in place, half-split pairing. Contract: ops/rope.hpp.
///
///   x[i, h, j]       = x1 · cos[p, j] - x2 · sin[p, j]
///   x[i, h, j + d/2] = x2 · cos[p, j] + x1 · sin[p, j],   p = positions[i]
///
/// x [n, heads, head_dim ≤ 512] of any strides, cos_sin float32; 16 bytes at a time where addresses
/// and strides are multiples of that and head_dim is 64 or 128. Positions are device memory
/// and are not checked. float32 arithmetic: one product, one fused multiply-add, one rounding.
/// Bytes moved: 2 · n · heads · head_dim · sizeof(T); the table is read through the caches.
/// Source: Su et al., "RoFormer", 2021.
/// Measured: not at all: no model of the library calls it; they rotate in qk_norm_rope_store.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/rope.hpp"

namespace nanovllm::cuda {

struct RopeTraits {
  static constexpr int kThreads = 128;
};

/// A group of lanes for each (token, head).
template <class T, int kLanes, bool kWhole>
__global__ void __launch_bounds__(RopeTraits::kThreads) rope_kernel(RopeArgs<T> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  grid_dependency_launch();
  grid_dependency_wait();
  const auto heads = static_cast<std::uint32_t>(args.x.extent(1));
  const std::uint32_t item = (blockIdx.x * RopeTraits::kThreads + threadIdx.x) / Row::kGroup;
  const std::uint32_t token = item / heads, head = item % heads;
  if (token >= args.x.extent(0)) return;
  const auto head_dim = static_cast<int>(args.x.extent(2));
  T* const x = args.x.at(token, head);
  const std::int32_t position = args.positions.data[token];
  Row row(Row::load(x, head_dim), head_dim);
  row.rotate(Row::load_angles(args.cos_sin.at(position), head_dim));
  Row::store(row.rounded(), x, head_dim);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or head_dim
/// exceeds 512.
template <Element T>
void rope(const RopeArgs<T>& args, const Context& context) {
  validate(args);
  detail::check_head_dim("rope", args.x.extent(2));
  if (args.x.empty()) return;
  const bool whole = has_whole_rows(args.x) && has_whole_rows(args.cos_sin);
  with_head_lanes<T>(args.x.extent(2), whole, [&]<int kLanes, bool kWhole>() {
    const unsigned blocks =
        detail::head_blocks("rope", args.x.extent(0), args.x.extent(1),
                            HeadRow<T, kLanes, kWhole>::kGroup, RopeTraits::kThreads);
    launch(rope_kernel<T, kLanes, kWhole>, {.grid = blocks, .block = RopeTraits::kThreads}, context,
           args);
  });
}

template <Element T, class State>
void run_op(const RopeArgs<T>& args, State& state) {
  rope(args, state.context);
}

}  // namespace nanovllm::cuda
