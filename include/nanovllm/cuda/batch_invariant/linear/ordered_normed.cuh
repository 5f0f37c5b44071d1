#pragma once
/// `ordered_linear` with RMSNorm ahead, for the fewest rows (sm_90a):
///
///   y = n(x) · Wᵀ,  n(x) = round(x · rsqrt(mean(x²) + eps)) · weight
///
/// x [M, K] and the norm's weight [K], 16-byte aligned; M ≤ 4; K 768 or 1024; else operands as
/// `ordered_linear`'s. T is bf16 or half.
///
/// n(x) is rounded as `rms_norm` rounds it, of sums in the order of `rms_norm`, so the bits are those
/// of the two ops in turn, for any number of rows.
///
/// Each block norms all rows of x, a warp a row, and keeps them in shared memory, laid out as the
/// copy engine would (128-byte swizzle); the ring has panels of W alone, the first of which are on
/// their way before the kernel ahead has ended. The kernel behind may start when the rows are normed,
/// so when all kernels ahead are done (`NextStart::after_wait`).
///
/// Bytes moved: W once; x once a block, from L2; y once. What it saves is a kernel.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/batch_invariant/linear/ordered_linear.cuh"
#include "nanovllm/cuda/batch_invariant/linear/ordered_ring.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/norm_row.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/input_norm.hpp"

namespace nanovllm::cuda {
namespace detail {

/// The rows to norm, by value.
template <class T>
struct OrderedNorm {
  const T* x;
  std::int64_t x_stride;
  const T* weight;
  std::int32_t width;
  float inverse_width;
  float eps;
};

/// Blocks own 32 rows of W, so that there are enough of them.
using OrderedNormedTraits = OrderedTraits<32, kOrderedNormedTokens, kOrderedPanels, false, true>;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The rows of x, normed, to `to` [panels of K][kTokens][64], swizzled: a warp each, of which a lane
/// has vectors 32 · g + lane. Waits for the kernels ahead once the norm's weight is there.
template <class T>
__device__ __forceinline__ void norm_rows_to_shared(std::byte* to, const OrderedNorm<T>& norm,
                                                    int num_tokens) {
  using Traits = OrderedNormedTraits;
  const int row = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row_vectors = norm.width / kVecSize<T>;
  const auto for_each_vector = [&](auto visit) {
#pragma unroll
    for (int g = 0; g < kNormVectors; ++g) {
      if (const int v = 32 * g + lane; v < row_vectors) visit(g, v);
    }
  };
  uint4 weight[kNormVectors] = {}, x[kNormVectors] = {};
  for_each_vector([&](int g, int v) {
    weight[g] = load_vector<Load::constant>(norm.weight + v * kVecSize<T>);
  });
  grid_dependency_wait();
  if (row >= num_tokens) return;
  for_each_vector(
      [&](int g, int v) { x[g] = load_vector(norm.x + row * norm.x_stride + v * kVecSize<T>); });
  float squares[kNormVectors];
#pragma unroll
  for (int g = 0; g < kNormVectors; ++g) squares[g] = vector_squares<T>(x[g]);
  const float inverse = inverse_rms(warp_row_squares(squares), norm.inverse_width, norm.eps);
  for_each_vector([&](int g, int v) {
    const int panel = v / 8, chunk = v % 8 ^ row % 8;
    *reinterpret_cast<uint4*>(to + panel * Traits::kXBytes + row * 128 + chunk * 16) =
        norm_vector<T>(x[g], inverse, weight[g]);
  });
}

/// The body of `ordered_normed_kernel`.
template <class T>
__device__ __forceinline__ void ordered_normed_block(const CUtensorMap& w_map,
                                                     const OrderedParams<T>& p,
                                                     const OrderedNorm<T>& norm) {
  using Traits = OrderedNormedTraits;
  static_assert(Traits::kGroups == 1 && Traits::kParts == 1 && kMaxOrderedNormedRows == 4);
  extern __shared__ std::byte ordered_shared[];
  __shared__ std::uint64_t full[kOrderedMaxStages], empty[kOrderedMaxStages];
  const OrderedRing<Traits> ring =
      begin_ordered_ring<Traits>(ordered_shared, full, empty, p.stages, 128);
  if (threadIdx.x >= 128) return copy_ordered_panels(ring, w_map, w_map, p);
  norm_rows_to_shared(ring.x, norm, p.num_tokens);
  async_proxy_fence_shared();
  named_barrier_sync<128>(1);
  grid_dependency_launch();
  float sum[1][Traits::kWideTokens / 2] = {};
  multiply_in_order<Traits, T>(ring, p.all_stages, sum);
  for_each_ordered_output<Traits>(p,
                                  [&](int part, int i, T& y) { y = from_float<T>(sum[part][i]); });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: (tiles of rows of W).
template <class T>
__global__ void __launch_bounds__(OrderedNormedTraits::kThreads)
    ordered_normed_kernel(const __grid_constant__ CUtensorMap w_map, const OrderedParams<T> p,
                          const OrderedNorm<T> norm) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ordered_normed_block<T>(w_map, p, norm);
#endif
}

}  // namespace detail

/// Whether `ordered_normed_linear` takes these operands.
template <MmaElement T>
[[nodiscard]] bool ordered_normed_takes(const MatrixView<const T>& x, const InputNorm<T>& norm,
                                        const MatrixView<const T>& weight, const Context& context) {
  const std::int64_t m = x.extent(0);
  return context.is_hopper() && norm &&
         fits_ordered_normed(m, weight.extent(0), weight.extent(1)) &&
         is_vector_aligned(weight.data) && is_vector_aligned(norm.weight.data) &&
         (m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x));
}

/// y = n(x) · Wᵀ. `maps` keeps the description of W for later calls. No operand is empty. Throws
/// ShapeError for operands that `ordered_normed_takes` does not take.
template <MmaElement T>
void ordered_normed_linear(const MatrixView<const T>& x, const InputNorm<T>& norm,
                           const MatrixView<const T>& weight, const MatrixView<T>& y,
                           TensorMaps& maps, const Context& context) {
  using Traits = detail::OrderedNormedTraits;
  check<ShapeError>(ordered_normed_takes(x, norm, weight, context),
                    "ordered_normed_linear: at most ", kMaxOrderedNormedRows,
                    " rows of 768 or 1024 columns, 16-byte aligned, got x ", shape_string(x),
                    " and weight ", shape_string(weight));
  const std::int64_t k = weight.extent(1);
  const dim3 grid(static_cast<unsigned>(ceil_div(weight.extent(0), Traits::kRows)));
  const auto all_stages = static_cast<int>(k / (kTmaColumns * Traits::kPanels));
  const auto other_bytes =
      static_cast<int>(Traits::kSlackBytes + Traits::kAlignment + Traits::kTokens * k * 2);
  const int stages = ordered_stages(
      std::int64_t{grid.x}, all_stages, Traits::kPanels * Traits::kPanelBytes, other_bytes,
      context.num_sms, static_cast<std::int64_t>(context.max_shared_bytes));
  const detail::OrderedParams<T> params{.y = y.data,
                                        .y_stride = y.strides[0],
                                        .num_tokens = static_cast<std::int32_t>(x.extent(0)),
                                        .n = static_cast<std::int32_t>(y.extent(1)),
                                        .all_stages = all_stages,
                                        .stages = stages,
                                        .accumulate = false};
  const detail::OrderedNorm<T> rows{.x = x.data,
                                    .x_stride = x.strides[0],
                                    .weight = norm.weight.data,
                                    .width = static_cast<std::int32_t>(k),
                                    .inverse_width = 1.f / static_cast<float>(k),
                                    .eps = norm.eps};
  launch(detail::ordered_normed_kernel<T>,
         {.grid = grid,
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(stages * Traits::kPanels * Traits::kPanelBytes +
                                                   other_bytes)},
         context, detail::ordered_weight_map<Traits>(maps, weight), params, rows);
}

}  // namespace nanovllm::cuda
