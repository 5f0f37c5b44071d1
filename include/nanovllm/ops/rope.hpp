#pragma once
/// Contract of `rope`: rotary position embedding, half-split ("NeoX") pairing.
/// Source: Su et al., "RoFormer", 2021.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// For every token i, head h and j < head_dim / 2, in place:
///   x[i, h, j]        = x1 · cos[p, j] - x2 · sin[p, j]
///   x[i, h, j + d/2]  = x2 · cos[p, j] + x1 · sin[p, j]
/// with p = positions[i], x1 = x[i, h, j], x2 = x[i, h, j + d/2]; float32, rounded once to T.
template <class T>
struct RopeArgs {
  TensorView<T, 3> x;                        ///< [n, heads, head_dim], head_dim even
  VectorView<const std::int32_t> positions;  ///< [n], each < table rows
  MatrixView<const float> cos_sin;           ///< [max positions, head_dim]: cosines, then sines
};

/// Throws ShapeError when the operands do not fit together.
template <class T>
void validate(const RopeArgs<T>& args) {
  check<ShapeError>(args.x.extent(2) % 2 == 0, "rope: head_dim must be even, got ",
                    args.x.extent(2));
  check_shape("rope", "positions", args.positions, {args.x.extent(0)});
  check_shape("rope", "cos_sin", args.cos_sin, {-1, args.x.extent(2)});
}

/// Throws ShapeError for a position outside a table of `num_rows` rows; `positions` is host memory.
inline void check_positions(const char* op, VectorView<const std::int32_t> positions,
                            std::int64_t num_rows) {
  for (std::int64_t i = 0; i < positions.extent(0); ++i) {
    check<ShapeError>(positions.data[i] >= 0 && positions.data[i] < num_rows, op, ": position ", i,
                      " must be in [0, ", num_rows, "), got ", positions.data[i]);
  }
}

}  // namespace nanovllm
