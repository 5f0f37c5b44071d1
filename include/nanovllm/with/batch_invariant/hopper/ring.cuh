#pragma once
/// What the kernels of one order of summation share: the ring of panels in shared memory, the warp
/// that fills it by TMA, and their launch (sm_90a).
///
/// A `Traits` says what a block is: kRows rows of W and kTokens of x; kWeightBytes, kXBytes and
/// kPanelBytes of a panel of 64 columns; kPanels of a stage, which one copy of either operand
/// brings (panels are the last dimension of its map); kSlackBytes after the last panel of W;
/// kThreads; shared_bytes(stages).

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/with/batch_invariant/hopper/tuning.hpp"

namespace nanovllm::cuda::detail {

/// Where results go, by value.
template <class Out>
struct BatchInvariantParams {
  Out* y;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;           ///< columns of y
  std::int32_t all_stages;  ///< that K takes
  std::int32_t stages;      ///< of the ring
  bool accumulate;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The ring of panels in shared memory.
template <class Traits>
struct BatchInvariantRing {
  std::byte* weights;  ///< [stages][kPanels][kWeightBytes]
  std::byte* x;        ///< [stages][kPanels][kXBytes]
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
__device__ __forceinline__ void copy_batch_invariant_panels(BatchInvariantRing<Traits> ring,
                                                            const CUtensorMap& w_map,
                                                            const CUtensorMap& x_map,
                                                            const BatchInvariantParams<Out>& p) {
  const bool leads = threadIdx.x % 32 == 0;
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows;
  const int first_token = static_cast<int>(blockIdx.y) * Traits::kTokens;
  const int ahead = min(p.all_stages, ring.stages);
  const auto load = [&](std::byte* to, const CUtensorMap& map, int i, int first, int stage) {
    if constexpr (Traits::kPanels == 1) {
      tma_load(to, map, {i * kTmaColumns, first}, ring.full[stage]);
    } else {
      tma_load(to, map, {0, first, i * Traits::kPanels}, ring.full[stage]);
    }
  };
  const auto load_weights_of = [&](int i, int stage) {
    std::byte* const to = ring.weights + stage * Traits::kPanels * Traits::kWeightBytes;
    load(to, w_map, i, first_row, stage);
  };
  const auto load_x_of = [&](int i, int stage) {
    load(ring.x + stage * Traits::kPanels * Traits::kXBytes, x_map, i, first_token, stage);
  };
  constexpr int kStageBytes = Traits::kPanels * Traits::kPanelBytes;
  if (leads) {
    for (int i = 0; i < ahead; ++i) {
      mbarrier_arrive_expect(ring.full[i], kStageBytes);
      load_weights_of(i, i);
    }
  }
  grid_dependency_wait();
  if (!leads) return;
  async_proxy_fence_global();
  for (int i = 0; i < ahead; ++i) load_x_of(i, i);
  for (int i = ahead; i < p.all_stages; ++i) {
    mbarrier_wait(ring.empty[ring.stage], ring.parity);
    mbarrier_arrive_expect(ring.full[ring.stage], kStageBytes);
    load_weights_of(i, ring.stage);
    load_x_of(i, ring.stage);
    ring.advance();
  }
}

/// Makes the ring in a block's shared memory; `consumers` arrivals empty a stage. Contains a
/// barrier.
template <class Traits>
__device__ __forceinline__ BatchInvariantRing<Traits> begin_batch_invariant_ring(
    std::byte* shared, std::uint64_t* full, std::uint64_t* empty, int stages, int consumers) {
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
  return {panels, panels + stages * Traits::kPanels * Traits::kWeightBytes + Traits::kSlackBytes,
          full, empty, stages};
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// The map of W [rows, k], and of x, for blocks of `Traits`; a copy brings `box` rows.
template <class Traits, class T>
[[nodiscard]] CUtensorMap batch_invariant_map(TensorMaps& maps, const T* data, std::int64_t rows,
                                              std::int64_t k, std::int64_t stride, int box) {
  if constexpr (Traits::kPanels == 1) {
    return maps.get<T, 2>(data, {k, rows}, {stride}, {kTmaColumns, box});
  } else {
    return maps.get<T, 3>(data, {kTmaColumns, rows, k / kTmaColumns}, {stride, kTmaColumns},
                          {kTmaColumns, box, Traits::kPanels});
  }
}

/// Launches one of the kernels on blocks of `Traits`.
template <class Traits, class T, class Out>
void launch_batch_invariant(void (*kernel)(CUtensorMap, CUtensorMap, BatchInvariantParams<Out>),
                            const MatrixView<const T>& x, const MatrixView<const T>& weight,
                            const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                            const Context& context) {
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  const CUtensorMap w_map = batch_invariant_map<Traits>(maps, weight.data, n, k, k, Traits::kRows);
  const CUtensorMap x_map =
      batch_invariant_map<Traits>(maps, x.data, m, k, m == 1 ? k : x.strides[0], Traits::kTokens);
  const dim3 grid(static_cast<unsigned>(ceil_div(n, Traits::kRows)),
                  static_cast<unsigned>(ceil_div(m, Traits::kTokens)));
  const int all_stages = static_cast<int>(ceil_div(k, kTmaColumns * Traits::kPanels));
  const int stages = batch_invariant_stages(
      std::int64_t{grid.x} * grid.y, all_stages, Traits::kPanels * Traits::kPanelBytes,
      Traits::kSlackBytes + Traits::kAlignment, context.num_sms,
      static_cast<std::int64_t>(context.max_shared_bytes));
  const BatchInvariantParams<Out> params{.y = y.data,
                                         .y_stride = y.strides[0],
                                         .num_tokens = static_cast<std::int32_t>(m),
                                         .n = static_cast<std::int32_t>(y.extent(1)),
                                         .all_stages = all_stages,
                                         .stages = stages,
                                         .accumulate = accumulate};
  launch(kernel,
         {.grid = grid,
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::shared_bytes(stages))},
         context, w_map, x_map, params);
}

}  // namespace nanovllm::cuda::detail
