#pragma once
/// A dense layer whose sums have one order for any number of rows of x, by wgmma and TMA (sm_90a).
///
///   y[m, n] = Σ_k x[m, k] · W[n, k]
///
/// With `accumulate` the rounded sum is added to y, and that is rounded, as `add_rms_norm` does it.
///
/// x [M, K] and W [N, K] with 16-byte aligned rows; y [M, N], any alignment; T is bf16 or half, y
/// is T or float.
///
/// The order. An output is one chain of products of 16 columns, m64nNk16 after m64nNk16 from
/// column 0 to column K, in one float32 register; K is never split. What a block's shape changes is
/// which outputs stand beside each other in one instruction, and the tensor core gives each of them
/// what it would get alone. So a row's bits depend on the row and on W: neither on M, nor on the
/// row's place, nor on the shape of the blocks.
///
/// Blocks. W is the A operand (64 rows an instruction), x the B operand (n = rows of x). A block
/// owns `rows` of W and `tokens` of x and passes through K in panels of 64 columns. One thread of a
/// separate warp copies them ahead into a ring, one panel or four at a time: with few rows, fewer
/// and larger copies take less time. Weights of the first panels are on their way before the kernel
/// ahead has ended. Where N is small, blocks own 32 rows of W, for there would be too few of them:
/// the instruction then reads what lies after them in shared memory, and those outputs are
/// dropped. Blocks of 128 rows of W have two warpgroups.
///
/// Bytes moved: W once for each `tokens` rows of x; x once for each `rows` rows of W (from L2); y
/// once.
/// Measured: batch_invariant_bench, cuda_batch_invariant_linear.json, needed by the mode: 49.2 us
/// for gate_up of 8B (1 row), 4.09 TB/s; 3.2 for o of 0.6B, where the default takes 2.4.

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/batch_invariant/hopper/tuning.hpp"

namespace nanovllm::cuda {
namespace detail {

// The ring of panels in shared memory, the warp that fills it by TMA, and the launch. A `Traits`
// says what a block is: kRows rows of W and kTokens of x; kWeightBytes, kXBytes and kPanelBytes of
// a panel of 64 columns; kPanels of a stage, which one copy of either operand brings (panels are
// the last dimension of its map); kSlackBytes after the last panel of W; kThreads;
// shared_bytes(stages).

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

/// A block of `kRows` rows of W and `kTokens` rows of x; a stage of its ring has `kPanels` panels.
template <int kRowsValue, int kTokensValue, int kPanelsValue>
struct BatchInvariantTraits {
  static constexpr int kRows = kRowsValue, kTokens = kTokensValue, kPanels = kPanelsValue;
  static constexpr int kGroups = std::max(1, kRows / 64);     ///< warpgroups that multiply
  static constexpr int kThreads = 128 * kGroups + 32;         ///< and the warp that copies
  static constexpr int kWideTokens = std::min(kTokens, 128);  ///< columns of an instruction
  static constexpr int kParts = kTokens / kWideTokens;
  static constexpr int kWeightBytes = kRows * kBatchInvariantColumns * 2;  ///< of a panel
  static constexpr int kXBytes = kTokens * kBatchInvariantColumns * 2;
  static constexpr int kPanelBytes = kWeightBytes + kXBytes;
  /// What an instruction reads after the last panel of fewer than 64 rows.
  static constexpr int kSlackBytes = std::max(0, 64 - kRows) * kBatchInvariantColumns * 2;
  static constexpr int kAlignment = kBatchInvariantAlignment;
  static_assert(kBatchInvariantColumns == kTmaColumns);

  static constexpr int shared_bytes(int stages) {
    return stages * kPanels * kPanelBytes + kSlackBytes + kAlignment;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Adds the products of all panels, in the order of K.
template <class Traits, class T>
__device__ __forceinline__ void multiply_in_order(
    BatchInvariantRing<Traits> ring, int num_stages,
    float (&sum)[Traits::kParts][Traits::kWideTokens / 2]) {
  // Shuffled, so that the compiler sees that all lanes agree and keeps operands in uniform
  // registers.
  const int group =
      Traits::kGroups == 1 ? 0 : __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const WgmmaOperand weights = wgmma_operand(ring.weights + group * 64 * kTmaColumns * 2, 0);
  const WgmmaOperand rows = wgmma_operand(ring.x, 0);
  int release = 0;  // the stage that is done with next
  for (int i = 0; i < num_stages; ++i) {
    mbarrier_wait(ring.full[ring.stage], ring.parity);
    const WgmmaOperand w = weights.plus(ring.stage * Traits::kPanels * Traits::kWeightBytes);
    const WgmmaOperand x = rows.plus(ring.stage * Traits::kPanels * Traits::kXBytes);
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {  // of 16 columns
#pragma unroll
        for (int part = 0; part < Traits::kParts; ++part)
          wgmma<T, true>(sum[part], w.plus(panel * Traits::kWeightBytes + 32 * step),
                         x.plus(panel * Traits::kXBytes +
                                part * Traits::kWideTokens * kTmaColumns * 2 + 32 * step));
      }
    }
    wgmma_commit();
    wgmma_wait<kBatchInvariantPending>();
    ring.advance();
    if (i >= kBatchInvariantPending) {
      mbarrier_arrive(ring.empty[release]);
      if (++release == ring.stages) release = 0;
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (auto& part : sum) wgmma_hold(part);
}

/// Visits the outputs of a thread that exist: visit(part, i, y) for sum[part][i].
template <class Traits, class Out, class Visit>
__device__ __forceinline__ void for_each_batch_invariant_output(const BatchInvariantParams<Out>& p,
                                                                const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int local = static_cast<int>(threadIdx.x) / 32 * 16 + g;  // row of the block
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows + local;
  const int first_token = static_cast<int>(blockIdx.y) * Traits::kTokens + 2 * t;
#pragma unroll
  for (int part = 0; part < Traits::kParts; ++part) {
#pragma unroll
    for (int i = 0; i < Traits::kWideTokens / 2; ++i) {
      const int token = first_token + part * Traits::kWideTokens + i / 4 * 8 + i % 2;
      const int shift = i % 4 / 2 * 8, row = first_row + shift;
      if (token >= p.num_tokens || row >= p.n || local + shift >= Traits::kRows) continue;
      visit(part, i, p.y[token * p.y_stride + row]);
    }
  }
}

/// The body of `batch_invariant_linear_kernel`.
template <class T, class Out, int kRows, int kTokens, int kPanels>
__device__ __forceinline__ void batch_invariant_linear_block(const CUtensorMap& w_map,
                                                             const CUtensorMap& x_map,
                                                             const BatchInvariantParams<Out>& p) {
  using Traits = BatchInvariantTraits<kRows, kTokens, kPanels>;
  extern __shared__ std::byte batch_invariant_shared[];
  __shared__ std::uint64_t full[kBatchInvariantMaxStages], empty[kBatchInvariantMaxStages];
  grid_dependency_launch();
  const BatchInvariantRing<Traits> ring = begin_batch_invariant_ring<Traits>(
      batch_invariant_shared, full, empty, p.stages, 128 * Traits::kGroups);
  if (threadIdx.x >= 128 * Traits::kGroups)
    return copy_batch_invariant_panels(ring, w_map, x_map, p);
  grid_dependency_wait();  // y may be what the kernel ahead reads
  // With few rows of x the old y is read behind the weights' backs.
  constexpr bool kReadsAhead = kTokens <= 32;
  float before[kReadsAhead ? Traits::kWideTokens / 2 : 1] = {};
  if (kReadsAhead && p.accumulate) {
    for_each_batch_invariant_output<Traits>(
        p, [&](int, int i, const Out& y) { before[kReadsAhead ? i : 0] = to_float(y); });
  }
  float sum[Traits::kParts][Traits::kWideTokens / 2] = {};
  multiply_in_order<Traits, T>(ring, p.all_stages, sum);
  for_each_batch_invariant_output<Traits>(p, [&](int part, int i, Out& y) {
    const Out product = from_float<Out>(sum[part][i]);
    if (!p.accumulate) {
      y = product;
    } else {
      const float old = kReadsAhead ? before[kReadsAhead ? i : 0] : to_float(y);
      y = from_float<Out>(__fadd_rn(old, to_float(product)));
    }
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: (tiles of rows of W, tiles of rows of x).
template <class T, class Out, int kRows, int kTokens, int kPanels>
__global__ void __launch_bounds__(BatchInvariantTraits<kRows, kTokens, kPanels>::kThreads)
    batch_invariant_linear_kernel(const __grid_constant__ CUtensorMap w_map,
                                  const __grid_constant__ CUtensorMap x_map,
                                  const BatchInvariantParams<Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  batch_invariant_linear_block<T, Out, kRows, kTokens, kPanels>(w_map, x_map, p);
#endif
}

template <class T, class Out, int kRows, int kTokens, int kPanels>
void launch_batch_invariant_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                                   const MatrixView<Out>& y, bool accumulate, TensorMaps& maps,
                                   const Context& context) {
  launch_batch_invariant<BatchInvariantTraits<kRows, kTokens, kPanels>>(
      batch_invariant_linear_kernel<T, Out, kRows, kTokens, kPanels>, x, weight, y, accumulate,
      maps, context);
}

}  // namespace detail

/// Whether `batch_invariant_linear` takes these operands.
template <Element T>
[[nodiscard]] bool batch_invariant_linear_takes(const MatrixView<const T>& x,
                                                const MatrixView<const T>& weight) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    const std::int64_t m = x.extent(0);
    return is_vector_aligned(weight.data) &&
           (m == 1 ? is_vector_aligned(x.data) : has_aligned_rows(x)) &&
           fits_batch_invariant_linear(m, weight.extent(0), weight.extent(1));
  }
}

/// y = x · Wᵀ (+ y) for operands that `batch_invariant_linear_takes`, by blocks of a shape that
/// `has_batch_invariant_block`; the shape changes the time and not the result. Stages of several
/// panels need a K that is a multiple of 64, and have one for others. `maps` keeps the
/// descriptions of x and W for later calls. No operand is empty.
template <MmaElement T, Element Out>
void batch_invariant_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                            const MatrixView<Out>& y, bool accumulate, BatchInvariantBlock block,
                            TensorMaps& maps, const Context& context) {
  const auto launch_block = [&]<int kRows, int kTokens, int kPanels>() {
    detail::launch_batch_invariant_linear<T, Out, kRows, kTokens, kPanels>(x, weight, y, accumulate,
                                                                           maps, context);
  };
  const auto launch_tokens = [&]<int kRows, int kPanels>() {
    switch (block.tokens) {
      case 8: return launch_block.template operator()<kRows, 8, kPanels>();
      case 16: return launch_block.template operator()<kRows, 16, kPanels>();
      case 32: return launch_block.template operator()<kRows, 32, kPanels>();
      default: return launch_block.template operator()<kRows, 64, kPanels>();
    }
  };
  check<ConfigError>(has_batch_invariant_block(block), "batch_invariant_linear: no block has ",
                     block.rows, " rows of W and ", block.tokens, " of x");
  if (block.tokens == 256) return launch_block.template operator()<128, 256, 1>();
  if (block.tokens == 128) return launch_block.template operator()<64, 128, 1>();
  const bool wide = block.panels > 1 && weight.extent(1) % kBatchInvariantColumns == 0;
  if (block.rows == 64) {
    return wide ? launch_tokens.template operator()<64, kBatchInvariantPanels>()
                : launch_tokens.template operator()<64, 1>();
  }
  return wide ? launch_tokens.template operator()<32, kBatchInvariantPanels>()
              : launch_tokens.template operator()<32, 1>();
}

}  // namespace nanovllm::cuda
