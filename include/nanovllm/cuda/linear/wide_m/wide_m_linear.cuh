#pragma once
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/wide_m/kernel.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"

namespace nanovllm::cuda {
namespace detail {
template <class Traits, class T>
void launch_wide_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                   const MatrixView<T>& y, bool accumulate, int next, TensorMaps& maps,
                   const Context& context) {
  const std::int64_t m = x.extent(0), n = y.extent(1), k = weight.extent(1);
  const CUtensorMap w_map =
      maps.get<T, 2>(weight.data, {k, weight.extent(0)}, {k}, {kTmaColumns, Traits::kBoxRows});
  const CUtensorMap x_map =
      maps.get<T, 2>(x.data, {k, m}, {m == 1 ? k : x.strides[0]},
                     {kTmaColumns, Traits::kTokens / Traits::kBlock.share_x});
  const std::int64_t token_groups = ceil_div(m, std::int64_t{Traits::kTokens * Traits::kBlock.share_w});
  const std::int64_t groups =
      token_groups * ceil_div(n, std::int64_t{Traits::kColumns * Traits::kBlock.share_x});
  const WideMParams<T> params{.y = y.data,
                              .y_stride = y.strides[0],
                              .num_tokens = static_cast<std::int32_t>(m),
                              .n = static_cast<std::int32_t>(n),
                              .panels = static_cast<std::int32_t>(ceil_div(k, std::int64_t{kTmaColumns})),
                              .token_groups = static_cast<std::int32_t>(token_groups),
                              .accumulate = accumulate,
                              .next = next};
  launch(wide_m_kernel<T, Traits>,
         {.grid = dim3(static_cast<unsigned>(groups * Traits::kCluster)),
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::kSharedBytes),
          .cluster = Traits::kCluster},
         context, w_map, x_map, params);
}
}  // namespace detail
}  // namespace nanovllm::cuda
