#pragma once
/// The dense layer of ordered_linear.cuh, with the same order of summation, for few rows of x and
/// few of W: by mma.sync, a warp alone with 8 rows of W.
///
/// A product m16n8k16 of a chain waits about half as long for the one before it as a wgmma does, and
/// that wait, K / 16 times, is what small layers take. x is the A operand (16 rows), W the B operand
/// (8 rows); both come in panels of 64 columns by TMA, into the ring of ordered_linear.cuh, and by
/// ldmatrix into fragments one panel ahead of the products. That mma.sync and wgmma give the same
/// bits is a fact about the hardware and not promised anywhere: ordered_engine.cuh looks before it
/// uses this kernel, and tests/cuda/linear/ordered_linear_test.cu does.
///
/// Bytes moved: as there.

#include <cuda.h>

#include <cstdint>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/ordered_ring.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda::detail {

/// A block of `kRows` rows of W, 8 a warp, and `kTokens` rows of x, a multiple of 16.
template <int kRowsValue, int kTokensValue>
struct OrderedWarpTraits {
  static constexpr int kRows = kRowsValue, kTokens = kTokensValue;
  static constexpr int kWarps = kRows / 8;           ///< that multiply
  static constexpr int kThreads = 32 * kWarps + 32;  ///< and the one that copies
  static constexpr int kTiles = kTokens / 16;
  static constexpr int kWeightBytes = kRows * kClusterColumns * 2;  ///< of a panel
  static constexpr int kXBytes = kTokens * kClusterColumns * 2;
  static constexpr int kPanelBytes = kWeightBytes + kXBytes;
  static constexpr int kSlackBytes = 0;
  static constexpr int kAlignment = kClusterAlignment;

  static constexpr int shared_bytes(int stages) { return stages * kPanelBytes + kAlignment; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A warp's fragments of one panel: 4 steps of 16 columns.
template <class Traits>
struct OrderedFragments {
  std::uint32_t w[2][4];                  ///< two steps each: b[0], b[1] of either
  std::uint32_t x[Traits::kTiles][4][4];  ///< [tile][step]

  __device__ __forceinline__ void load(const OrderedRing<Traits>& ring) {
    const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::uint32_t weights = shared_address(ring.weights) +
                                  static_cast<std::uint32_t>(ring.stage * Traits::kWeightBytes) +
                                  (8 * warp + lane % 8) * 128;
#pragma unroll
    for (std::uint32_t i = 0; i < 2; ++i)
      ldmatrix_x4(w[i], weights + ((4 * i + lane / 8) ^ (lane % 8)) * 16);
    const std::uint32_t rows = shared_address(ring.x) +
                               static_cast<std::uint32_t>(ring.stage * Traits::kXBytes) +
                               lane % 16 * 128;
#pragma unroll
    for (std::uint32_t tile = 0; tile < Traits::kTiles; ++tile) {
#pragma unroll
      for (std::uint32_t step = 0; step < 4; ++step)
        ldmatrix_x4(x[tile][step],
                    rows + tile * 16 * 128 + ((2 * step + lane / 16) ^ (lane % 8)) * 16);
    }
  }

  template <class T>
  __device__ __forceinline__ void multiply(float (&sum)[Traits::kTiles][4]) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int tile = 0; tile < Traits::kTiles; ++tile)
        mma_m16n8k16<T>(sum[tile], x[tile][step], w[step / 2][step % 2 * 2],
                        w[step / 2][step % 2 * 2 + 1]);
    }
  }
};

/// Adds the products of all panels, in the order of K.
template <class Traits, class T>
__device__ __forceinline__ void multiply_by_warps(OrderedRing<Traits> ring, int panels,
                                                  float (&sum)[Traits::kTiles][4]) {
  const bool leads = threadIdx.x % 32 == 0;
  OrderedFragments<Traits> even, odd;
  mbarrier_wait(ring.full[0], 0);
  even.load(ring);
  const auto step = [&](int i, OrderedFragments<Traits>& now, OrderedFragments<Traits>& next) {
    const int done = ring.stage;
    ring.advance();
    if (i + 1 < panels) {
      mbarrier_wait(ring.full[ring.stage], ring.parity);
      next.load(ring);
    }
    now.template multiply<T>(sum);
    __syncwarp();
    if (leads) mbarrier_arrive(ring.empty[done]);
  };
  for (int i = 0; i < panels; i += 2) {
    step(i, even, odd);
    if (i + 1 < panels) step(i + 1, odd, even);
  }
}

/// The body of `ordered_warp_linear_kernel`.
template <class T, class Out, int kRows, int kTokens>
__device__ __forceinline__ void ordered_warp_linear_block(const CUtensorMap& w_map,
                                                          const CUtensorMap& x_map,
                                                          const OrderedParams<Out>& p) {
  using Traits = OrderedWarpTraits<kRows, kTokens>;
  extern __shared__ std::byte ordered_warp_shared[];
  __shared__ std::uint64_t full[kOrderedMaxStages], empty[kOrderedMaxStages];
  grid_dependency_launch();
  const OrderedRing<Traits> ring =
      begin_ordered_ring<Traits>(ordered_warp_shared, full, empty, p.stages, Traits::kWarps);
  if (threadIdx.x >= 32 * Traits::kWarps) return copy_ordered_panels(ring, w_map, x_map, p);
  grid_dependency_wait();  // y may be what the kernel ahead reads
  float sum[Traits::kTiles][4] = {};
  multiply_by_warps<Traits, T>(ring, p.panels, sum);

  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int first_row =
      static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / 32 * 8 + 2 * t;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens + g;
#pragma unroll
  for (int i = 0; i < 4 * Traits::kTiles; ++i) {
    const int token = first_token + i / 4 * 16 + i % 4 / 2 * 8, row = first_row + i % 2;
    if (token >= p.num_tokens || row >= p.n) continue;
    Out& y = p.y[token * p.y_stride + row];
    const float value = sum[i / 4][i % 4];
    y = from_float<Out>(p.accumulate ? to_float(y) + value : value);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: (tiles of rows of W, tiles of rows of x).
template <class T, class Out, int kRows, int kTokens>
__global__ void __launch_bounds__(OrderedWarpTraits<kRows, kTokens>::kThreads)
    ordered_warp_linear_kernel(const __grid_constant__ CUtensorMap w_map,
                               const __grid_constant__ CUtensorMap x_map,
                               const OrderedParams<Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ordered_warp_linear_block<T, Out, kRows, kTokens>(w_map, x_map, p);
#endif
}

/// y = x · Wᵀ (+ y), as `launch_ordered_linear`.
template <class T, class Out, int kRows, int kTokens>
void launch_ordered_warp_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                                const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                                const Context& context) {
  launch_ordered<OrderedWarpTraits<kRows, kTokens>>(
      ordered_warp_linear_kernel<T, Out, kRows, kTokens>, x, weight, y, accumulate, maps, context);
}

}  // namespace nanovllm::cuda::detail
