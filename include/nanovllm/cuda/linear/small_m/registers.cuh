#pragma once
/// A dense layer of up to 16 rows of x by a kernel that reads W straight to registers.
///
///   y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///
/// x [M ≤ 16, K], 16-byte aligned rows;  W [N, K] dense, 16-byte aligned, K a multiple of 8;
/// y [M, N], any alignment; T is bf16 or half, y is T or float.
///
/// The tiles and the order of sums are those of `small_m/kernel.cuh`, so both give the same bits.
/// W is read ahead by two stages, to registers, and x to shared memory. Logits run by this kernel
/// alone.
///
/// Bytes moved: W once, 2 N K; x once for each block (from L2); y once.
/// Measured: engine_bench, cuda_removed_kernels.json, a step of 0.6B with 1 sequence 0.685 to 0.624
/// ms; with 8, and kernels that are gone, 0.850 to 0.795; of 8B 0 to 1% (H100).

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear/layer.cuh"
#include "nanovllm/cuda/linear/small_m/kernel.cuh"
#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/load.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Shapes of a block: `kTiles` tiles of 8 rows of W, up to `kTokens` rows of x (8 or 16).
template <int kTiles, int kTokens>
struct RegistersBlock {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 8 * kTiles;               ///< rows of W
  static constexpr int kGroups = kTokens / 8;            ///< groups of 8 rows of x
  static constexpr int kTokenTiles = (kGroups + 1) / 2;  ///< tiles of 16 rows of x
  static constexpr int kStep = 32;                       ///< columns a warp takes at a time
  static constexpr int kSpan = kWarps * kStep;           ///< columns the block takes at a time
  static constexpr int kSteps = std::max(1, std::min(8 / kTiles, 8 / kGroups));  ///< in a stage
  static constexpr int kStageColumns = kSteps * kSpan;
  static constexpr int kBlocksPerSm = 2;  ///< what registers are limited for

  /// 16-byte vectors of x in one stage: of each step and group, one for each thread.
  static constexpr int kStageVectors = kSteps * kGroups * kThreads;
  /// Row length of the partial sums in shared memory: the 8 tokens of a fragment fall into
  /// different banks.
  static constexpr int kPitch = kTiles == 1 ? kRows : kRows + 8;
  static constexpr int kXBytes = 2 * kStageVectors * 16;
  static constexpr int kSharedBytes = kXBytes + kWarps * kTokens * kPitch * 4;
  static constexpr int kOutputs = (kTokens * kRows + kThreads - 1) / kThreads;  ///< of a thread
};

/// Operands by value. `k` is a multiple of 8.
template <class T, class Out>
struct RegistersOperands {
  const T* x;
  const T* weight;
  Out* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::int32_t num_tokens;
  std::int32_t n;
  std::int32_t k;
  bool accumulate;
};

/// One thread's part in a block's products.
template <class T, int kTiles, int kTokens>
struct RegistersPart {
  using Traits = RegistersBlock<kTiles, kTokens>;
  /// A stage of W: [step][tile], 16 bytes of row g.
  using Weights = uint4[Traits::kSteps][kTiles];

  const T* weight;            ///< row g of the first tile, from column 8t of the warp's
  const T* x;                 ///< row g of x, from the same column
  std::int64_t tile_stride;   ///< from a tile of 8 rows of W to the next
  std::int64_t group_stride;  ///< from a group of 8 rows of x to the next
  std::uint32_t x_shared;     ///< this thread's vectors of x
  int rows_left;              ///< rows of W from the thread's first on
  int tokens_left;            ///< rows of x from g on
  int k_left;                 ///< columns from the thread's first of this stage on
  float sum[kTiles][Traits::kTokenTiles][4] = {};

  template <class Out>
  __device__ __forceinline__ RegistersPart(const RegistersOperands<T, Out>& p, int first_row,
                                           const uint4* shared)
      : x_shared(shared_address(shared + threadIdx.x)) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    const int column = threadIdx.x / 32 * Traits::kStep + lane % 4 * 8;
    weight = p.weight + static_cast<std::int64_t>(first_row + g) * p.k + column;
    tile_stride = 8 * static_cast<std::int64_t>(p.k);
    rows_left = p.n - first_row - g;
    x = p.x + g * p.x_stride + column;
    group_stride = 8 * p.x_stride;
    tokens_left = p.num_tokens - g;
    k_left = p.k - column;
  }

  /// Loads W of the stage `ahead` stages on; zeros beyond the last column and row.
  __device__ __forceinline__ void load_w(Weights& w, int ahead) const {
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      const int column = ahead * Traits::kStageColumns + s * Traits::kSpan;
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        const bool wanted = column < k_left && 8 * r < rows_left;
        w[s][r] = load_weight_or_zero(weight + r * tile_stride + column, wanted);
      }
    }
  }

  /// Starts copying x of the stage `ahead` stages on to half `half` of shared memory.
  __device__ __forceinline__ void copy_x(int half, int ahead) const {
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      const int column = ahead * Traits::kStageColumns + s * Traits::kSpan;
#pragma unroll
      for (int i = 0; i < Traits::kGroups; ++i) {
        if (8 * i < tokens_left && column < k_left)
          copy_async_16(x_vector(half, s, i), x + i * group_stride + column);
      }
    }
    copy_async_commit();
  }

  /// Adds the products of this stage, whose x is in half `half`. What stands for missing rows of x,
  /// even NaN, only reaches missing rows of y; missing columns must be zeros.
  __device__ __forceinline__ void multiply(const Weights& w, int half) {
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < Traits::kTokenTiles; ++i) {
        uint4 v[2] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j < Traits::kGroups && s * Traits::kSpan < k_left)
            v[j] = load_from_shared(x_vector(half, s, 2 * i + j));
        }
#pragma unroll
        for (int r = 0; r < kTiles; ++r) multiply_vectors<T>(sum[r][i], v[0], v[1], w[s][r]);
      }
    }
  }

  /// Goes on to the next stage.
  __device__ __forceinline__ void advance() {
    weight += Traits::kStageColumns;
    x += Traits::kStageColumns;
    k_left -= Traits::kStageColumns;
  }

  /// Writes the sums to part[token][row].
  __device__ __forceinline__ void store(float (*part)[Traits::kPitch]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < Traits::kGroups; ++i) {
        const float* const pair = sum[r][i / 2] + i % 2 * 2;
        *reinterpret_cast<float2*>(&part[8 * i + g][8 * r + 2 * t]) = {pair[0], pair[1]};
      }
    }
  }

 private:
  /// Shared address of this thread's vector of x for a step and a group of 8 rows.
  __device__ __forceinline__ std::uint32_t x_vector(int half, int step, int group) const {
    return x_shared + half * Traits::kStageVectors * 16 +
           (step * Traits::kGroups + group) * Traits::kThreads * 16;
  }
};

/// Grid: a block for each kRows rows of W. Dynamic shared memory: kSharedBytes.
template <class T, class Out, int kTiles, int kTokens>
__global__ void __launch_bounds__(RegistersBlock<kTiles, kTokens>::kThreads,
                                  RegistersBlock<kTiles, kTokens>::kBlocksPerSm)
    small_m_registers_kernel(const RegistersOperands<T, Out> p) {
  using Traits = RegistersBlock<kTiles, kTokens>;
  extern __shared__ uint4 registers_shared[];  // two stages of x, then the sums of each warp
  using Parts = float[kTokens][Traits::kPitch];
  Parts* const parts = reinterpret_cast<Parts*>(registers_shared + Traits::kXBytes / 16);
  grid_dependency_launch();
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows;
  RegistersPart<T, kTiles, kTokens> thread(p, first_row, registers_shared);
  typename RegistersPart<T, kTiles, kTokens>::Weights even, odd;
  thread.load_w(even, 0);
  thread.load_w(odd, 1);
  grid_dependency_wait();
  thread.copy_x(0, 0);
  thread.copy_x(1, 1);

  // The old y of this thread's outputs is loaded here, because nothing waits for it yet.
  float out[Traits::kOutputs];
#pragma unroll
  for (int i = 0; i < Traits::kOutputs; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
    const int token = index / Traits::kRows, row = first_row + index % Traits::kRows;
    out[i] = 0.f;
    if (p.accumulate && token < p.num_tokens && row < p.n)
      out[i] = to_float(p.y[token * p.y_stride + row]);
  }

  for (int left = p.k; left > 0; left -= 2 * Traits::kStageColumns) {
    copy_async_wait<1>();
    thread.multiply(even, 0);
    thread.load_w(even, 2);
    thread.copy_x(0, 2);
    thread.advance();
    if (left <= Traits::kStageColumns) break;
    copy_async_wait<1>();
    thread.multiply(odd, 1);
    thread.load_w(odd, 2);
    thread.copy_x(1, 2);
    thread.advance();
  }
  thread.store(parts[threadIdx.x / 32]);
  __syncthreads();

#pragma unroll
  for (int i = 0; i < Traits::kOutputs; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * Traits::kThreads;
    const int token = index / Traits::kRows, row = index % Traits::kRows;
    if (token >= p.num_tokens || first_row + row >= p.n) continue;
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) sum += parts[w][token][row];
    p.y[token * p.y_stride + first_row + row] = from_float<Out>(out[i] + sum);
  }
}

/// `LaunchConfig::shared_percent` for W [n, k]. Logits leave half of the memory to L1. By default a
/// multiprocessor stays as the layers' kernels have left it, with next to no L1, and one row of
/// 2,048 columns takes 176 us, not 140 (H200).
template <class Out>
[[nodiscard]] constexpr int registers_shared_percent(std::int64_t n, std::int64_t k) {
  return std::same_as<Out, float> && n > kSmallWeights / k ? 50 : -1;
}

template <int kTiles, class T, class Out>
void launch_small_m_registers(const RegistersOperands<T, Out>& p, const Context& context) {
  const auto launch_for = [&]<int kTokens>() {
    using Block = RegistersBlock<kTiles, kTokens>;
    launch(small_m_registers_kernel<T, Out, kTiles, kTokens>,
           {.grid = dim3(static_cast<unsigned>(ceil_div(p.n, Block::kRows))),
            .block = dim3(Block::kThreads),
            .shared_bytes = Block::kSharedBytes,
            .shared_percent = registers_shared_percent<Out>(p.n, p.k)},
           context, p);
  };
  if (p.num_tokens <= 8) {
    launch_for.template operator()<8>();
  } else {
    launch_for.template operator()<16>();
  }
}

}  // namespace detail

/// Whether `small_m_registers` takes the layer by blocks of `tiles` tiles of 8 rows of W: a plain
/// product of up to 16 rows, with any of kSmallMTiles.
template <class T, class Out>
[[nodiscard]] bool small_m_registers_takes(const DenseLayer<T, Out>& layer, int tiles) {
  const auto& [x, norm, weight, y, accumulate, gated] = layer;
  return sizeof(T) == 2 && layer.kind() == ProductKind::plain && has_small_m_tiles(tiles) &&
         fits_small_m(x.extent(0), weight.extent(0), weight.extent(1)) && has_aligned_rows(x) &&
         is_vector_aligned(weight.data);
}

/// Enqueues the layer by blocks of `tiles` tiles, which change the time and not the result. False,
/// with nothing enqueued, unless `small_m_registers_takes` it. No operand is empty.
template <MmaElement T, Element Out>
[[nodiscard]] bool small_m_registers(const DenseLayer<T, Out>& layer, int tiles,
                                     const Context& context) {
  if (!small_m_registers_takes(layer, tiles)) return false;
  const detail::RegistersOperands<T, Out> p{
      .x = layer.x.data,
      .weight = layer.weight.data,
      .y = layer.y.data,
      .x_stride = layer.x.strides[0],
      .y_stride = layer.y.strides[0],
      .num_tokens = static_cast<std::int32_t>(layer.x.extent(0)),
      .n = static_cast<std::int32_t>(layer.y.extent(1)),
      .k = static_cast<std::int32_t>(layer.weight.extent(1)),
      .accumulate = layer.accumulate};
  return with_small_m_tiles(
      tiles, [&]<int kTiles>() { detail::launch_small_m_registers<kTiles>(p, context); });
}

}  // namespace nanovllm::cuda
