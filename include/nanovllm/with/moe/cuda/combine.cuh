#pragma once
/// The sum over each token's experts, after their down projections.
///
/// Bytes moved: y [n · k, width] of the experts that are here once, out [n, width] once or, to add
/// to it, twice.
/// Measured: not by itself; 307 us for a layer's experts of 256 tokens with the sum (experts_bench,
/// cuda_moe_h200.json).

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"

namespace nanovllm::cuda {

namespace detail {

/// `kPart`: some experts are elsewhere.
template <class T, bool kPart>
struct CombineExperts {
  MatrixView<const T> y;
  MatrixView<const float> weights;
  MatrixView<const std::int32_t> ids;
  LocalExperts local;
  MatrixView<T> out;
  bool accumulate;

  template <bool kWhole>
  __device__ __forceinline__ void run(const VectorPlace& at) const {
    const auto [row, column, count] = at;
    const auto k = static_cast<std::uint32_t>(weights.extent(1));
    float sum[kVecSize<T>] = {};
#pragma unroll 4
    for (std::uint32_t s = 0; s < k; ++s) {
      if (kPart && !local.contains(*static_cast<const volatile std::int32_t*>(ids.at(row, s))))
        continue;
      const float weight = *static_cast<const volatile float*>(weights.at(row, s));
      float values[kVecSize<T>];
      unpack<T>(load_first<kWhole>(y.at(row * k + s, column), count), values);
#pragma unroll
      for (int i = 0; i < kVecSize<T>; ++i) sum[i] = __fmaf_rn(weight, values[i], sum[i]);
    }
    uint4 result = pack<T>(sum);
    if (accumulate) result = add_vectors<T>(result, load_first<kWhole>(out.at(row, column), count));
    store_first<kWhole>(out.at(row, column), count, result);
  }
};

}  // namespace detail

/// Enqueues the sums out[i] = Σ_s weights[i, s] · y[i · k + s], in float32, in the order of slots,
/// rounded once; or that added to out[i], and rounded again. With `has_part`, slots whose expert is
/// not among `local` add nothing, and their rows of y are not read. y [n · k, width], weights and
/// ids [n, k], out [n, width].
template <Element T>
void combine_experts(const MatrixView<const T>& y, const MatrixView<const float>& weights,
                     const MatrixView<const std::int32_t>& ids, const LocalExperts& local,
                     bool has_part, const MatrixView<T>& out, bool accumulate,
                     const Context& context) {
  const auto run = [&](auto part) {
    for_each_vector<T>(
        "expert_mlp", out.extent(0), out.extent(1), has_whole_rows(y) && has_whole_rows(out),
        detail::CombineExperts<T, part>{y, weights, ids, local, out, accumulate}, context);
  };
  has_part ? run(std::true_type{}) : run(std::false_type{});
}

}  // namespace nanovllm::cuda
