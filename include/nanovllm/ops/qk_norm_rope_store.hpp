#pragma once
/// Contract of `qk_norm_rope_store`: everything between the qkv projection and attention, fused.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"

namespace nanovllm {

/// For every token: RMSNorm over head_dim of each q and k head (`rms_norm`), rotation of both by
/// the token's position (`rope`), and k and v to the token's slot (`kv_store`). q and k are updated
/// in place, and v where `kv_store` does. Bit for bit equal to the three ops in sequence. T is the
/// activations' element, Kv the cache's format, W the weights' element.
template <class T, class Kv = T, class W = T>
struct QkNormRopeStoreArgs {
  TensorView<T, 3> q;          ///< [n, heads, head_dim]
  TensorView<T, 3> k;          ///< [n, kv_heads, head_dim]
  TensorView<T, 3> v;          ///< [n, kv_heads, head_dim]
  VectorView<const W> q_norm;  ///< [head_dim]
  VectorView<const W> k_norm;  ///< [head_dim]
  float eps = 1e-6f;
  VectorView<const std::int32_t> positions;  ///< [n]
  MatrixView<const float> cos_sin;           ///< [max positions, head_dim]: cosines, then sines
  VectorView<const Slot> slots;              ///< [n]; kNoSlot stores nothing
  KvView<Kv> kv;
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Kv, class W>
void validate(const QkNormRopeStoreArgs<T, Kv, W>& args) {
  constexpr auto kOp = "qk_norm_rope_store";
  const std::int64_t n = args.q.extent(0), head_dim = args.kv.head_dim;
  check<ShapeError>(head_dim % 2 == 0, kOp, ": head_dim must be even, got ", head_dim);
  check_shape(kOp, "q", args.q, {-1, -1, head_dim});
  check_shape(kOp, "k", args.k, {n, args.kv.num_kv_heads, head_dim});
  check_shape(kOp, "v", args.v, {n, args.kv.num_kv_heads, head_dim});
  check_shape(kOp, "q_norm", args.q_norm, {head_dim});
  check_shape(kOp, "k_norm", args.k_norm, {head_dim});
  check_shape(kOp, "positions", args.positions, {n});
  check_shape(kOp, "cos_sin", args.cos_sin, {-1, head_dim});
  check_shape(kOp, "slots", args.slots, {n});
}

}  // namespace nanovllm
