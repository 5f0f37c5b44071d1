#pragma once
/// `kv_store` on CUDA: k[i] and v[i] to slot slots[i] of the paged cache, bit by bit; kNoSlot
/// stores nothing. Contract: ops/kv_store.hpp. Where the cache's format has scales, a group of
/// lanes takes a row, and k and v become what the cache has kept of them.
///
/// k and v [n, kv_heads, head_dim] of any strides; 16 bytes at a time where addresses, strides and
/// head_dim are multiples of that. Slots are device memory and are not checked.
/// Bytes moved: 4 · n · kv_heads · head_dim · sizeof(T).
/// Measured: not at all: GPT-2 alone has this kernel, and was not timed on a GPU.

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/kv_rows.cuh"
#include "nanovllm/cuda/tile/kv_slots.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/kv_store.hpp"

namespace nanovllm::cuda {

/// A thread for each vector; heads run over the keys', then the values'.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    kv_store_kernel(KvStoreArgs<T> args, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  const std::uint32_t token = row / (2 * kv_heads), head = row % (2 * kv_heads);
  const Slot slot = args.slots.data[token];
  if (slot == kNoSlot) return;
  const T* const from =
      head < kv_heads ? args.k.at(token, head, column) : args.v.at(token, head - kv_heads, column);
  T* const to = args.kv.data + slot_offset(args.kv, slot, head) + column;
  store_first<kWhole>(to, count, load_first<kWhole>(from, count));
}

/// A group of lanes for each token and head, the keys', then the values'.
template <class T, class Kv, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    kv_store_scaled_kernel(KvStoreArgs<T, Kv> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  grid_dependency_launch();
  grid_dependency_wait();
  const auto head_dim = static_cast<int>(args.kv.head_dim);
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  const std::uint32_t item = (blockIdx.x * kElementwiseThreads + threadIdx.x) / Row::kGroup;
  const std::uint32_t token = item / (2 * kv_heads), head = item % (2 * kv_heads);
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
    detail::check_head_dim(kOp, args.kv.head_dim);
    with_head_lanes<T>(args.kv.head_dim, whole, [&]<int kLanes, bool kWhole>() {
      const unsigned blocks = detail::head_blocks(
          kOp, args.k.extent(0), rows, HeadRow<T, kLanes, kWhole>::kGroup, kElementwiseThreads);
      launch(kv_store_scaled_kernel<T, Kv, kLanes, kWhole>,
             {.grid = blocks, .block = kElementwiseThreads}, context, args);
    });
  } else {
    const auto vectors = RowVectors::of<T>(kOp, args.k.extent(0) * rows, args.kv.head_dim);
    launch(whole ? kv_store_kernel<T, true> : kv_store_kernel<T, false>, elementwise_grid(vectors),
           context, args, vectors);
  }
}

template <Element T, KvFormat Kv, class State>
requires(std::same_as<T, Kv> || ScaledKvFormat<Kv>) void run_op(const KvStoreArgs<T, Kv>& args,
                                                                State& state) {
  kv_store(args, state.context);
}

}  // namespace nanovllm::cuda
