#pragma once
/// GPT-2's ops on CUDA. Contracts: with/gpt2/ops.hpp.
///
/// `add_bias`, x[i, :] += bias in place, and `bias_gelu`, out[i, :] = gelu(x[i, :] + bias): x and
/// out [n, width] of any stride, bias [width]; 16 bytes at a time where addresses and strides are
/// multiples of that. The bias is read through the non-coherent cache. Arithmetic in float32,
/// rounded once. For 16-bit elements the exponential and the quotient of gelu are the fast ones,
/// each good to a few units in the last place of float32, far below the rounding that follows; for
/// float32 they are the accurate ones.
/// Bytes moved: (2 · n + 1) · width · sizeof(T).
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
///
/// `layer_norm` and `add_layer_norm`:
///
///   residual = round(x + x_bias + residual)   (add_layer_norm only; x is then the new residual)
///   out[i, :] = (x[i, :] - mean) · rsqrt(mean of (x[i, :] - mean)² + eps) · weight + bias
///
/// x, residual and out [n, width] of any stride, the vectors [width], x_bias optional; `out` may be
/// `x`. A plain kernel: a block a row, which is read three times, element by element.
///
/// Sums are float32: of 16 bytes of neighbours in order, then of a thread's runs of such, then of
/// the threads by butterflies (`block_sum`). The order, and so every bit of the result, is a
/// function of the element type and the width alone.
///
/// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
/// Measured: not at all: GPT-2 was not timed on a GPU.

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/compiled_ops.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/gpt2/ops.hpp"

namespace nanovllm::cuda {

/// v / (1 + e^(v · (kGeluLinear + kGeluCubic · v²))).
template <class T>
__device__ __forceinline__ float gelu(float v) {
  const float exponent = v * __fmaf_rn(v * v, kGeluCubic, kGeluLinear);
  if constexpr (std::same_as<T, float>) {
    return __fdiv_rn(v, 1.f + expf(exponent));
  } else {
    return __fdividef(v, 1.f + __expf(exponent));
  }
}

/// out = f(x + bias), f(v) = gelu(v) or v.
template <class T, bool kGelu>
struct BiasRows {
  MatrixView<const T> x;
  VectorView<const T> bias;
  MatrixView<T> out;

  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    float v[kVecSize<T>], b[kVecSize<T>];
    unpack<T>(load_first<kWhole>(x.at(at.row, at.column), at.count), v);
    unpack<T>(load_first<kWhole, Load::constant>(bias.data + at.column, at.count), b);
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) {
      v[i] = __fadd_rn(v[i], b[i]);
      if constexpr (kGelu) v[i] = gelu<T>(v[i]);
    }
    store_first<kWhole>(out.at(at.row, at.column), at.count, pack<T>(v));
  }

  void launch(const char* op, const Context& context) const {
    const bool whole = has_whole_rows(x) && has_whole_rows(bias) && has_whole_rows(out);
    for_each_vector<T>(op, out.extent(0), out.extent(1), whole, *this, context);
  }
};

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void add_bias(const AddBiasArgs<T>& args, const Context& context) {
  validate(args);
  if (!args.x.empty()) BiasRows<T, false>{args.x, args.bias, args.x}.launch("add_bias", context);
}

template <Element T, class State>
void run_op(const AddBiasArgs<T>& args, State& state) {
  add_bias(args, state.context);
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void bias_gelu(const BiasGeluArgs<T>& args, const Context& context) {
  validate(args);
  if (!args.out.empty())
    BiasRows<T, true>{args.x, args.bias, args.out}.launch("bias_gelu", context);
}

template <Element T, class State>
void run_op(const BiasGeluArgs<T>& args, State& state) {
  bias_gelu(args, state.context);
}

inline constexpr int kMaxLayerNormThreads = 1024;

/// Grid: a block a row. `layer_norm` has neither a residual nor x_bias.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxLayerNormThreads)
    layer_norm_kernel(const AddLayerNormArgs<T> args, NextStart next) {
  __shared__ float scratch[2][32];
  const std::int64_t row = blockIdx.x;
  const auto width = static_cast<int>(args.x.extent(1));
  launch_next_early(next);
  grid_dependency_wait();
  launch_next_late(next);
  const T* const x = kAdd ? args.residual.at(row) : args.x.at(row);
  const auto for_each_run = [&](const auto& visit) {
    const int step = static_cast<int>(blockDim.x) * kVecSize<T>;
    for (int i = static_cast<int>(threadIdx.x) * kVecSize<T>; i < width; i += step)
      visit(i, min(i + kVecSize<T>, width));
  };
  float sum = 0.f;
  for_each_run([&](int begin, int end) {
    float run = 0.f;
    for (int i = begin; i < end; ++i) {
      if constexpr (kAdd) {
        const float bias = args.x_bias.data == nullptr ? 0.f : to_float(args.x_bias.data[i]);
        T& old = *args.residual.at(row, i);
        old =
            from_float<T>(__fadd_rn(__fadd_rn(to_float(*args.x.at(row, i)), bias), to_float(old)));
      }
      run += to_float(x[i]);
    }
    sum += run;
  });
  const float inverse_width = 1.f / static_cast<float>(width);
  const float mean = block_sum(sum, scratch[0], static_cast<int>(blockDim.x)) * inverse_width;
  float squares = 0.f;
  for_each_run([&](int begin, int end) {
    float run = 0.f;
    for (int i = begin; i < end; ++i)
      run = __fmaf_rn(to_float(x[i]) - mean, to_float(x[i]) - mean, run);
    squares += run;
  });
  squares = block_sum(squares, scratch[1], static_cast<int>(blockDim.x));
  const float inverse = rsqrtf(__fmaf_rn(squares, inverse_width, args.eps));
  for_each_run([&](int begin, int end) {
    for (int i = begin; i < end; ++i)
      *args.out.at(row, i) =
          from_float<T>(__fmaf_rn(__fmul_rn(to_float(x[i]) - mean, inverse),
                                  to_float(args.weight.data[i]), to_float(args.bias.data[i])));
  });
}

namespace detail {

template <bool kAdd, class T>
void launch_layer_norm(const char* op, const AddLayerNormArgs<T>& args, const Context& context,
                       NextStart next) {
  const std::int64_t rows = args.x.extent(0), width = args.x.extent(1);
  check<ShapeError>(rows < (1ll << 31) && width < (1ll << 30), op,
                    ": at most 2^31 - 1 rows of 2^30 - 1 elements, got ", rows, " of ", width);
  const std::int64_t threads = 32 * ceil_div(width, std::int64_t{32 * kVecSize<T>});
  launch(layer_norm_kernel<T, kAdd>,
         {.grid = static_cast<unsigned>(rows),
          .block = static_cast<unsigned>(std::min<std::int64_t>(threads, kMaxLayerNormThreads))},
         context, args, next);
}

}  // namespace detail

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void layer_norm(const LayerNormArgs<T>& args, const Context& context,
                NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  detail::launch_layer_norm<false>(
      "layer_norm", AddLayerNormArgs<T>{args.x, {}, {}, args.weight, args.bias, args.eps, args.out},
      context, next);
}
template <Element T>
void add_layer_norm(const AddLayerNormArgs<T>& args, const Context& context,
                    NextStart next = NextStart::at_once) {
  validate(args);
  if (args.out.empty()) return;
  detail::launch_layer_norm<true>("add_layer_norm", args, context, next);
}

template <Element T, class State>
void run_op(const LayerNormArgs<T>& args, State& state) {
  layer_norm(args, state.context, state.plan_start.behind_norm());
}
template <Element T, class State>
void run_op(const AddLayerNormArgs<T>& args, State& state) {
  add_layer_norm(args, state.context, state.plan_start.behind_norm());
}

#if defined(NANOVLLM_CUDA_OPS)
#define NANOVLLM_CUDA_GPT2_OPS(extern_or_nothing)              \
  NANOVLLM_CUDA_OP(extern_or_nothing, LayerNormArgs<bf16>);    \
  NANOVLLM_CUDA_OP(extern_or_nothing, AddLayerNormArgs<bf16>); \
  NANOVLLM_CUDA_OP(extern_or_nothing, AddBiasArgs<bf16>);      \
  NANOVLLM_CUDA_OP(extern_or_nothing, BiasGeluArgs<bf16>)
NANOVLLM_CUDA_GPT2_OPS(extern);
#endif

}  // namespace nanovllm::cuda
