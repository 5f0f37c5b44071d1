#pragma once
/// Contract of `kv_store`: write new keys and values into the paged cache.

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// Copies k[i] and v[i] to slot slots[i] = block · block_size + offset. `kNoSlot` marks a padded
/// row: nothing is written. Slots of one call are distinct. Where the cache is of another element
/// type, each value is rounded to it. Where it is of another format, `Kv::store` makes the row, by
/// `kv.fixed_scale` if the format gets its scales, and a backend may leave in k[i] and v[i] what
/// `Kv::load` reads of it, rounded to T.
template <class T, class Kv = T>
struct KvStoreArgs {
  TensorView<T, 3> k;            ///< [n, kv_heads, head_dim]
  TensorView<T, 3> v;            ///< [n, kv_heads, head_dim]
  VectorView<const Slot> slots;  ///< [n]
  KvView<Kv> kv;
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Kv>
void validate(const KvStoreArgs<T, Kv>& args) {
  check_shape("kv_store", "k", args.k, {-1, args.kv.num_kv_heads, args.kv.head_dim});
  check_shape("kv_store", "v", args.v, args.k.extents);
  check_shape("kv_store", "slots", args.slots, {args.k.extent(0)});
}

}  // namespace nanovllm
