#pragma once
/// `ordered_linear` with SwiGLU behind (sm_90a):
///
///   out[m, j] = round(silu(round(g))) · round(u),  [g | u] = x · Wᵀ
///
/// x [M, K], W [2 · width, K] with gates first, out [M, width]; T is bf16 or half. K and width are
/// multiples of 8; else operands as `ordered_linear`'s.
///
/// g and u are chains in the order of `ordered_linear`, rounded to T as it rounds them, and what
/// follows is `silu_mul`'s arithmetic, instruction for instruction: the bits are those of the two
/// ops in turn, for any number of rows.
///
/// A tile of W has gates and ups in turn, 8 rows each (ordered_ring.cuh): rows g and g + 8 of a
/// product, whose sums one thread has, are an output's gate and up.
///
/// Bytes moved: as `ordered_linear`, and of its result a half. What it saves is the other half,
/// what `silu_mul` would read, and a kernel.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/batch_invariant/linear/ordered_linear.cuh"
#include "nanovllm/cuda/batch_invariant/linear/ordered_ring.cuh"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// round(silu(round(g))) · round(u) with silu(x) = x / (1 + e^-x).
template <class T>
__device__ __forceinline__ T swiglu_of_sums(float g, float u) {
  g = to_float(from_float<T>(g));
  u = to_float(from_float<T>(u));
  const float activated = to_float(from_float<T>(__fdividef(g, 1.f + __expf(-g))));
  return from_float<T>(activated * u);
}

/// What a thread has of a tile's outputs, of their gates and ups in `sum`.
template <class Traits, class T>
__device__ __forceinline__ void store_swiglu(
    const OrderedParams<T>& p, const float (&sum)[Traits::kParts][Traits::kWideTokens / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;  // has 16 rows of the tile
  const int column = (static_cast<int>(blockIdx.x) * (Traits::kRows / 16) + warp) * 8 + g;
  if (warp * 16 >= Traits::kRows || column >= p.n) return;
  const int first_token = static_cast<int>(blockIdx.y) * Traits::kTokens + 2 * t;
#pragma unroll
  for (int part = 0; part < Traits::kParts; ++part) {
#pragma unroll
    for (int i = 0; i < Traits::kWideTokens / 2; ++i) {
      const int token = first_token + part * Traits::kWideTokens + i / 4 * 8 + i % 2;
      if (i % 4 >= 2 || token >= p.num_tokens) continue;
      p.y[token * p.y_stride + column] = swiglu_of_sums<T>(sum[part][i], sum[part][i + 2]);
    }
  }
}

/// The body of `ordered_gated_kernel`.
template <class T, int kRows, int kTokens, int kPanels>
__device__ __forceinline__ void ordered_gated_block(const CUtensorMap& w_map,
                                                    const CUtensorMap& x_map,
                                                    const OrderedParams<T>& p) {
  using Traits = OrderedTraits<kRows, kTokens, kPanels, true>;
  extern __shared__ std::byte ordered_shared[];
  __shared__ std::uint64_t full[kOrderedMaxStages], empty[kOrderedMaxStages];
  grid_dependency_launch();
  const OrderedRing<Traits> ring =
      begin_ordered_ring<Traits>(ordered_shared, full, empty, p.stages, 128 * Traits::kGroups);
  if (threadIdx.x >= 128 * Traits::kGroups) return copy_ordered_panels(ring, w_map, x_map, p);
  grid_dependency_wait();  // out may be what the kernel ahead reads
  float sum[Traits::kParts][Traits::kWideTokens / 2] = {};
  multiply_in_order<Traits, T>(ring, p.all_stages, sum);

  store_swiglu<Traits>(p, sum);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: (tiles of rows of W, tiles of rows of x).
template <class T, int kRows, int kTokens, int kPanels>
__global__ void __launch_bounds__(OrderedTraits<kRows, kTokens, kPanels>::kThreads)
    ordered_gated_kernel(const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ CUtensorMap x_map, const OrderedParams<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  ordered_gated_block<T, kRows, kTokens, kPanels>(w_map, x_map, p);
#endif
}

}  // namespace detail

/// Whether `ordered_gated_linear` takes these operands.
template <Element T>
[[nodiscard]] bool ordered_gated_linear_takes(const MatrixView<const T>& x,
                                              const MatrixView<const T>& weight,
                                              const Context& context) {
  return weight.extent(0) % 16 == 0 && ordered_linear_takes(x, weight, context);
}

/// The op for operands that `ordered_gated_linear_takes`, by blocks of a shape of
/// kOrderedGatedBlocks; the shape changes the time and not the result. Throws ConfigError for
/// another. Stages and `maps` as for `ordered_linear`. No operand is empty.
template <MmaElement T>
void ordered_gated_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MatrixView<T>& out, OrderedBlock block, TensorMaps& maps,
                          const Context& context) {
  check<ConfigError>(has_ordered_gated_block(block), "ordered_gated_linear: no block has ",
                     block.rows, " rows of W and ", block.tokens, " of x");
  const bool wide = block.panels > 1 && weight.extent(1) % kOrderedColumns == 0;
  const auto launch_tokens = [&]<int kTokens>() {
    const auto launch_panels = [&]<int kPanels>() {
      detail::launch_ordered<detail::OrderedTraits<64, kTokens, kPanels, true>>(
          detail::ordered_gated_kernel<T, 64, kTokens, kPanels>, x, weight, out, false, maps,
          context);
    };
    wide ? launch_panels.template operator()<kOrderedPanels>()
         : launch_panels.template operator()<1>();
  };
  switch (block.tokens) {
    case 8: return launch_tokens.template operator()<8>();
    case 16: return launch_tokens.template operator()<16>();
    case 32: return launch_tokens.template operator()<32>();
    default: return launch_tokens.template operator()<64>();
  }
}

}  // namespace nanovllm::cuda
