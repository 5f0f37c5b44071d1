#pragma once
/// `qk_norm_rope_store` on CUDA: RMSNorm of each q and k head, RoPE of both in place, and k and v
/// to the token's slot of the cache. Contract: ops/qk_norm_rope_store.hpp.
///
/// q [n, heads, head_dim], k and v [n, kv_heads, head_dim] of any strides, head_dim even and at
/// most 512; 16 bytes at a time where addresses and strides are multiples of that and head_dim is
/// 64 or 128. A group of lanes takes one head of one token, pairs (j, j + head_dim / 2) in one
/// lane (`HeadRow`, shared with `rms_norm` and `rope`: the result is theirs, bit for bit). A k head
/// is stored from the registers that it was computed in. Statistics and rotation are float32.
/// Positions and slots are device memory and are not checked.
/// Bytes moved: n · (2 · heads + 5 · kv_heads) · head_dim · sizeof(T).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/head_row.cuh"
#include "nanovllm/cuda/kv_store.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/rope.cuh"
#include "nanovllm/cuda/row_vectors.cuh"
#include "nanovllm/cuda/vec.cuh"
#include "nanovllm/ops/qk_norm_rope_store.hpp"

namespace nanovllm::cuda {

struct QkNormRopeStoreTraits {
  static constexpr int kThreads = 128;
};

/// A group of lanes for each token and head, of q, k and v in this order.
template <class T, int kLanes, bool kWhole>
__global__ void __launch_bounds__(QkNormRopeStoreTraits::kThreads)
    qk_norm_rope_store_kernel(QkNormRopeStoreArgs<T> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  const auto head_dim = static_cast<int>(args.kv.head_dim);
  const auto heads = static_cast<std::uint32_t>(args.q.extent(1));
  const auto kv_heads = static_cast<std::uint32_t>(args.kv.num_kv_heads);
  const std::uint32_t item =
      (blockIdx.x * QkNormRopeStoreTraits::kThreads + threadIdx.x) / Row::kGroup;
  const std::uint32_t token = item / (heads + 2 * kv_heads), row = item % (heads + 2 * kv_heads);
  const bool is_q = row < heads, is_v = row >= heads + kv_heads;
  const bool exists = token < args.q.extent(0);
  Row weight(head_dim);
  weight.template load<Load::constant>(is_q ? args.q_norm.data : args.k_norm.data);
  grid_dependency_wait();
  grid_dependency_launch();

  Row x(head_dim);
  HeadAngles<Row::kCount> angles{};
  Slot slot = kNoSlot;
  T* head = nullptr;
  if (exists) {
    const std::int32_t position = args.positions.data[token];
    if (!is_q) slot = args.slots.data[token];
    if (is_v) {
      const T* const value = args.v.at(token, row - heads - kv_heads);
      T* const to = args.kv.data + slot_offset(args.kv, slot, row - heads);
      if (slot != kNoSlot) Row::copy(value, to, head_dim);
    } else {
      head = is_q ? args.q.at(token, row) : args.k.at(token, row - heads);
      x.load(head);
      angles = x.load_angles(args.cos_sin.at(position));
    }
  }
  x.normalise(weight, args.eps);  // all lanes of the warp, values' too
  if (!exists || is_v) return;
  x.round();
  x.rotate(angles);
  x.store(head);
  if (slot == kNoSlot) return;  // of q, or a padded row
  x.store(args.kv.data + slot_offset(args.kv, slot, row - heads));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or head_dim
/// exceeds 512.
template <Element T>
void qk_norm_rope_store(const QkNormRopeStoreArgs<T>& args, const Context& context) {
  constexpr auto kOp = "qk_norm_rope_store";
  validate(args);
  detail::check_head_dim(kOp, args.kv.head_dim);
  if (args.q.extent(0) == 0 || args.kv.head_dim == 0) return;
  check_num_slots(kOp, args.kv);
  const bool whole = has_whole_rows(args.q) && has_whole_rows(args.k) && has_whole_rows(args.v) &&
                     has_whole_rows(args.q_norm) && has_whole_rows(args.k_norm) &&
                     has_whole_rows(args.cos_sin) && is_vector_aligned(args.kv.data);
  const std::int64_t rows = args.q.extent(1) + 2 * args.kv.num_kv_heads;
  with_head_lanes<T>(args.kv.head_dim, whole, [&]<int kLanes, bool kWhole>() {
    const unsigned blocks =
        detail::head_blocks(kOp, args.q.extent(0), rows, HeadRow<T, kLanes, kWhole>::kGroup,
                            QkNormRopeStoreTraits::kThreads);
    launch(qk_norm_rope_store_kernel<T, kLanes, kWhole>,
           {.grid = blocks, .block = QkNormRopeStoreTraits::kThreads}, context, args);
  });
}

}  // namespace nanovllm::cuda
