#pragma once
/// Ops that treat each row on its own, on CUDA: `embedding`, `gather_rows`, `silu_mul` and `rope`.
/// Contracts: ops/embedding.hpp, ops/gated_linear.hpp, ops/rope.hpp.
///
///   embedding    out[i, :] = table[tokens[i] - first_token, :], zeros for a token that the table
///                has no row for
///   gather_rows  out[i, :] = x[rows[i], :]
///   silu_mul     out[i, j] = round(silu(gate_up[i, j])) · gate_up[i, width + j],
///                silu(x) = x / (1 + e^-x)
///   rope         x[i, h, j]       = x1 · cos[p, j] - x2 · sin[p, j],   p = positions[i]
///                x[i, h, j + d/2] = x2 · cos[p, j] + x1 · sin[p, j]
///
/// tokens, rows and positions [n]; x, table and out [n, width], gate_up [n, 2 · width], x of `rope`
/// [n, heads, head_dim ≤ 512] in place, cos_sin float32. All in device memory, matrices of any
/// stride; 16 bytes at a time where addresses, strides and widths are multiples of that (`rope`:
/// head_dim 64 or 128), else element by element with the same result. Rows and positions are not
/// checked. The embedding's table is read through the non-coherent cache. Arithmetic is float32;
/// what the fast silu of 16-bit elements (tile/silu.cuh) is off by is far below the rounding that
/// follows.
/// Bytes moved: 2 · n · width · sizeof(T), `silu_mul` 3 · n · width · sizeof(T).
/// Source: Shazeer, "GLU Variants Improve Transformer", 2020; Su et al., "RoFormer", 2021.
/// Measured: elementwise_bench, cuda_elementwise.json, needed: the embedding runs at 73% (0.6B) and
/// 84% (8B) of the rate of a copy, 8,192 rows, `silu_mul` at 98% and 103%. Rows are gathered in
/// 531,766 tokens/s of prompts (engine_bench, cuda_engine_0_6b.json). `rope` not at all: models
/// rotate in qk_norm_rope_store.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/embedding.hpp"
#include "nanovllm/ops/gated_linear.hpp"
#include "nanovllm/ops/rope.hpp"

namespace nanovllm::cuda {

/// The operands as the kernel sees them: the table as the dense row-major matrix that it is.
template <class T>
struct EmbeddingRows {
  VectorView<const TokenId> tokens;  ///< [n]
  MatrixView<const T> table;         ///< [vocab or its shard, hidden]
  TokenId first_token;
  MatrixView<T> out;  ///< [n, hidden]

  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    const std::int64_t source = std::int64_t{tokens.data[at.row]} - first_token;
    uint4 value{};  // zeros in every element type
    if (source >= 0 && source < table.extent(0)) {
      value = load_first<kWhole, Load::constant>(table.at(source, at.column), at.count);
    }
    store_first<kWhole>(out.at(at.row, at.column), at.count, value);
  }
};

/// See the head of this file. `Matrix` offers `data()`, `rows()` and `cols()` of a dense row-major
/// table in device memory. Throws ShapeError when the operands do not fit together.
template <Element T, class Matrix>
void embedding(const EmbeddingArgs<T, Matrix>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const EmbeddingRows<T> rows{args.tokens,
                              {args.table->data(), {args.table->rows(), args.table->cols()}},
                              args.first_token,
                              args.out};
  for_each_vector<T>("embedding", args.out.extent(0), args.out.extent(1),
                     has_whole_rows(rows.table) && has_whole_rows(args.out), rows, context);
}

template <Element T, class State>
void run_op(const EmbeddingArgs<T, DeviceMatrix<T>>& args, State& state) {
  embedding(args, state.context);
}

template <class T>
struct GatherRows {
  GatherRowsArgs<T> args;

  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    const T* const from = args.x.at(args.rows.data[at.row], at.column);
    store_first<kWhole>(args.out.at(at.row, at.column), at.count,
                        load_first<kWhole>(from, at.count));
  }
};

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void gather_rows(const GatherRowsArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  for_each_vector<T>("gather_rows", args.out.extent(0), args.out.extent(1),
                     has_whole_rows(args.x) && has_whole_rows(args.out), GatherRows<T>{args},
                     context);
}

template <Element T, class State>
void run_op(const GatherRowsArgs<T>& args, State& state) {
  gather_rows(args, state.context);
}

template <class T>
struct SiluMulRows {
  SiluMulArgs<T> args;

  /// round(silu(gate)) · up, element by element.
  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    const T* const from = args.gate_up.at(at.row, at.column);
    float gate[kVecSize<T>], up[kVecSize<T>];
    unpack<T>(load_first<kWhole>(from, at.count), gate);
    unpack<T>(load_first<kWhole>(from + args.out.extent(1), at.count), up);
#pragma unroll
    for (float& x : gate) x = silu<T>(x);
    round_floats<T>(gate);
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) gate[i] *= up[i];
    store_first<kWhole>(args.out.at(at.row, at.column), at.count, pack<T>(gate));
  }
};

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void silu_mul(const SiluMulArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  // A whole row of `out` makes the two of `gate_up` whole.
  for_each_vector<T>("silu_mul", args.out.extent(0), args.out.extent(1),
                     has_whole_rows(args.gate_up) && has_whole_rows(args.out), SiluMulRows<T>{args},
                     context);
}

template <Element T, class State>
void run_op(const SiluMulArgs<T>& args, State& state) {
  silu_mul(args, state.context);
}

/// A group of lanes for each (token, head).
template <class T, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kHeadRowThreads) rope_kernel(const RopeArgs<T> args) {
  using Row = HeadRow<T, kLanes, kWhole>;
  grid_dependency_launch();
  grid_dependency_wait();
  const auto [token, head] = head_place<Row>(args.x.extent(1));
  if (token >= args.x.extent(0)) return;
  const auto head_dim = static_cast<int>(args.x.extent(2));
  T* const x = args.x.at(token, head);
  const std::int32_t position = args.positions.data[token];
  Row row(Row::load(x, head_dim), head_dim);
  row.rotate(Row::load_angles(args.cos_sin.at(position), head_dim));
  Row::store(row.rounded(), x, head_dim);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together or head_dim
/// exceeds 512.
template <Element T>
void rope(const RopeArgs<T>& args, const Context& context) {
  validate(args);
  const bool whole = has_whole_rows(args.x) && has_whole_rows(args.cos_sin);
  for_head_rows<T>(
      "rope", args.x.extent(0), args.x.extent(1), args.x.extent(2), whole,
      [&]<int kLanes, bool kWhole>() { return rope_kernel<T, kLanes, kWhole>; }, context, args);
}

template <Element T, class State>
void run_op(const RopeArgs<T>& args, State& state) {
  rope(args, state.context);
}

}  // namespace nanovllm::cuda
