#pragma once
/// Contract of `gather_rows`: picks the rows that need logits.

#include <cstdint>

#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// out[i, :] = x[rows[i], :]. Exact: rows are copied.
template <class T>
struct GatherRowsArgs {
  MatrixView<const T> x;                ///< [n, width]
  VectorView<const std::int32_t> rows;  ///< [m], each in [0, n)
  MatrixView<T> out;                    ///< [m, width]
};

/// Throws ShapeError when the operands do not fit together.
template <class T>
void validate(const GatherRowsArgs<T>& args) {
  check_shape("gather_rows", "out", args.out, {args.rows.extent(0), args.x.extent(1)});
}

}  // namespace nanovllm
