#pragma once
/// Rows of a table on CUDA, bit by bit. Contracts: ops/embedding.hpp.
///
///   embedding    out[i, :] = table[tokens[i] - first_token, :], zeros for a token that the table
///                has no row for
///   gather_rows  out[i, :] = x[rows[i], :]
///
/// tokens [n], rows [n], x and out [n, width] in device memory, x and out of any stride; 16 bytes
/// at a time where addresses and strides are multiples of that, else element by element. `rows` is
/// not checked. The embedding's table is read through the non-coherent cache.
/// Bytes moved: 2 · n · width · sizeof(T).
/// Measured: elementwise_bench, cuda_elementwise.json, needed: 73% (0.6B) and 84% (8B) of the rate
/// of a copy, 8,192 rows. Rows are gathered in 531,766 tokens/s of prompts (engine_bench,
/// cuda_engine_0_6b.json).

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

/// A thread for each vector of `out`.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    gather_rows_kernel(GatherRowsArgs<T> args, RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index >= vectors.total) return;
  const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
  const T* const from = args.x.at(args.rows.data[row], column);
  store_first<kWhole>(args.out.at(row, column), count, load_first<kWhole>(from, count));
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void gather_rows(const GatherRowsArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const auto vectors = RowVectors::of<T>("gather_rows", args.out.extent(0), args.out.extent(1));
  const bool whole = has_whole_rows(args.x) && has_whole_rows(args.out);
  launch(whole ? gather_rows_kernel<T, true> : gather_rows_kernel<T, false>,
         elementwise_grid(vectors), context, args, vectors);
}

template <Element T, class State>
void run_op(const GatherRowsArgs<T>& args, State& state) {
  gather_rows(args, state.context);
}

}  // namespace nanovllm::cuda
