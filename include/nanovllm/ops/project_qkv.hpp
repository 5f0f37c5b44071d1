#pragma once
/// Contracts of `project_qkv`, everything between the residual stream and attention, and of
/// `qk_norm_rope_store`, the part of it after the projection.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/kv_view.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/rms_norm.hpp"

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

/// Views of q, k and v of a step, rows of one matrix.
template <class T>
struct Qkv {
  TensorView<T, 3> q;  ///< [n, heads, head_dim]
  TensorView<T, 3> k;  ///< [n, kv_heads, head_dim]
  TensorView<T, 3> v;  ///< like k
};

/// The heads of `rows`, [n, (heads + 2 · kv_heads) · head_dim]: those of q, of k, of v.
template <class T>
[[nodiscard]] Qkv<T> split_qkv(MatrixView<T> rows, std::int64_t num_heads,
                               std::int64_t num_kv_heads, std::int64_t head_dim) {
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return TensorView<T, 3>(rows.data + first * head_dim, {rows.extent(0), count, head_dim},
                            {rows.strides[0], head_dim, 1});
  };
  return {part(0, num_heads), part(num_heads, num_kv_heads),
          part(num_heads + num_kv_heads, num_kv_heads)};
}

/// Of a projection to q, k and v; the rows of its weight that are not k's and v's are q's.
struct KvHeads {
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// What is done to q, k and v ahead of attention (`QkNormRopeStoreArgs`).
template <class W>
struct QkNormRope {
  VectorView<const W> q_norm;  ///< [head_dim]
  VectorView<const W> k_norm;  ///< [head_dim]
  float eps = 1e-6f;
  VectorView<const std::int32_t> positions;  ///< [n]
  MatrixView<const float> cos_sin;           ///< [max positions, head_dim]: cosines, then sines
  VectorView<const Slot> slots;              ///< [n]; kNoSlot stores nothing

  /// Of rows [begin, end) alone.
  [[nodiscard]] QkNormRope rows(std::int64_t begin, std::int64_t end) const {
    QkNormRope out = *this;
    out.positions = positions.slice(begin, end);
    out.slots = slots.slice(begin, end);
    return out;
  }
};

/// qkv = n(x) · Wᵀ; then, of its heads, RMSNorm and rotation of q and k, and k and v to the tokens'
/// slots of the cache: `rms_norm`, then `linear`, then `qk_norm_rope_store`. The backend decides
/// whether values between them are rounded after each op, as the three ops do, or not at all.
///
/// T is the activations' element, `Matrix` the backend's weight type, Kv the cache's element, W the
/// norms'.
template <class T, class Matrix, class Kv = T, class W = T>
struct ProjectQkvArgs {
  MatrixView<const T> x;           ///< [n, in]
  InputNorm<W> norm{};             ///< of x
  const Matrix* weight = nullptr;  ///< [(heads + 2 · kv_heads) · head_dim, in]: q, k, v
  QkNormRope<W> heads;
  KvView<Kv> kv;         ///< its kv_heads and head_dim are those of k and v
  MatrixView<T> qkv;     ///< [n, rows of W], out
  MatrixView<T> normed;  ///< [n, in], scratch if there is a norm; may not be x

  [[nodiscard]] std::int64_t num_heads() const {
    return qkv.extent(1) / kv.head_dim - 2 * kv.num_kv_heads;
  }
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Matrix, class Kv, class W>
void validate(const ProjectQkvArgs<T, Matrix, Kv, W>& args) {
  constexpr auto kOp = "project_qkv";
  const std::int64_t n = args.x.extent(0), in = args.weight->cols(), d = args.kv.head_dim;
  check_shape(kOp, "x", args.x, {-1, in});
  check_input_norm(kOp, args.norm, in);
  if (args.norm) check_shape(kOp, "normed", args.normed, {n, in});
  check_shape(kOp, "qkv", args.qkv, {n, args.weight->rows()});
  check<ShapeError>(d > 0 && d % 2 == 0, kOp, ": head_dim must be even and not 0, got ", d);
  check<ShapeError>(args.weight->rows() % d == 0 && args.num_heads() >= 0, kOp,
                    ": 'weight' must have rows for heads of ", d, " and for k and v of ",
                    args.kv.num_kv_heads, " heads, got ", args.weight->rows());
  check_shape(kOp, "q_norm", args.heads.q_norm, {d});
  check_shape(kOp, "k_norm", args.heads.k_norm, {d});
  check_shape(kOp, "positions", args.heads.positions, {n});
  check_shape(kOp, "cos_sin", args.heads.cos_sin, {-1, d});
  check_shape(kOp, "slots", args.heads.slots, {n});
}

/// The operands of qk_norm_rope_store after the product.
template <class T, class Matrix, class Kv, class W>
[[nodiscard]] QkNormRopeStoreArgs<T, Kv, W> head_args(
    const ProjectQkvArgs<T, Matrix, Kv, W>& args) {
  const Qkv<T> qkv = split_qkv(args.qkv, args.num_heads(), args.kv.num_kv_heads, args.kv.head_dim);
  return {.q = qkv.q,
          .k = qkv.k,
          .v = qkv.v,
          .q_norm = args.heads.q_norm,
          .k_norm = args.heads.k_norm,
          .eps = args.heads.eps,
          .positions = args.heads.positions,
          .cos_sin = args.heads.cos_sin,
          .slots = args.heads.slots,
          .kv = args.kv};
}

/// The product and the norm ahead, each run by `run(its arguments)`.
template <class T, class Matrix, class Kv, class W, class Run>
void compose_product(const ProjectQkvArgs<T, Matrix, Kv, W>& args, const Run& run) {
  MatrixView<const T> x = args.x;
  if (args.norm) {
    run(RmsNormArgs<T, W>{
        .x = x, .weight = args.norm.weight, .eps = args.norm.eps, .out = args.normed});
    x = args.normed;
  }
  run(LinearArgs<T, Matrix>{.x = x, .weight = args.weight, .y = args.qkv});
}

/// The op by those that it is made of.
template <class T, class Matrix, class Kv, class W, class Run>
void compose(const ProjectQkvArgs<T, Matrix, Kv, W>& args, const Run& run) {
  compose_product(args, run);
  run(head_args(args));
}

}  // namespace nanovllm
