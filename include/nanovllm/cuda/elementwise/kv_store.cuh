#pragma once
/// What writes the paged cache on CUDA. Contracts: ops/kv_store.hpp and ops/copy_blocks.hpp.
///
/// `kv_store`: k[i] and v[i] to slot slots[i], bit by bit; kNoSlot stores nothing. Where the
/// cache's format has scales, a group of lanes takes a row, and k and v become what the cache has
/// kept of them. k and v [n, kv_heads, head_dim] of any strides; 16 bytes at a time where
/// addresses, strides and head_dim are multiples of that. Slots are device memory and are not
/// checked.
/// Bytes moved: 4 · n · kv_heads · head_dim · sizeof(T).
///
/// `copy_blocks`: whole blocks, byte by byte, within the device's pool. Grid: (pieces of a block,
/// layers, copies). 16 bytes a thread at a time where a block's elements are a multiple of that,
/// else one element. The copies are device memory and are not checked.
/// Bytes moved: 2 · copies · layers · bytes of a block in a layer.
/// Measured: not by itself; 1.4 ms for the step in which seven samples copy a block each
/// (prefix_cache, cuda_kv_samples.json). `kv_store` not at all: GPT-2 alone has this kernel, and
/// was not timed on a GPU.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/kv_slots.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/copy_blocks.hpp"
#include "nanovllm/ops/kv_store.hpp"

namespace nanovllm::cuda {

/// Heads run over the keys', then the values'.
template <class T>
struct KvStoreRows {
  KvStoreArgs<T> args;

  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
    const std::uint32_t token = at.row / (2 * kv_heads), head = at.row % (2 * kv_heads);
    const Slot slot = args.slots.data[token];
    if (slot == kNoSlot) return;
    const T* const from = head < kv_heads ? args.k.at(token, head, at.column)
                                          : args.v.at(token, head - kv_heads, at.column);
    T* const to = args.kv.data + slot_offset(args.kv, slot, head) + at.column;
    store_first<kWhole>(to, at.count, load_first<kWhole>(from, at.count));
  }
};

/// A group of lanes for each token and head, the keys', then the values'.
template <class T, class Kv, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kHeadRowThreads)
    kv_store_scaled_kernel(const KvStoreArgs<T, Kv> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  grid_dependency_launch();
  grid_dependency_wait();
  const auto head_dim = static_cast<int>(args.kv.head_dim);
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  const auto [token, head] = head_place<Row>(2 * kv_heads);
  T* row = nullptr;
  Slot slot = kNoSlot;
  typename Row::Raw raw{};
  if (token < args.k.extent(0)) {
    row = head < kv_heads ? args.k.at(token, head) : args.v.at(token, head - kv_heads);
    slot = args.slots.data[token];
    raw = Row::load(row, head_dim);
  }
  if (store_kv_row<Row>(args.kv, slot, head, raw)) Row::store(raw, row, head_dim);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T, KvFormat Kv>
void kv_store(const KvStoreArgs<T, Kv>& args, const Context& context) {
  constexpr auto kOp = "kv_store";
  validate(args);
  if (args.k.empty()) return;
  check_num_slots(kOp, args.kv);
  const std::int64_t rows = 2 * args.kv.num_kv_heads;
  const bool whole =
      has_whole_rows(args.k) && has_whole_rows(args.v) && is_vector_aligned(args.kv.data);
  if constexpr (ScaledKvFormat<Kv>) {
    for_head_rows<T>(
        kOp, args.k.extent(0), rows, args.kv.head_dim, whole,
        [&]<int kLanes, bool kWhole>() { return kv_store_scaled_kernel<T, Kv, kLanes, kWhole>; },
        context, args);
  } else {
    for_each_vector<T>(kOp, args.k.extent(0) * rows, args.kv.head_dim, whole, KvStoreRows<T>{args},
                       context);
  }
}

template <Element T, KvFormat Kv, class State>
requires(std::same_as<T, Kv> || ScaledKvFormat<Kv>) void run_op(const KvStoreArgs<T, Kv>& args,
                                                                State& state) {
  kv_store(args, state.context);
}

inline constexpr int kCopyBlocksThreads = 256;

/// Where the blocks are, in units of `Unit`.
template <class Unit>
struct CopyBlocksProblem {
  Unit* pool;
  std::int64_t layer_stride;
  std::int64_t block_stride;
  std::int64_t num_copies;
  const BlockCopy* copies;
};

template <class Unit>
__global__ void __launch_bounds__(kCopyBlocksThreads)
    copy_blocks_kernel(const CopyBlocksProblem<Unit> problem) {
  grid_dependency_launch();
  grid_dependency_wait();
  Unit* const layer = problem.pool + blockIdx.y * problem.layer_stride;
  const std::int64_t step = std::int64_t{gridDim.x} * kCopyBlocksThreads;
  for (std::int64_t c = blockIdx.z; c < problem.num_copies; c += gridDim.z) {
    const BlockCopy copy = problem.copies[c];
    const Unit* const from = layer + copy.from * problem.block_stride;
    Unit* const to = layer + copy.to * problem.block_stride;
    for (std::int64_t i = std::int64_t{blockIdx.x} * kCopyBlocksThreads + threadIdx.x;
         i < problem.block_stride; i += step) {
      to[i] = from[i];
    }
  }
}

namespace detail {

template <class Unit, class Kv>
void copy_blocks_by(const CopyBlocksArgs<Kv>& args, const Context& context) {
  constexpr auto kElements = static_cast<std::int64_t>(sizeof(Unit) / sizeof(KvStored<Kv>));
  const CopyBlocksProblem<Unit> problem{.pool = reinterpret_cast<Unit*>(args.first_layer.data),
                                        .layer_stride = args.layer_stride / kElements,
                                        .block_stride = args.first_layer.block_stride() / kElements,
                                        .num_copies = args.copies.extent(0),
                                        .copies = args.copies.data};
  // Four units a thread: enough blocks for all SMs without a wave of tiny ones.
  const std::int64_t pieces = ceil_div(problem.block_stride, 4 * kCopyBlocksThreads);
  launch(copy_blocks_kernel<Unit>,
         {.grid = {static_cast<unsigned>(std::min<std::int64_t>(pieces, 1 << 16)),
                   static_cast<unsigned>(args.num_layers),
                   static_cast<unsigned>(std::min<std::int64_t>(problem.num_copies, 65535))},
          .block = kCopyBlocksThreads},
         context, problem);
}

/// Whether blocks are whole numbers of `Unit`s, and aligned as these are.
template <class Unit, class Kv>
[[nodiscard]] bool has_whole(const CopyBlocksArgs<Kv>& args) {
  constexpr auto kElements = static_cast<std::int64_t>(sizeof(Unit) / sizeof(KvStored<Kv>));
  return reinterpret_cast<std::uintptr_t>(args.first_layer.data) % sizeof(Unit) == 0 &&
         args.layer_stride % kElements == 0 && args.first_layer.block_stride() % kElements == 0;
}

}  // namespace detail

/// See `CopyBlocksArgs`. Asynchronous. Throws ShapeError when the operands do not fit together.
template <KvFormat Kv>
void copy_blocks(const CopyBlocksArgs<Kv>& args, const Context& context) {
  validate(args);
  if (args.copies.empty() || args.num_layers == 0 || args.first_layer.block_stride() == 0) return;
  check<ShapeError>(args.num_layers <= 65535, "copy_blocks: at most 65535 layers, got ",
                    args.num_layers);
  if (detail::has_whole<uint4>(args)) {
    detail::copy_blocks_by<uint4>(args, context);
  } else {
    detail::copy_blocks_by<KvStored<Kv>>(args, context);
  }
}

template <KvFormat Kv, class State>
void run_op(const CopyBlocksArgs<Kv>& args, State& state) {
  copy_blocks(args, state.context);
  state.plan_start.copied();
}

}  // namespace nanovllm::cuda
