#pragma once
/// `layer_norm` and `add_layer_norm` on CUDA. Contract: ops/layer_norm.hpp.
///
///   residual = round(x + x_bias + residual)   (add_layer_norm only; x is then the new residual)
///   out[i, :] = (x[i, :] - mean) · rsqrt(mean of (x[i, :] - mean)² + eps) · weight + bias
///
/// x, residual and out [n, width] of any stride, the vectors [width], x_bias optional; 16 bytes at
/// a time where addresses and strides are multiples of that, else element by element with the same
/// result. `out` may be `x`. The vectors may be read before the kernels ahead are done.
///
/// Sums are float32: of a vector's elements in order, then of the threads by butterflies
/// (`block_sum`). The order, and so every bit of the result, is a function of the element type and
/// the width alone. A thread holds one vector of a row, and the row stays in registers between the
/// two sums; rows of more than 1024 vectors are read three times.
///
/// Bytes moved: 2 · (n + 1) · width · sizeof(T), or (4 · n + 2) with the residual.
///
/// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/layer_norm.hpp"

namespace nanovllm::cuda {

struct LayerNormTraits {
  static constexpr int kMaxThreads = 1024;  ///< of a row: one a vector, or the wide kernel's
  static constexpr int kRows = 4;           ///< of a block, where a row has a warp
};

/// The operands of both ops; `layer_norm` has no residual and no x_bias.
template <class T>
struct LayerNormProblem {
  MatrixView<const T> x;
  VectorView<const T> x_bias;
  MatrixView<T> residual;
  VectorView<const T> weight;
  VectorView<const T> bias;
  float eps;
  MatrixView<T> out;
  float inverse_width;
  NextStart next;
};

namespace detail {

/// Vector `column` of x_bias, or zeros.
template <class T, bool kAdd, bool kWhole>
__device__ __forceinline__ uint4 load_x_bias(const LayerNormProblem<T>& problem, int column,
                                             int count) {
  if (!kAdd || problem.x_bias.data == nullptr) return uint4{};
  return load_first<kWhole, Load::constant>(problem.x_bias.data + column, count);
}

/// Vector `column` of a row of x; with kAdd of x + x_bias + residual, rounded, which is also
/// written back.
template <class T, bool kAdd, bool kWhole>
__device__ __forceinline__ uint4 load_summed(const LayerNormProblem<T>& problem, uint4 x_bias,
                                             std::int64_t row, int column, int count) {
  const uint4 x = load_first<kWhole>(problem.x.at(row, column), count);
  if constexpr (!kAdd) {
    return x;
  } else {
    T* const residual = problem.residual.at(row, column);
    float a[kVecSize<T>], b[kVecSize<T>], bias[kVecSize<T>];
    unpack<T>(x, a);
    unpack<T>(x_bias, bias);
    unpack<T>(load_first<kWhole>(residual, count), b);
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) a[i] = __fadd_rn(__fadd_rn(a[i], bias[i]), b[i]);
    const uint4 sum = pack<T>(a);
    store_first<kWhole>(residual, count, sum);
    return sum;
  }
}

/// Σ x of a vector's first `count` elements, in order.
template <int kCount>
__device__ __forceinline__ float sum_first(const float (&x)[kCount], int count) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += i < count ? x[i] : 0.f;
  return sum;
}

/// Σ (x - mean)² of a vector's first `count` elements, in order.
template <int kCount>
__device__ __forceinline__ float deviations_first(const float (&x)[kCount], float mean, int count) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float d = i < count ? x[i] - mean : 0.f;
    sum = __fmaf_rn(d, d, sum);
  }
  return sum;
}

/// (x - mean) · inverse · weight + bias, element by element.
template <class T>
__device__ __forceinline__ uint4 layer_norm_vector(const float (&x)[kVecSize<T>], float mean,
                                                   float inverse, uint4 weight, uint4 bias) {
  float w[kVecSize<T>], b[kVecSize<T>];
  unpack<T>(weight, w);
  unpack<T>(bias, b);
#pragma unroll
  for (int i = 0; i < kVecSize<T>; ++i)
    b[i] = __fmaf_rn(__fmul_rn(x[i] - mean, inverse), w[i], b[i]);
  return pack<T>(b);
}

}  // namespace detail

/// A row for every threadIdx.y, a vector of it for every threadIdx.x. With more than one row a
/// block, blockDim.x is 32.
template <class T, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(LayerNormTraits::kMaxThreads)
    layer_norm_kernel(LayerNormProblem<T> problem) {
  __shared__ float scratch[2][32];
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const auto width = static_cast<int>(problem.x.extent(1)), threads = static_cast<int>(blockDim.x);
  const int column = static_cast<int>(threadIdx.x) * kVecSize<T>, count = width - column;
  launch_next_early(problem.next);
  uint4 weight{}, bias{}, x_bias{}, raw{};
  if (count > 0) {
    x_bias = detail::load_x_bias<T, kAdd, kWhole>(problem, column, count);
    weight = load_first<kWhole, Load::constant>(problem.weight.data + column, count);
    bias = load_first<kWhole, Load::constant>(problem.bias.data + column, count);
  }
  grid_dependency_wait();
  launch_next_late(problem.next);
  if (row >= problem.x.extent(0)) return;  // whole warps: blocks of several rows have a warp each
  if (count > 0) raw = detail::load_summed<T, kAdd, kWhole>(problem, x_bias, row, column, count);
  float x[kVecSize<T>];
  unpack<T>(raw, x);
  const float mean =
      block_sum(detail::sum_first(x, count), scratch[0], threads) * problem.inverse_width;
  const float squares = block_sum(detail::deviations_first(x, mean, count), scratch[1], threads);
  const float inverse = rsqrtf(__fmaf_rn(squares, problem.inverse_width, problem.eps));
  if (count > 0) {
    store_first<kWhole>(problem.out.at(row, column), count,
                        detail::layer_norm_vector<T>(x, mean, inverse, weight, bias));
  }
}

/// Rows of any width, one a block, read three times.
template <class T, bool kAdd, bool kWhole>
__global__ void __launch_bounds__(LayerNormTraits::kMaxThreads)
    layer_norm_wide_kernel(LayerNormProblem<T> problem) {
  constexpr int kThreads = LayerNormTraits::kMaxThreads, kStep = kThreads * kVecSize<T>;
  __shared__ float scratch[2][32];
  const std::int64_t row = blockIdx.x;
  const auto width = static_cast<int>(problem.x.extent(1));
  const int first = static_cast<int>(threadIdx.x) * kVecSize<T>;
  launch_next_early(problem.next);
  grid_dependency_wait();
  launch_next_late(problem.next);
  float x[kVecSize<T>], part = 0.f;
  for (int column = first; column < width; column += kStep) {
    const int count = width - column;
    const uint4 x_bias = detail::load_x_bias<T, kAdd, kWhole>(problem, column, count);
    unpack<T>(detail::load_summed<T, kAdd, kWhole>(problem, x_bias, row, column, count), x);
    part += detail::sum_first(x, count);
  }
  const float mean = block_sum(part, scratch[0], kThreads) * problem.inverse_width;
  const T* const from = kAdd ? problem.residual.at(row) : problem.x.at(row);
  part = 0.f;
  for (int column = first; column < width; column += kStep) {
    unpack<T>(load_first<kWhole>(from + column, width - column), x);
    part += detail::deviations_first(x, mean, width - column);
  }
  const float squares = block_sum(part, scratch[1], kThreads);
  const float inverse = rsqrtf(__fmaf_rn(squares, problem.inverse_width, problem.eps));
  for (int column = first; column < width; column += kStep) {
    const int count = width - column;
    unpack<T>(load_first<kWhole>(from + column, count), x);
    const uint4 weight = load_first<kWhole, Load::constant>(problem.weight.data + column, count);
    const uint4 bias = load_first<kWhole, Load::constant>(problem.bias.data + column, count);
    store_first<kWhole>(problem.out.at(row, column), count,
                        detail::layer_norm_vector<T>(x, mean, inverse, weight, bias));
  }
}

namespace detail {

template <class T, bool kAdd, bool kWhole>
void launch_layer_norm_rows(const LayerNormProblem<T>& problem, const Context& context) {
  using Traits = LayerNormTraits;
  const auto rows = static_cast<unsigned>(problem.x.extent(0));
  const auto vectors = static_cast<unsigned>(ceil_div(problem.x.extent(1), kVecSize<T>));
  if (vectors > Traits::kMaxThreads) {
    launch(layer_norm_wide_kernel<T, kAdd, kWhole>, {.grid = rows, .block = Traits::kMaxThreads},
           context, problem);
  } else if (vectors <= 32) {
    launch(layer_norm_kernel<T, kAdd, kWhole>,
           {.grid = ceil_div(rows, unsigned{Traits::kRows}), .block = {32, Traits::kRows}}, context,
           problem);
  } else {
    launch(layer_norm_kernel<T, kAdd, kWhole>, {.grid = rows, .block = 32 * ceil_div(vectors, 32u)},
           context, problem);
  }
}

template <class T, bool kAdd>
void launch_layer_norm(const char* op, const LayerNormProblem<T>& problem, const Context& context) {
  const std::int64_t rows = problem.x.extent(0), width = problem.x.extent(1);
  check<ShapeError>(rows < (1ll << 31) && width < (1ll << 30), op,
                    ": at most 2^31 - 1 rows of 2^30 - 1 elements, got ", rows, " of ", width);
  const bool whole =
      has_whole_rows(problem.x) && has_whole_rows(problem.out) && has_whole_rows(problem.weight) &&
      has_whole_rows(problem.bias) &&
      (!kAdd || (has_whole_rows(problem.residual) &&
                 (problem.x_bias.data == nullptr || has_whole_rows(problem.x_bias))));
  if (whole) {
    launch_layer_norm_rows<T, kAdd, true>(problem, context);
  } else {
    launch_layer_norm_rows<T, kAdd, false>(problem, context);
  }
}

}  // namespace detail

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void layer_norm(const LayerNormArgs<T>& args, const Context& context,
                NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  const float inverse_width = 1.f / static_cast<float>(args.x.extent(1));
  detail::launch_layer_norm<T, false>(
      "layer_norm",
      {args.x, {}, {}, args.weight, args.bias, args.eps, args.out, inverse_width, next}, context);
}

template <Element T, class State>
void run_op(const LayerNormArgs<T>& args, State& state) {
  layer_norm(args, state.context, state.start_behind_norm());
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void add_layer_norm(const AddLayerNormArgs<T>& args, const Context& context,
                    NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  const float inverse_width = 1.f / static_cast<float>(args.x.extent(1));
  detail::launch_layer_norm<T, true>("add_layer_norm",
                                     {args.x, args.x_bias, args.residual, args.weight, args.bias,
                                      args.eps, args.out, inverse_width, next},
                                     context);
}

template <Element T, class State>
void run_op(const AddLayerNormArgs<T>& args, State& state) {
  add_layer_norm(args, state.context, state.start_behind_norm());
}

}  // namespace nanovllm::cuda
