#pragma once
/// `embedding` on CUDA: out[i, :] = table[tokens[i] - first_token, :], zeros for a token that the
/// table has no row for; bit by bit. Contract: ops/embedding.hpp.
///
/// tokens [n] and out [n, hidden] in device memory, out of any stride; 16 bytes at a time where
/// addresses and strides are multiples of that. The table is read through the non-coherent cache.
/// Bytes moved: 2 · n · hidden · sizeof(T).
/// Measured: elementwise_bench, cuda_elementwise.json, needed: 73% (0.6B) and 84% (8B) of the rate
/// of a copy, 8,192 rows.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/embedding.hpp"

namespace nanovllm::cuda {

/// The operands as the kernel sees them: the table as the dense row-major matrix that it is.
template <class T>
struct EmbeddingProblem {
  VectorView<const TokenId> tokens;  ///< [n]
  MatrixView<const T> table;         ///< [vocab or its shard, hidden]
  TokenId first_token;
  MatrixView<T> out;  ///< [n, hidden]
};

/// A thread for each vector of `out`.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    embedding_kernel(EmbeddingProblem<T> problem, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  const std::int64_t source = std::int64_t{problem.tokens.data[row]} - problem.first_token;
  uint4 value{};  // zeros in every element type
  if (source >= 0 && source < problem.table.extent(0)) {
    value = load_first<kWhole, Load::constant>(problem.table.at(source, column), count);
  }
  store_first<kWhole>(problem.out.at(row, column), count, value);
}

/// See the head of this file. `Matrix` offers `data()`, `rows()` and `cols()` of a dense row-major
/// table in device memory. Throws ShapeError when the operands do not fit together.
template <Element T, class Matrix>
void embedding(const EmbeddingArgs<T, Matrix>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const EmbeddingProblem<T> problem{args.tokens,
                                    {args.table->data(), {args.table->rows(), args.table->cols()}},
                                    args.first_token,
                                    args.out};
  const auto vectors = RowVectors::of<T>("embedding", args.out.extent(0), args.out.extent(1));
  const bool whole = has_whole_rows(problem.table) && has_whole_rows(args.out);
  launch(whole ? embedding_kernel<T, true> : embedding_kernel<T, false>, elementwise_grid(vectors),
         context, problem, vectors);
}

template <Element T, class State>
void run_op(const EmbeddingArgs<T, DeviceMatrix<T>>& args, State& state) {
  embedding(args, state.context);
}

}  // namespace nanovllm::cuda
