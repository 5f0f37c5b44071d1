#pragma once
/// The products of grouped.cuh for any element type and any extents, of pairs whose expert is here:
/// a warp an output, which reads a row of W. Slow; for float32 and for rows that are not 16-byte
/// aligned.
///
/// Sums are in float32: a lane takes every 32nd column, then lanes are added up. A pair's result
/// depends on that pair alone, bit for bit. Gates and ups are not rounded.
/// Measured: not at all: no benchmark has experts in float32.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/silu.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda {
namespace detail {

inline constexpr int kAnyProductWarps = 8;

/// Grid: columns of y by eight, pairs.
template <class T, bool kGated>
__global__ void __launch_bounds__(32 * kAnyProductWarps)
    any_expert_product_kernel(MatrixView<const T> x, MatrixView<const std::int32_t> ids,
                              LocalExperts local, const T* weight, std::int64_t expert_stride,
                              int divisor, MatrixView<T> y) {
  grid_dependency_launch();
  grid_dependency_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = blockIdx.x * kAnyProductWarps + threadIdx.x / 32;
  const std::int64_t n = y.extent(1), k = x.extent(1), slots = ids.extent(1);
  if (column >= n) return;
  for (std::int64_t pair = blockIdx.y; pair < y.extent(0); pair += gridDim.y) {
    const std::int32_t id =
        *static_cast<const volatile std::int32_t*>(ids.at(pair / slots, pair % slots));
    if (!local.contains(id)) continue;
    const std::int64_t expert = local.index_of(id);
    const volatile auto* const row = x.at(pair / divisor);
    const T* const gate = weight + expert * expert_stride + column * k;
    float sum = 0.f, up = 0.f;
    for (std::int64_t j = lane; j < k; j += 32) {
      const float v = to_float<T>(const_cast<const T&>(row[j]));
      sum = __fmaf_rn(v, to_float<T>(gate[j]), sum);
      if constexpr (kGated) up = __fmaf_rn(v, to_float<T>(gate[n * k + j]), up);
    }
    sum = warp_sum(sum);
    if constexpr (kGated) sum = silu<T>(sum) * warp_sum(up);
    if (lane == 0) *y.at(pair, column) = from_float<T>(sum);
  }
}

}  // namespace detail

/// Enqueues y[p] = the product of row p / divisor of x by W of expert ids[p], for pairs p whose
/// expert is here. Other rows of y stay as they are.
template <bool kGated, Element T>
void any_expert_product(const MatrixView<const T>& x, const MatrixView<const std::int32_t>& ids,
                        const LocalExperts& local, const T* weight, std::int64_t expert_stride,
                        int divisor, const MatrixView<T>& y, const Context& context) {
  constexpr std::int64_t kMostRows = 65535;  // of a grid
  launch(detail::any_expert_product_kernel<T, kGated>,
         {.grid = dim3(
              static_cast<unsigned>(ceil_div(y.extent(1), std::int64_t{detail::kAnyProductWarps})),
              static_cast<unsigned>(std::min(y.extent(0), kMostRows))),
          .block = 32 * detail::kAnyProductWarps},
         context, x, ids, local, weight, expert_stride, divisor, y);
}

}  // namespace nanovllm::cuda
