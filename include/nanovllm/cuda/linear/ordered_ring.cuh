#pragma once
/// What the kernels of one order of summation share: the ring of panels in shared memory, the warp
/// that fills it by TMA, and their launch (sm_90a).
///
/// A `Traits` says what a block is: kRows rows of W and kTokens of x; kWeightBytes, kXBytes and
/// kPanelBytes of a panel of 64 columns; kSlackBytes behind the last panel of W; kThreads;
/// shared_bytes(stages).

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda::detail {

/// Where results go, by value.
template <class Out>
struct OrderedParams {
  Out* y;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;
  std::int32_t panels;  ///< of K
  std::int32_t stages;  ///< of the ring
  bool accumulate;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The ring of panels in shared memory.
template <class Traits>
struct OrderedRing {
  std::byte* weights;  ///< [stages][kWeightBytes]
  std::byte* x;        ///< [stages][kXBytes]
  std::uint64_t* full;
  std::uint64_t* empty;
  int stages;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// The warp that copies: one of its threads fills the ring.
template <class Traits, class Out>
__device__ __forceinline__ void copy_ordered_panels(OrderedRing<Traits> ring,
                                                    const CUtensorMap& w_map,
                                                    const CUtensorMap& x_map,
                                                    const OrderedParams<Out>& p) {
  const bool leads = threadIdx.x % 32 == 0;
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows;
  const int first_token = static_cast<int>(blockIdx.y) * Traits::kTokens;
  const int ahead = min(p.panels, ring.stages);
  const auto load_weights_of = [&](int panel, int stage) {
    tma_load(ring.weights + stage * Traits::kWeightBytes, w_map, {panel * kTmaColumns, first_row},
             ring.full[stage]);
  };
  const auto load_x_of = [&](int panel, int stage) {
    tma_load(ring.x + stage * Traits::kXBytes, x_map, {panel * kTmaColumns, first_token},
             ring.full[stage]);
  };
  if (leads) {
    for (int i = 0; i < ahead; ++i) {
      mbarrier_arrive_expect(ring.full[i], Traits::kPanelBytes);
      load_weights_of(i, i);
    }
  }
  grid_dependency_wait();
  if (!leads) return;
  async_proxy_fence_global();
  for (int i = 0; i < ahead; ++i) load_x_of(i, i);
  for (int i = ahead; i < p.panels; ++i) {
    mbarrier_wait(ring.empty[ring.stage], ring.parity);
    mbarrier_arrive_expect(ring.full[ring.stage], Traits::kPanelBytes);
    load_weights_of(i, ring.stage);
    load_x_of(i, ring.stage);
    ring.advance();
  }
}

/// Makes the ring in a block's shared memory; `consumers` arrivals empty a stage. Contains a barrier.
template <class Traits>
__device__ __forceinline__ OrderedRing<Traits> begin_ordered_ring(std::byte* shared,
                                                                  std::uint64_t* full,
                                                                  std::uint64_t* empty, int stages,
                                                                  int consumers) {
  const std::uint32_t begin = shared_address(shared);
  std::byte* const panels = shared + (align_up(begin, Traits::kAlignment) - begin);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], static_cast<std::uint32_t>(consumers));
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  return {panels, panels + stages * Traits::kWeightBytes + Traits::kSlackBytes, full, empty,
          stages};
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Launches one of the kernels on blocks of `Traits`.
template <class Traits, class T, class Out>
void launch_ordered(void (*kernel)(CUtensorMap, CUtensorMap, OrderedParams<Out>),
                    const MatrixView<const T>& x, const MatrixView<const T>& weight,
                    const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                    const Context& context) {
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  const CUtensorMap w_map = maps.get<T, 2>(weight.data, {k, n}, {k}, {kTmaColumns, Traits::kRows});
  const CUtensorMap x_map =
      maps.get<T, 2>(x.data, {k, m}, {m == 1 ? k : x.strides[0]}, {kTmaColumns, Traits::kTokens});
  const dim3 grid(static_cast<unsigned>(ceil_div(n, Traits::kRows)),
                  static_cast<unsigned>(ceil_div(m, Traits::kTokens)));
  const int panels = static_cast<int>(ceil_div(k, kTmaColumns));
  const int stages = ordered_stages(std::int64_t{grid.x} * grid.y, panels, Traits::kPanelBytes,
                                    Traits::kSlackBytes + Traits::kAlignment, context.num_sms,
                                    static_cast<std::int64_t>(context.max_shared_bytes));
  const OrderedParams<Out> params{.y = y.data,
                                  .y_stride = y.strides[0],
                                  .num_tokens = static_cast<std::int32_t>(m),
                                  .n = static_cast<std::int32_t>(n),
                                  .panels = panels,
                                  .stages = stages,
                                  .accumulate = accumulate};
  launch(kernel,
         {.grid = grid,
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::shared_bytes(stages))},
         context, w_map, x_map, params);
}

}  // namespace nanovllm::cuda::detail
