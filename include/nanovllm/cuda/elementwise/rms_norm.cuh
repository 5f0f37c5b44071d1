#pragma once
/// `rms_norm` and `add_rms_norm` on CUDA. Contract: ops/rms_norm.hpp.
///
///   residual = round(x + residual)      (add_rms_norm only, where x is then the new residual)
///   out[i, :] = round(x[i, :] · rsqrt(mean(x[i, :]²) + eps)) · weight
///
/// x, residual and out [n, width] of any stride, weight [width]; 16 bytes at a time where addresses
/// and strides are multiples of that, else element by element with the same result. `out` may be
/// `x`. The weight may be read before the kernels ahead are done.
///
/// The sum of squares is float32. Its order, and so every bit of the result, is a function of the
/// element type and the width alone, neither of the number of rows nor of the alignment. Rows of up
/// to 512 elements lie in groups of lanes (`HeadRow`), as in `qk_norm_rope_store`. In longer ones
/// the squares of a vector are added in order, then those of vectors 32 · k apart (`sum_row`), then
/// the 32 sums that are left, by a butterfly. A thread holds one vector of a row while there are
/// few rows, which is the fastest way through one, or else four, which keeps more bytes in flight;
/// rows of more than 2048 vectors are read twice.
///
/// Bytes moved: (2 · n + 1) · width · sizeof(T), or (4 · n + 1) with the residual.
///
/// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
/// Measured: elementwise_bench, cuda_elementwise.json, needed: 80% (0.6B) and 94% (8B) of the rate
/// of a copy, 8,192 rows; with the residual 86% and 94%.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

struct RmsNormTraits {
  static constexpr int kThreads = 128;    ///< of a block that takes several rows
  static constexpr int kManyVectors = 4;  ///< that a thread holds when there are many rows
  static constexpr int kMaxThreads = 1024;
  static constexpr int kMaxVectors = 2048;  ///< of a row that is read once
  /// Threads of the largest block whose threads hold `vectors` each.
  static constexpr int max_threads(int vectors) { return vectors == 1 ? kMaxThreads : 512; }
};

/// The operands of both ops; `rms_norm` has no residual.
template <class T>
struct RmsNormProblem {
  MatrixView<const T> x;
  MatrixView<T> residual;
  VectorView<const T> weight;
  float eps;
  MatrixView<T> out;
  float inverse_width;
  NextStart next;
};

/// Warps that hold a row of `vectors`, `each` a thread.
NANOVLLM_HD constexpr int rms_norm_warps(int vectors, int each) {
  return ceil_div(vectors, 32 * each);
}

namespace detail {

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

/// Σ of a row's squares. `squares` are those of vectors thread, thread + threads, … of the row.
///
/// Let p[g] be the squares of vector 32 · g + lane, and w the number of warps that hold the row at
/// four vectors a thread. A lane's sum is Σ over r < w of (p[r] + p[w + r] + p[2w + r] + p[3w +
/// r]), in this order, whether a thread has one of them or all four.
template <int kVectors>
__device__ __forceinline__ float sum_row(const float (&squares)[kVectors], int row_vectors,
                                         float* scratch) {
  constexpr int kMany = RmsNormTraits::kManyVectors;
  static_assert(kVectors == 1 || kVectors == kMany);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  const int stride = rms_norm_warps(row_vectors, kMany);
  float mine = squares[0];
#pragma unroll
  for (int v = 1; v < kVectors; ++v) mine += squares[v];
  if (num_warps == 1) return warp_sum(mine);
  scratch[threadIdx.x] = mine;
  __syncthreads();
  float sum = 0.f;
#pragma unroll 4
  for (int r = 0; r < stride; ++r) {
    float part = scratch[32 * r + lane];
    if constexpr (kVectors == 1) {
#pragma unroll
      for (int v = 1; v < kMany; ++v) {
        const int g = v * stride + r;
        part += g < num_warps ? scratch[32 * g + lane] : 0.f;
      }
    }
    sum += part;
  }
  return warp_sum(sum);
}

/// A row held in registers by blockDim.x threads: vector v of thread t is vector v · threads + t of
/// the row. Loads come first, so that they overlap.
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
  launch_next_early(problem.next);
  uint4 weight[kVectors], x[kVectors] = {}, residual[kVectors];
  for_each_vector([&](int v, int column, int count) {
    weight[v] = load_first<kWhole, Load::constant>(problem.weight.data + column, count);
  });
  grid_dependency_wait();
  launch_next_late(problem.next);
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
  float squares[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) squares[v] = vector_squares<T>(x[v]);
  const float sum = sum_row(squares, ceil_div(width, kVecSize<T>), scratch);
  const float inverse = inverse_rms(sum, problem.inverse_width, problem.eps);
  for_each_vector([&](int v, int column, int count) {
    store_first<kWhole>(problem.out.at(row, column), count,
                        norm_vector<T>(x[v], inverse, weight[v]));
  });
}

}  // namespace detail

/// Rows of up to 512 elements, kLanes lanes each (0: a warp each).
template <class T, int kLanes, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(kHeadRowThreads)
    rms_norm_narrow_kernel(RmsNormProblem<T> problem) {
  using Row = HeadRow<T, kLanes, kWhole>;
  const std::int64_t row = head_place<Row>(1).token;
  const auto width = static_cast<int>(problem.x.extent(1));
  launch_next_early(problem.next);
  const auto weight = Row::template load<Load::constant>(problem.weight.data, width);
  grid_dependency_wait();
  launch_next_late(problem.next);
  const bool exists = row < problem.x.extent(0);  // no thread leaves before the shuffles
  Row values({}, width);
  if (exists) values = Row(Row::load(problem.x.at(row), width), width);
  if (kAdd && exists) {
    T* const residual = problem.residual.at(row);
    values.add(Row(Row::load(residual, width), width));
    Row::store(values.rounded(), residual, width);
  }
  values.normalise(weight, problem.eps);
  if (exists) Row::store(values.rounded(), problem.out.at(row), width);
}

/// Rows that blockDim.x threads hold, one for every threadIdx.y. With more than one row a block,
/// blockDim.x is 32.
template <class T, int kVectors, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(RmsNormTraits::max_threads(kVectors), 1)
    rms_norm_kernel(RmsNormProblem<T> problem) {
  __shared__ float scratch[RmsNormTraits::max_threads(kVectors)];
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
  launch_next_early(problem.next);
  grid_dependency_wait();
  launch_next_late(problem.next);
  float sum = 0.f;
  for (int column = first; column < width; column += kStep) {
    uint4 x = load_first<kWhole>(problem.x.at(row, column), width - column);
    if constexpr (kAdd) {
      T* const residual = problem.residual.at(row, column);
      x = add_vectors<T>(x, load_first<kWhole>(residual, width - column));
      store_first<kWhole>(residual, width - column, x);
    }
    sum += detail::vector_squares<T>(x);
  }
  sum = block_sum(sum, scratch, RmsNormTraits::kMaxThreads);
  const float inverse = inverse_rms(sum, problem.inverse_width, problem.eps);
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
  constexpr int kMany = Traits::kManyVectors;
  const auto rows = static_cast<unsigned>(problem.x.extent(0));
  const auto vectors = static_cast<int>(ceil_div(problem.x.extent(1), kVecSize<T>));
  const int warps = rms_norm_warps(vectors, 1), many_warps = rms_norm_warps(vectors, kMany);
  // With one vector a thread, every warp reads the sums of all warps. That pays while a
  // multiprocessor has few rows, and not at all when they are very long.
  const bool few = rows * std::int64_t{warps} * warps <= std::int64_t{64} * context.num_sms;
  if (vectors > Traits::kMaxVectors) {
    launch(rms_norm_wide_kernel<T, kAdd, kWhole>, {.grid = rows, .block = Traits::kMaxThreads},
           context, problem);
  } else if (few && vectors <= Traits::kMaxThreads) {
    launch(rms_norm_kernel<T, 1, kAdd, kWhole>,
           {.grid = rows, .block = static_cast<unsigned>(32 * warps)}, context, problem);
  } else if (many_warps == 1) {
    constexpr unsigned kRows = Traits::kThreads / 32;
    launch(rms_norm_kernel<T, kMany, kAdd, kWhole>,
           {.grid = ceil_div(rows, kRows), .block = {32, kRows}}, context, problem);
  } else {
    launch(rms_norm_kernel<T, kMany, kAdd, kWhole>,
           {.grid = rows, .block = static_cast<unsigned>(32 * many_warps)}, context, problem);
  }
}

template <class T, bool kAdd>
void launch_rms_norm(const char* op, const RmsNormProblem<T>& problem, const Context& context) {
  const std::int64_t rows = problem.x.extent(0), width = problem.x.extent(1);
  check<ShapeError>(rows < (1ll << 26) && width < (1ll << 30), op,
                    ": at most 2^26 - 1 rows of 2^30 - 1 elements, got ", rows, " of ", width);
  const bool whole = has_whole_rows(problem.x) && has_whole_rows(problem.out) &&
                     has_whole_rows(problem.weight) && (!kAdd || has_whole_rows(problem.residual));
  if (width <= kMaxHeadRow) {
    for_head_rows<T>(
        op, rows, 1, width, whole,
        [&]<int kLanes, bool kWhole>() { return rms_norm_narrow_kernel<T, kLanes, kAdd, kWhole>; },
        context, problem);
  } else if (whole) {
    launch_rms_norm_rows<T, kAdd, true>(problem, context);
  } else {
    launch_rms_norm_rows<T, kAdd, false>(problem, context);
  }
}

}  // namespace detail

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void rms_norm(const RmsNormArgs<T>& args, const Context& context,
              NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  const float inverse_width = 1.f / static_cast<float>(args.x.extent(1));
  detail::launch_rms_norm<T, false>(
      "rms_norm", {args.x, {}, args.weight, args.eps, args.out, inverse_width, next}, context);
}

template <Element T, class State>
void run_op(const RmsNormArgs<T>& args, State& state) {
  rms_norm(args, state.context, state.plan_start.behind_norm());
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void add_rms_norm(const AddRmsNormArgs<T>& args, const Context& context,
                  NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  const float inverse_width = 1.f / static_cast<float>(args.x.extent(1));
  detail::launch_rms_norm<T, true>(
      "add_rms_norm", {args.x, args.residual, args.weight, args.eps, args.out, inverse_width, next},
      context);
}

template <Element T, class State>
void run_op(const AddRmsNormArgs<T>& args, State& state) {
  add_rms_norm(args, state.context, state.plan_start.behind_norm());
}

}  // namespace nanovllm::cuda
