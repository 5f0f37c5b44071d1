#pragma once
/// `rms_norm` and `add_rms_norm` on CUDA. Contract: ops/rms_norm.hpp.
///
///   residual = round(x + residual)                                              (add_rms_norm
///   only) out[i, :] = round(x[i, :] · rsqrt(mean(x[i, :]²) + eps)) · weight
///
/// x, residual and out [n, width] of any stride, weight [width]; 16 bytes at a time where addresses
/// and strides are multiples of that, else element by element with the same result. `out` may be
/// `x`. The weight may be read before the kernels ahead are done.
///
/// The sum of squares is float32. Its order, and so every bit of the result, is a function of the
/// element type and the width alone, neither of the number of rows nor of the alignment:
///   width ≤ 512       a group of lanes holds a row (`HeadRow`), as `qk_norm_rope_store` does
///   ≤ 128 vectors     a warp holds a row
///   ≤ 2048 vectors    a block holds a row, two vectors a thread
///   wider             a block reads the row twice
/// Bytes moved: (2 · n + 1) · width · sizeof(T), or (4 · n + 1) with the residual.
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/head_row.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/reduce.cuh"
#include "nanovllm/cuda/row_vectors.cuh"
#include "nanovllm/cuda/vec.cuh"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

struct RmsNormTraits {
  static constexpr int kThreads = 128;     ///< of a block that takes several rows
  static constexpr int kWarpVectors = 4;   ///< vectors a thread where a warp holds a row
  static constexpr int kBlockVectors = 2;  ///< where a block does
  static constexpr int kMaxThreads = 1024;
};

/// The operands of both ops; `rms_norm` has no residual.
template <class T>
struct RmsNormProblem {
  MatrixView<const T> x;
  MatrixView<T> residual;
  VectorView<const T> weight;
  float eps;
  MatrixView<T> out;
};

namespace detail {

/// x + residual, rounded, which is also the residual's new value.
template <class T>
__device__ __forceinline__ uint4 add_vectors(uint4 x, uint4 residual) {
  float a[kVecSize<T>], b[kVecSize<T>];
  unpack<T>(x, a);
  unpack<T>(residual, b);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i) a[i] = __fadd_rn(a[i], b[i]);
  return pack<T>(a);
}

/// One vector of a row, normalised and weighted.
template <class T>
__device__ __forceinline__ uint4 norm_vector(uint4 x, float inverse, uint4 weight) {
  float a[kVecSize<T>], w[kVecSize<T>];
  unpack<T>(x, a);
  unpack<T>(weight, w);
  normalise<T>(a, inverse, w);
  return pack<T>(a);
}

/// Σ x² of one vector.
template <class T>
__device__ __forceinline__ float vector_squares(uint4 x) {
  float a[kVecSize<T>];
  unpack<T>(x, a);
  return sum_of_squares(a);
}

/// A row of at most kVectors · threads vectors, held in registers by blockDim.x threads: vector v
/// of thread t is vector v · threads + t of the row. Loads come first, so that they overlap.
template <class T, int kVectors, bool kAdd, bool kWhole>
__device__ __forceinline__ void norm_row_in_registers(const RmsNormProblem<T>& problem,
                                                      std::int64_t row, float* scratch) {
  const auto width = static_cast<int>(problem.x.extent(1));
  const auto threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const auto for_each_vector = [&](auto visit) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int column = (v * threads + thread) * kVecSize<T>;
      if (column < width) visit(v, column, width - column);
    }
  };
  uint4 weight[kVectors], x[kVectors] = {}, residual[kVectors];
  for_each_vector([&](int v, int column, int count) {
    weight[v] = load_first<kWhole, Load::constant>(problem.weight.data + column, count);
  });
  grid_dependency_wait();
  grid_dependency_launch();
  if (row >= problem.x.extent(0)) return;  // whole warps: blocks of several rows have a warp each
  for_each_vector([&](int v, int column, int count) {
    x[v] = load_first<kWhole>(problem.x.at(row, column), count);
    if (kAdd) residual[v] = load_first<kWhole>(problem.residual.at(row, column), count);
  });
  if constexpr (kAdd) {
    for_each_vector([&](int v, int column, int count) {
      x[v] = add_vectors<T>(x[v], residual[v]);
      store_first<kWhole>(problem.residual.at(row, column), count, x[v]);
    });
  }
  float sum = vector_squares<T>(x[0]);
#pragma unroll
  for (int v = 1; v < kVectors; ++v) sum += vector_squares<T>(x[v]);
  const float inverse = inverse_rms(block_sum(sum, scratch, threads), width, problem.eps);
  for_each_vector([&](int v, int column, int count) {
    store_first<kWhole>(problem.out.at(row, column), count,
                        norm_vector<T>(x[v], inverse, weight[v]));
  });
}

}  // namespace detail

/// Rows of up to 512 elements, kLanes lanes each (0: a warp each).
template <class T, int kLanes, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(RmsNormTraits::kThreads)
    rms_norm_narrow_kernel(RmsNormProblem<T> problem) {
  using Row = HeadRow<T, kLanes, kWhole>;
  const std::int64_t row =
      (std::int64_t{blockIdx.x} * RmsNormTraits::kThreads + threadIdx.x) / Row::kGroup;
  const auto width = static_cast<int>(problem.x.extent(1));
  Row weight(width);
  weight.template load<Load::constant>(problem.weight.data);
  grid_dependency_wait();
  grid_dependency_launch();
  const bool exists = row < problem.x.extent(0);  // no thread leaves before the shuffles
  Row values(width);
  if (exists) values.load(problem.x.at(row));
  if (kAdd && exists) {
    Row residual(width);
    residual.load(problem.residual.at(row));
    values.add(residual);
    values.store(problem.residual.at(row));
  }
  values.normalise(weight, problem.eps);
  if (exists) values.store(problem.out.at(row));
}

/// Rows that blockDim.x threads hold, one for every threadIdx.y. With more than one row a block,
/// blockDim.x is 32.
template <class T, int kVectors, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(RmsNormTraits::kMaxThreads)
    rms_norm_kernel(RmsNormProblem<T> problem) {
  __shared__ float scratch[32];
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  detail::norm_row_in_registers<T, kVectors, kAdd, kWhole>(problem, row, scratch);
}

/// Rows of any width, one a block, read twice.
template <class T, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(RmsNormTraits::kMaxThreads)
    rms_norm_wide_kernel(RmsNormProblem<T> problem) {
  __shared__ float scratch[32];
  constexpr int kStep = RmsNormTraits::kMaxThreads * kVecSize<T>;
  const std::int64_t row = blockIdx.x;
  const auto width = static_cast<int>(problem.x.extent(1));
  const int first = static_cast<int>(threadIdx.x) * kVecSize<T>;
  grid_dependency_wait();
  grid_dependency_launch();
  float sum = 0.f;
  for (int column = first; column < width; column += kStep) {
    uint4 x = load_first<kWhole>(problem.x.at(row, column), width - column);
    if constexpr (kAdd) {
      T* const residual = problem.residual.at(row, column);
      x = detail::add_vectors<T>(x, load_first<kWhole>(residual, width - column));
      store_first<kWhole>(residual, width - column, x);
    }
    sum += detail::vector_squares<T>(x);
  }
  sum = block_sum(sum, scratch, RmsNormTraits::kMaxThreads);
  const float inverse = inverse_rms(sum, width, problem.eps);
  const T* const from = kAdd ? problem.residual.at(row) : problem.x.at(row);
  for (int column = first; column < width; column += kStep) {
    const uint4 x = load_first<kWhole>(from + column, width - column);
    const uint4 weight =
        load_first<kWhole, Load::constant>(problem.weight.data + column, width - column);
    store_first<kWhole>(problem.out.at(row, column), width - column,
                        detail::norm_vector<T>(x, inverse, weight));
  }
}

namespace detail {

/// Rows of more than kMaxHeadRow elements.
template <class T, bool kAdd, bool kWhole>
void launch_rms_norm_rows(const RmsNormProblem<T>& problem, const Context& context) {
  using Traits = RmsNormTraits;
  const auto rows = static_cast<unsigned>(problem.x.extent(0));
  const auto vectors = static_cast<int>(ceil_div(problem.x.extent(1), kVecSize<T>));
  if (vectors <= 32 * Traits::kWarpVectors) {
    constexpr unsigned kRows = Traits::kThreads / 32;
    launch(rms_norm_kernel<T, Traits::kWarpVectors, kAdd, kWhole>,
           {.grid = ceil_div(rows, kRows), .block = {32, kRows}}, context, problem);
  } else if (vectors <= Traits::kMaxThreads * Traits::kBlockVectors) {
    const int threads = align_up(ceil_div(vectors, Traits::kBlockVectors), 32);
    launch(rms_norm_kernel<T, Traits::kBlockVectors, kAdd, kWhole>,
           {.grid = rows, .block = static_cast<unsigned>(threads)}, context, problem);
  } else {
    launch(rms_norm_wide_kernel<T, kAdd, kWhole>, {.grid = rows, .block = Traits::kMaxThreads},
           context, problem);
  }
}

template <class T, bool kAdd>
void launch_rms_norm(const char* op, const RmsNormProblem<T>& problem, const Context& context) {
  const std::int64_t rows = problem.x.extent(0), width = problem.x.extent(1);
  nanovllm::check<ShapeError>(rows < (1ll << 26) && width < (1ll << 30), op,
                              ": at most 2^26 - 1 rows of 2^30 - 1 elements, got ", rows, " of ",
                              width);
  const bool whole = has_whole_rows(problem.x) && has_whole_rows(problem.out) &&
                     has_whole_rows(problem.weight) && (!kAdd || has_whole_rows(problem.residual));
  if (width <= kMaxHeadRow) {
    with_head_lanes<T>(width, whole, [&]<int kLanes, bool kWhole>() {
      const std::int64_t threads = rows * HeadRow<T, kLanes, kWhole>::kGroup;
      launch(rms_norm_narrow_kernel<T, kLanes, kAdd, kWhole>,
             {.grid = static_cast<unsigned>(ceil_div(threads, RmsNormTraits::kThreads)),
              .block = RmsNormTraits::kThreads},
             context, problem);
    });
  } else if (whole) {
    launch_rms_norm_rows<T, kAdd, true>(problem, context);
  } else {
    launch_rms_norm_rows<T, kAdd, false>(problem, context);
  }
}

}  // namespace detail

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void rms_norm(const RmsNormArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  detail::launch_rms_norm<T, false>("rms_norm", {args.x, {}, args.weight, args.eps, args.out},
                                    context);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void add_rms_norm(const AddRmsNormArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  detail::launch_rms_norm<T, true>(
      "add_rms_norm", {args.x, args.residual, args.weight, args.eps, args.out}, context);
}

}  // namespace nanovllm::cuda
