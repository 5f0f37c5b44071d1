#pragma once
/// `qk_norm_rope_store` on CUDA: RMSNorm of each q and k head, RoPE of both in place, and k and v
/// to the token's slot of the cache. Contract: ops/project_qkv.hpp.
///
/// q [n, heads, head_dim], k and v [n, kv_heads, head_dim] of any strides, head_dim even and at
/// most 512; 16 bytes at a time where addresses and strides are multiples of that and head_dim is
/// 64 or 128. A group of lanes takes one head of one token, pairs (j, j + head_dim / 2) in one
/// lane (`HeadRow`, shared with `rms_norm` and `rope`: the result is theirs, bit for bit). A k head
/// is stored from the registers that it was computed in. Statistics and rotation are float32. Where
/// the cache's format has scales, k and v become what it has kept of them, so that attention may
/// read them from either place.
/// Positions and slots are device memory and are not checked.
/// Bytes moved: n · (2 · heads + 5 · kv_heads) · head_dim · sizeof(T).
/// Measured: elementwise_bench, cuda_elementwise.json, needed: 85% of the rate of a copy, 8,192
/// tokens of 0.6B and of 8B.

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/kv_slots.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/project_qkv.hpp"

namespace nanovllm::cuda {

/// Head `row` of q, k and v in this order, of one token.
template <class T, class Kv>
__device__ __forceinline__ T* find_head(const QkNormRopeStoreArgs<T, Kv>& args, std::uint32_t token,
                                        std::uint32_t row) {
  const auto heads = static_cast<std::uint32_t>(args.q.extent(1));
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  if (row < heads) return args.q.at(token, row);
  if (row < heads + kv_heads) return args.k.at(token, row - heads);
  return args.v.at(token, row - heads - kv_heads);
}

/// A group of lanes for each token and head, of q, k and v in this order.
template <class T, class Kv, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kHeadRowThreads)
    qk_norm_rope_store_kernel(QkNormRopeStoreArgs<T, Kv> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  const auto head_dim = static_cast<int>(args.kv.head_dim);
  const auto heads = static_cast<std::uint32_t>(args.q.extent(1));
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  const auto [token, row] = head_place<Row>(heads + 2 * kv_heads);
  const bool is_q = row < heads, is_v = row >= heads + kv_heads;
  const bool exists = token < args.q.extent(0);
  const T* const norm = is_q ? args.q_norm.data : args.k_norm.data;
  grid_dependency_launch();  // before the wait: attention's early start gains most then
  const auto weight = Row::template load<Load::constant>(norm, head_dim);
  grid_dependency_wait();

  T* head = nullptr;
  Slot slot = kNoSlot;
  std::int32_t position = 0;
  typename Row::Raw raw{};
  if (exists) {
    head = find_head(args, token, row);
    position = args.positions.data[token];
    if (!is_q) slot = args.slots.data[token];
    raw = Row::load(head, head_dim);
  }
  if (!__all_sync(0xffffffffu, is_v || !exists)) {
    const auto angles = Row::load_angles(args.cos_sin.at(position), head_dim);
    Row x(raw, head_dim);
    x.normalise(weight, args.eps);
    x.round();
    x.rotate(angles);
    if (!is_v) raw = x.rounded();
  }
  // There is no slot of q, or of a padded row.
  const bool has_changed = store_kv_row<Row>(args.kv, slot, row - heads, raw);
  if (exists && (!is_v || has_changed)) Row::store(raw, head, head_dim);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or head_dim
/// exceeds 512.
template <Element T, KvFormat Kv>
void qk_norm_rope_store(const QkNormRopeStoreArgs<T, Kv>& args, const Context& context) {
  constexpr auto kOp = "qk_norm_rope_store";
  validate(args);
  if (args.q.extent(0) == 0) return;
  check_num_slots(kOp, args.kv);
  const bool whole = has_whole_rows(args.q) && has_whole_rows(args.k) && has_whole_rows(args.v) &&
                     has_whole_rows(args.q_norm) && has_whole_rows(args.k_norm) &&
                     has_whole_rows(args.cos_sin) && is_vector_aligned(args.kv.data);
  for_head_rows<T>(
      kOp, args.q.extent(0), args.q.extent(1) + 2 * args.kv.num_kv_heads, args.kv.head_dim, whole,
      [&]<int kLanes, bool kWhole>() { return qk_norm_rope_store_kernel<T, Kv, kLanes, kWhole>; },
      context, args);
}

template <Element T, KvFormat Kv, class State>
requires(std::same_as<T, Kv> ||
         ScaledKvFormat<Kv>) void run_op(const QkNormRopeStoreArgs<T, Kv>& args, State& state) {
  qk_norm_rope_store(args, state.context);
}

}  // namespace nanovllm::cuda
