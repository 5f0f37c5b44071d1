#pragma once
/// Contract of `embedding`: token ids to rows of the embedding table.

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

}  // namespace nanovllm
