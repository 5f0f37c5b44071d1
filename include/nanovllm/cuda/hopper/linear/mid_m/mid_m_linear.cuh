#pragma once
/// A dense layer on some tens of rows of x with what stands around it, by wgmma and TMA (sm_90a).
///
///   y[m, n] = s[m] · Σ_k round(x[m, k] · norm[k]) · W[n, k]   (+ y[m, n], with `accumulate`)
///   s[m] = rsqrt(mean_k x[m, k]² + eps)                       (with a norm; else s = norm = 1)
/// and, gated, with W [2 · width, K] of gate rows and then up rows, out = silu(g) · u of such sums,
/// with a norm or without.
///
/// x [M ≤ 64, K], 16-byte aligned rows;  W [N, K] dense, 16-byte aligned, K a multiple of 8;
/// y [M, N] (or [M, width]), any alignment; bf16, or without a norm half.
///
/// Gated without a norm x and W may also be of a type of one byte that has scales (`MidMScales`).
///
/// The rows of x are the 64 rows of a wgmma (operand A), rows of W its columns (operand B). A block
/// owns a tile of rows of W, gated as many gate rows as up rows, so that both sums of an output
/// are in one thread. A cluster shares the tile and splits K; at the end each block finishes a
/// share of the columns: the others send it their sums (st.async), and it adds all up in the order
/// of K. A cluster may be one block.
///
/// Panels of 128 bytes of both operands' rows pass through rings in shared memory, one or two
/// panels a stage: with tiles of few rows, one copy for two panels reads W faster. One warp fills
/// the ring of W, before the kernel ahead has ended, one that of x, a warpgroup multiplies, and
/// with a norm another one, between x's arrival and the products, sums up the squares of a panel
/// and multiplies it by the norm's weights in place. No ring is larger than what lets two blocks
/// stand on a multiprocessor: the next kernel's weights arrive while this one works.
///
/// Sums are in float32, and their order depends on K and on the size of the cluster alone.
///
/// Launchers allocate nothing on the device and do not synchronise; all are legal during graph
/// capture. Weights are read before the kernel ahead has ended.
///
/// Bytes moved: W once; x once for each tile of rows of W (from L2); y once.
/// Measured: mid_m_bench, cuda_mid_m.json, a layer without attention of 64 rows 25.4 to 21.2 us
/// (0.6B) and 115.9 to 107.7 (8B).

#include <cuda.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/hopper/linear/mid_m/block.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/part.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/tuning.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/ops/rms_norm.hpp"

namespace nanovllm::cuda {

static_assert(kMidMPanelBytes == kTmaRowBytes);

namespace detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The body of `mid_m_kernel`.
template <class Block, class T, class Out>
__device__ __forceinline__ void mid_m_block(const CUtensorMap& w_map, const CUtensorMap& x_map,
                                            const MidMOperands<T, Out>& p) {
  extern __shared__ std::byte mid_m_shared[];
  using Part = MidMPart<Block, T, Out>;
  const Part part(p, mid_m_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int norm_thread = static_cast<int>(threadIdx.x) - 32 * Block::kNormWarp;
  const bool leads = threadIdx.x % 32 == 0;
  launch_next_early(p.start);
  if (warp == Block::kWeightWarp && leads) {
    part.init_barriers();
    part.start_weights(w_map);
  }
  if (Block::kNorm && warp >= Block::kNormWarp) part.start_norm(norm_thread);
  __syncwarp();
  if constexpr (Block::kSplit > 1)
    cluster_sync();
  else
    __syncthreads();

  if (warp == Block::kWeightWarp) {
    if (leads) part.load_weights(w_map);
  } else if (warp == Block::kXWarp) {
    grid_dependency_wait();
    launch_next_late(p.start);
    if (leads) {
      async_proxy_fence_global();
      part.load_x(x_map);
    }
  } else if (Block::kNorm && warp >= Block::kNormWarp) {
    if constexpr (Block::kNorm) part.apply_norm(norm_thread);
  } else {
    grid_dependency_wait();
    float4 old[Block::kOwned] = {};
    if (!Block::kGated && p.accumulate) part.read_old(old);
    float sum[Part::kSums] = {};
    wgmma_hold(sum);
    if constexpr (MidMScales<T>::kAreThere)
      MidMScales<T>::template multiply<Block>(part, sum);
    else
      part.multiply(sum);
    float4 total[Block::kPushed];
    part.exchange(sum, total);
    part.write(total, old);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: a cluster of kSplit blocks, along x, for each kColumns columns of y. Dynamic shared
/// memory: shared_bytes.
template <class T, class Out, int kRows, int kSplit, int kPanels, bool kNorm, bool kGated>
__global__ void __launch_bounds__(MidMBlock<T, kRows, kSplit, kPanels, kNorm, kGated>::kThreads, 2)
    mid_m_kernel(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ MidMOperands<T, Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  mid_m_block<MidMBlock<T, kRows, kSplit, kPanels, kNorm, kGated>, T, Out>(w_map, x_map, p);
#endif
}

/// Stages of the rings that have room, at most what K takes; 0 or 1 where there is too little.
template <class Block>
[[nodiscard]] int mid_m_stages(int panels, int num_tokens, const Context& context) {
  const auto room =
      static_cast<int>(mid_m_shared_bytes(static_cast<std::int64_t>(context.max_shared_bytes)));
  int stages = panels / Block::kPanels;
  while (stages > 0 && Block::shared_bytes(panels, num_tokens, stages) > room) --stages;
  return stages;
}

/// The map of rows of k elements, of which a copy brings `box` rows of a stage's panels; they are a
/// dimension of it where there are several.
template <int kPanels, class T>
[[nodiscard]] CUtensorMap mid_m_map(TensorMaps& maps, const T* data, std::int64_t rows,
                                    std::int64_t k, std::int64_t stride, int box) {
  constexpr int kColumns = kTmaRowBytes / static_cast<int>(sizeof(T));
  if constexpr (kPanels == 1) {
    return maps.get<T, 2>(data, {k, rows}, {stride}, {kColumns, box});
  } else {
    return maps.get<T, 3>(data, {kColumns, rows, k / kColumns}, {stride, kColumns},
                          {kColumns, box, kPanels});
  }
}

/// Enqueues the product. False, with nothing enqueued, where the rings have too little room, or
/// stages of several panels would not be whole.
template <ProductKind kKind, MidMVariant kForm, bool kNorm = kKind != ProductKind::plain, class T,
          class Out>
bool launch_mid_m(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                  MidMOperands<T, Out> p, TensorMaps& maps, const Context& context) {
  constexpr bool kGated = kKind == ProductKind::gated;
  using Block = MidMBlock<T, kForm.rows, kForm.split, kForm.panels, kNorm, kGated>;
  if (kForm.panels > 1 && p.k % Block::kPanelColumns != 0) return false;
  p.panels =
      static_cast<std::int32_t>(mid_m_panels(p.k * static_cast<std::int64_t>(sizeof(T)), kForm));
  p.stages = mid_m_stages<Block>(p.panels, p.num_tokens, context);
  if (p.stages < std::min(p.panels / kForm.panels, 2)) return false;
  const std::int64_t m = x.extent(0), k = p.k;
  const CUtensorMap w_map = mid_m_map<kForm.panels>(maps, weight.data, weight.extent(0), k, k,
                                                    kGated ? kForm.rows / 2 : kForm.rows);
  const CUtensorMap x_map =
      mid_m_map<kForm.panels>(maps, x.data, m, k, m == 1 ? k : x.strides[0],
                              Block::x_panel_bytes(p.num_tokens) / Block::kRowBytes);
  launch(mid_m_kernel<T, Out, kForm.rows, kForm.split, kForm.panels, kNorm, kGated>,
         {.grid = dim3(
              static_cast<unsigned>(ceil_div(std::int64_t{p.n}, Block::kColumns) * kForm.split)),
          .block = dim3(Block::kThreads),
          .shared_bytes =
              static_cast<std::size_t>(Block::shared_bytes(p.panels, p.num_tokens, p.stages)),
          .cluster = kForm.split,
          .packs_clusters = kForm.packs},
         context, w_map, x_map, p);
  return true;
}

/// The same by a variant's index.
template <ProductKind kKind, class T, class Out>
bool launch_mid_m_variant(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MidMOperands<T, Out>& p, int variant, TensorMaps& maps,
                          const Context& context) {
  return with_variant<kMidMForms.size(kKind)>(variant, [&]<int kVariant>() {
    return launch_mid_m<kKind, kMidMForms.at(kKind, kVariant)>(x, weight, p, maps, context);
  });
}

}  // namespace detail

/// Enqueues the layer by the form `variant`, an index into the forms of its kind. False, with
/// nothing enqueued, when the form does not take these operands. `maps` keeps the descriptions of x
/// and W for later calls; `start` says when the next kernel may start. Throws ShapeError when the
/// norm's weights are not of k elements.
template <class T, class Out>
[[nodiscard]] bool mid_m_linear(const DenseLayer<T, Out>& layer, int variant, TensorMaps& maps,
                                const Context& context, NextStart start = NextStart::after_wait) {
  const MatrixView<const T>&x = layer.x, &weight = layer.weight;
  const MatrixView<Out>& y = layer.y;
  const InputNorm<T>& norm = layer.norm;
  const bool gated = layer.gated;
  const std::int64_t m = x.extent(0), n = weight.extent(0), k = weight.extent(1);
  if (!fits_mid_m(m, n, k) || (gated && n % 2 != 0) || !is_vector_aligned(weight.data) ||
      !(m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) ||
      (norm && !is_vector_aligned(norm.weight.data)))
    return false;
  check_input_norm("mid_m_linear", norm, k);
  detail::MidMOperands<T, Out> p{
      .norm = nullptr,
      .y = y.data,
      .y_stride = y.strides[0],
      .num_tokens = static_cast<std::int32_t>(m),
      .n = static_cast<std::int32_t>(y.extent(1)),
      .k = static_cast<std::int32_t>(k),
      .panels = 0,
      .stages = 0,
      .eps = norm.eps,
      .accumulate = layer.accumulate,
      .y_pairs = reinterpret_cast<std::uintptr_t>(y.data) % 4 == 0 && y.strides[0] % 2 == 0,
      .start = start};
  if (layer.kind() == ProductKind::plain)
    return detail::launch_mid_m_variant<ProductKind::plain>(x, weight, p, variant, maps, context);
  if constexpr (std::same_as<T, bf16>) {
    if (!norm) {
      return variant == kMidMUnnormedGated &&
             detail::launch_mid_m<ProductKind::gated, kMidMGatedVariants[kMidMUnnormedGated],
                                  false>(x, weight, p, maps, context);
    }
    p.norm = norm.weight.data;
    return gated ? detail::launch_mid_m_variant<ProductKind::gated>(x, weight, p, variant, maps,
                                                                    context)
                 : detail::launch_mid_m_variant<ProductKind::normed>(x, weight, p, variant, maps,
                                                                     context);
  }
  return false;
}

}  // namespace nanovllm::cuda
