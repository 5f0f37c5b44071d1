#pragma once
/// Contracts of `embedding`, token ids to rows of the embedding table, and of `gather_rows`, which
/// picks the rows that need logits.

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/tensor_view.hpp"

namespace nanovllm {

/// out[i, :] = table[tokens[i] - first_token, :], or zero when the token is not in
/// [first_token, first_token + table rows): a vocabulary shard contributes nothing for tokens of
/// the others, and the sum over shards is the full result. Exact where the table is of element T:
/// rows are copied; else each element is rounded to T.
///
/// `Matrix` is the backend's weight type, so that a tied lm_head shares the table.
template <class T, class Matrix>
struct EmbeddingArgs {
  VectorView<const TokenId> tokens;  ///< [n]
  const Matrix* table = nullptr;     ///< [vocab or its shard, hidden]
  TokenId first_token = 0;           ///< id of the table's row 0
  MatrixView<T> out;                 ///< [n, hidden]
};

/// Throws ShapeError when the operands do not fit together.
template <class T, class Matrix>
void validate(const EmbeddingArgs<T, Matrix>& args) {
  check_shape("embedding", "out", args.out, {args.tokens.extent(0), args.table->cols()});
}

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
