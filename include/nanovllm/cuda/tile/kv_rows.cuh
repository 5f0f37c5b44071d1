#pragma once
/// How a group of lanes stores a key or a value in a cache of any format.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/kv_slots.cuh"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm::cuda {

/// Stores `raw`, a row of a key or value, unless `slot` is `kNoSlot`. In a format with scales `raw`
/// becomes what attention reads of it, rounded to T, and the result is true. All lanes of the warp
/// take part.
template <class Row, KvFormat F>
__device__ __forceinline__ bool store_kv_row(const KvView<F>& kv, Slot slot, std::uint32_t head,
                                             typename Row::Raw& raw) {
  const auto head_dim = static_cast<int>(kv.head_dim);
  if constexpr (ScaledKvFormat<F>) {
    Row row(raw, head_dim);
    float scale;
    if constexpr (FixedScaleKvFormat<F>) {
      scale = kv.fixed_scale(head);
    } else {
      scale = F::scale_of(__uint_as_float(row.largest()));
    }
    if (slot == kNoSlot) return false;
    row.template quantise<F>(scale, kv.data + slot_offset(kv, slot, head));
    if (threadIdx.x % Row::kGroup == 0) *slot_scale(kv, slot, head) = scale;
    raw = row.rounded();
    return true;
  } else {
    if (slot != kNoSlot) Row::store(raw, kv.data + slot_offset(kv, slot, head), head_dim);
    return false;
  }
}

}  // namespace nanovllm::cuda
