#pragma once
/// A dense layer on some tens of rows of x, by wgmma and TMA (sm_90a), K split over a cluster.
///
///   y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///
/// x [M, K] and W [N, K] with 16-byte aligned rows; y [M, N], any alignment; T is bf16 or half, y
/// is T or float.
///
/// A block owns 64 rows of W, 32, 64 or 128 rows of x and a share of K so small that both operands
/// fit into shared memory at once: there is no ring, all copies start at once, those of W before
/// the kernel ahead has ended. W is the A operand (m = 64), x the B operand (n = rows of x), both
/// in panels of 64 columns as wgmma reads them. The blocks of a cluster share K; each then adds up
/// a share of the rows of x from the shared memory of all, in the order of K, and writes y.
///
/// Sums are in float32 and in an order that depends on K and on the size of the cluster alone.
///
/// Bytes moved: W once for each 128 rows of x; x once for each 64 rows of W (from L2); y once.

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Shapes of a block: `kTokens` rows of x, one of `kSplit` shares of K.
template <int kTokens, int kSplit>
struct ClusterTraits {
  static constexpr int kThreads = 128;  ///< a warpgroup
  static constexpr int kRows = kClusterRows;
  static constexpr int kMaxPanels = kClusterMaxPanels;
  static constexpr int kRowBytes = kClusterColumns * 2;
  static constexpr int kWeightBytes = kRows * kRowBytes;  ///< of a panel
  static constexpr int kXBytes = kTokens * kRowBytes;
  static constexpr int kPanelBytes = kWeightBytes + kXBytes;
  static constexpr int kAlignment = kClusterAlignment;
  static_assert(kClusterColumns == kTmaColumns);

  /// Partial sums take the place of the panels: part[token][row]. The pitch keeps the writes of a
  /// warp in different banks and rows 16-byte aligned.
  static constexpr int kPitch = kRows + 4;
  static constexpr int kPartBytes = kTokens * kPitch * 4;
  static constexpr int kShare = kTokens / kSplit;  ///< rows of x a block adds up
  /// Sets of four outputs of a thread; where there are fewer than threads, some have none.
  static constexpr int kQuads = std::max(1, kShare* kRows / 4 / kThreads);

  static constexpr int shared_bytes(int panels) {
    return std::max(panels * kPanelBytes, kPartBytes) + kAlignment;
  }
};

/// Where results go, by value.
template <class Out>
struct ClusterParams {
  Out* y;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;
  std::int32_t panels;  ///< of a block
  bool accumulate;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The products of a block: waits for its panels as they come in, each counted by its barrier.
template <class Traits, class T, int kSize>
__device__ __forceinline__ void multiply_panels(float (&sum)[kSize], const std::byte* panels,
                                                int num_panels, std::uint64_t* full) {
  for (int i = 0; i < num_panels; ++i) {
    mbarrier_wait(full[i], 0);
    wgmma_fence();
    const WgmmaOperand w = wgmma_operand(panels + i * Traits::kWeightBytes, 0);
    const WgmmaOperand x =
        wgmma_operand(panels + num_panels * Traits::kWeightBytes + i * Traits::kXBytes, 0);
#pragma unroll
    for (int step = 0; step < 4; ++step)  // of 16 columns
      wgmma<T, true>(sum, w.plus(32 * step), x.plus(32 * step));
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_hold(sum);
}

/// Writes a thread's sums to part[token][row].
template <class Traits, int kSize>
__device__ __forceinline__ void store_part(const float (&sum)[kSize], float* part) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const int token = i / 4 * 8 + 2 * t + i % 2;
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + g + i % 4 / 2 * 8;
    part[token * Traits::kPitch + row] = sum[i];
  }
}

/// The body of `cluster_linear_kernel`.
template <class T, class Out, int kTokens, int kSplit>
__device__ __forceinline__ void cluster_linear_block(const CUtensorMap& w_map,
                                                     const CUtensorMap& x_map,
                                                     const ClusterParams<Out>& p) {
  using Traits = ClusterTraits<kTokens, kSplit>;
  extern __shared__ std::byte cluster_shared[];
  __shared__ std::uint64_t full[Traits::kMaxPanels];
  const std::uint32_t begin = shared_address(cluster_shared);
  std::byte* const panels = cluster_shared + (align_up(begin, Traits::kAlignment) - begin);
  const int rank = static_cast<int>(blockIdx.x);  // the cluster lies along x
  const int first_row = static_cast<int>(blockIdx.y) * Traits::kRows;
  const int first_token = static_cast<int>(blockIdx.z) * kTokens;
  const int first_column = rank * p.panels * kTmaColumns;
  grid_dependency_launch();
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.panels; ++i) mbarrier_init(full[i], 1);
    mbarrier_init_fence();
    for (int i = 0; i < p.panels; ++i) {
      mbarrier_arrive_expect(full[i], Traits::kPanelBytes);
      tma_load(panels + i * Traits::kWeightBytes, w_map,
               {first_column + i * kTmaColumns, first_row}, full[i]);
    }
  }
  __syncthreads();
  grid_dependency_wait();
  if (threadIdx.x == 0) {
    async_proxy_fence_global();
    for (int i = 0; i < p.panels; ++i) {
      tma_load(panels + p.panels * Traits::kWeightBytes + i * Traits::kXBytes, x_map,
               {first_column + i * kTmaColumns, first_token}, full[i]);
    }
  }
  // Thread i adds up four rows of W for some rows of x. Their old y is loaded here, because nothing
  // waits for it yet.
  const int row = static_cast<int>(threadIdx.x) % 16 * 4;
  const int token = rank * Traits::kShare + static_cast<int>(threadIdx.x) / 16;
  const int end = (rank + 1) * Traits::kShare;
  float out[Traits::kQuads][4] = {};
  const auto each_output = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < Traits::kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int m = first_token + token + 8 * i, n = first_row + row + j;
        if (token + 8 * i < end && m < p.num_tokens && n < p.n)
          use(p.y[m * p.y_stride + n], out[i][j]);
      }
    }
  };
  if (p.accumulate) each_output([](const Out& y, float& value) { value = to_float(y); });

  float sum[kTokens / 2] = {};
  multiply_panels<Traits, T>(sum, panels, p.panels, full);
  __syncthreads();  // all have read their panels
  store_part<Traits>(sum, reinterpret_cast<float*>(panels));
  cluster_sync();
#pragma unroll
  for (int i = 0; i < Traits::kQuads; ++i) {
    const std::uint32_t from =
        shared_address(panels) +
        static_cast<std::uint32_t>((token + 8 * i) * Traits::kPitch + row) * 4;
    float4 total = load_cluster_quad(from, 0);
#pragma unroll
    for (int s = 1; s < kSplit; ++s) {
      const float4 part = load_cluster_quad(from, s);
      total = {total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
    }
    out[i][0] += total.x;
    out[i][1] += total.y;
    out[i][2] += total.z;
    out[i][3] += total.w;
  }
  each_output([](Out& y, float value) { y = from_float<Out>(value); });
  cluster_sync();  // a block stays while others read its shared memory
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// The attribute is an error for architectures that have no clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NANOVLLM_CLUSTER_ALONG_X(size)
#else
#define NANOVLLM_CLUSTER_ALONG_X(size) __cluster_dims__(size, 1, 1)
#endif

/// Grid: (kSplit, tiles of rows of W, tiles of rows of x), clusters along x.
template <class T, class Out, int kTokens, int kSplit>
__global__ void NANOVLLM_CLUSTER_ALONG_X(kSplit)
    __launch_bounds__(ClusterTraits<kTokens, kSplit>::kThreads)
        cluster_linear_kernel(const __grid_constant__ CUtensorMap w_map,
                              const __grid_constant__ CUtensorMap x_map,
                              const ClusterParams<Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  cluster_linear_block<T, Out, kTokens, kSplit>(w_map, x_map, p);
#endif
}

#undef NANOVLLM_CLUSTER_ALONG_X

}  // namespace detail

/// Whether `cluster_linear` takes these operands with clusters of `split` blocks.
template <Element T>
[[nodiscard]] bool cluster_linear_takes(const MatrixView<const T>& x,
                                        const MatrixView<const T>& weight, int split,
                                        const Context& context) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    const std::int64_t m = x.extent(0);
    return context.is_hopper() && is_vector_aligned(weight.data) &&
           (m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) &&
           fits_cluster_linear(m, weight.extent(0), weight.extent(1), split,
                               static_cast<std::int64_t>(context.max_shared_bytes));
  }
}

namespace detail {

template <class T, class Out, int kTokens, int kSplit>
void launch_cluster_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                           const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                           const Context& context) {
  using Traits = ClusterTraits<kTokens, kSplit>;
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  const CUtensorMap w_map = maps.get<T, 2>(weight.data, {k, n}, {k}, {kTmaColumns, Traits::kRows});
  const CUtensorMap x_map =
      maps.get<T, 2>(x.data, {k, m}, {m == 1 ? k : x.strides[0]}, {kTmaColumns, kTokens});
  const int panels = static_cast<int>(cluster_panels(k, kSplit));
  const ClusterParams<Out> params{.y = y.data,
                                  .y_stride = y.strides[0],
                                  .num_tokens = static_cast<std::int32_t>(m),
                                  .n = static_cast<std::int32_t>(n),
                                  .panels = panels,
                                  .accumulate = accumulate};
  const dim3 grid(kSplit, static_cast<unsigned>(ceil_div(n, Traits::kRows)),
                  static_cast<unsigned>(ceil_div(m, kTokens)));
  launch(cluster_linear_kernel<T, Out, kTokens, kSplit>,
         {.grid = grid,
          .block = dim3(Traits::kThreads),
          .shared_bytes = static_cast<std::size_t>(Traits::shared_bytes(panels))},
         context, w_map, x_map, params);
}

template <class T, class Out, int kSplit, std::int64_t kMostRows>
void launch_cluster_split(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                          const Context& context) {
  const auto launch_tokens = [&]<int kTokens>() {
    launch_cluster_linear<T, Out, kTokens, kSplit>(x, weight, y, accumulate, maps, context);
  };
  const int tokens = cluster_tokens(x.extent(0));
  if (tokens == 32) return launch_tokens.template operator()<32>();
  if constexpr (kMostRows > 32) {
    if (tokens == 64) return launch_tokens.template operator()<64>();
    return launch_tokens.template operator()<128>();
  }
}

}  // namespace detail

/// y = x · Wᵀ (+ y) for operands that `cluster_linear_takes`, by clusters of `split` blocks, one of
/// kClusterSplits. `maps` keeps the descriptions of x and W for later calls. No operand is empty.
/// Throws ShapeError where x has more than `kMostRows` rows, for which alone the kernels are compiled,
/// ConfigError for another split.
template <MmaElement T, Element Out, std::int64_t kMostRows = kMaxLinearExtent>
void cluster_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                    const MatrixView<Out>& y, bool accumulate, int split, TensorMaps& maps,
                    const Context& context) {
  check<ShapeError>(x.extent(0) <= kMostRows, "cluster_linear: x must have at most ", kMostRows,
                    " rows, got ", x.extent(0));
  const auto launch_split = [&]<int kSplit>() {
    detail::launch_cluster_split<T, Out, kSplit, kMostRows>(x, weight, y, accumulate, maps,
                                                            context);
  };
  switch (split) {
    case 2: return launch_split.template operator()<2>();
    case 4: return launch_split.template operator()<4>();
    case 8: return launch_split.template operator()<8>();
    default: throw ConfigError(concat("cluster_linear: split must be 2, 4 or 8, got ", split));
  }
}

}  // namespace nanovllm::cuda
