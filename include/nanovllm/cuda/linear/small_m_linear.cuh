#pragma once
/// A dense layer on few rows of x, bound by reading the weights once.
///
///   y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///
/// x [M ≤ 32, K], 16-byte aligned rows;  W [N, K] dense, 16-byte aligned, K a multiple of 8;
/// y [M, N], any alignment; T is bf16 or half, y is T or float.
///
/// A block owns 8, 16, 32 or 48 rows of W and all of K. Its warps split K: of each 256 columns,
/// warp w takes columns 32 w … 32 w + 31. Within a warp, W is the B operand of m16n8k16 (8 rows of
/// W) and x the A operand (16 rows of x). Since any order of k will do as long as both operands
/// agree, lane (g = lane / 4, t = lane % 4) loads the 16 bytes W[g][8t … 8t + 7] straight into
/// fragments: four elements are k = 2t, 2t + 1, 2t + 8, 2t + 9 of one mma, the others of the next.
/// x is read in the same way, so that a thread reads back from shared memory what it alone put
/// there.
///
/// Both operands are read ahead by two stages: W into registers, x into shared memory. The first
/// two stages of W are on their way before the kernel ahead has ended: weights never change.
///
/// Sums are in float32: along k in a warp, then over the warps in their order. That order depends
/// on k alone, so a row's result depends neither on M nor on the other rows, bit for bit, and is
/// the same for every tile size.
///
/// Bytes moved: W once, 2 N K; x once for each block (from L2); y once.

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"
#include "nanovllm/cuda/ptx/async_copy.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

namespace detail {

/// Shapes of a block: `kTiles` tiles of 8 rows of W, up to `kTokens` rows of x (8, 16 or 32).
template <int kTiles, int kTokens>
struct SmallMTraits {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 8 * kTiles;               ///< rows of W
  static constexpr int kGroups = kTokens / 8;            ///< groups of 8 rows of x
  static constexpr int kTokenTiles = (kGroups + 1) / 2;  ///< tiles of 16 rows of x
  static constexpr int kStep = 32;                       ///< columns a warp takes at a time
  static constexpr int kSpan = kWarps * kStep;           ///< columns the block takes at a time
  static constexpr int kSteps = std::max(1, std::min(8 / kTiles, 8 / kGroups));  ///< in a stage
  static constexpr int kStageColumns = kSteps * kSpan;
  static constexpr int kBlocksPerSm = kTokens == 32 ? 1 : 2;  ///< what registers are limited for

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
struct SmallMParams {
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

/// 16 bytes of weights, or zeros where `wanted` is false. They are read once: no room in L1. Not
/// through the non-coherent path, because ptxas moves such loads behind `grid_dependency_wait`.
__device__ __forceinline__ uint4 load_weights(const void* p, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n\t"
      ".reg .pred wanted;\n\t"
      "setp.ne.b32 wanted, %5, 0;\n\t"
      "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
      "@wanted ld.global.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
      "}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(wanted)));
  return v;
}

/// One thread's part in a block's products.
template <class T, class Out, int kTiles, int kTokens>
struct SmallMThread {
  using Traits = SmallMTraits<kTiles, kTokens>;
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

  __device__ __forceinline__ SmallMThread(const SmallMParams<T, Out>& p, int first_row,
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
        w[s][r] = load_weights(weight + r * tile_stride + column, wanted);
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
            v[j] = load_shared_vector(x_vector(half, s, 2 * i + j));
        }
        const std::uint32_t first[4] = {v[0].x, v[1].x, v[0].y, v[1].y};
        const std::uint32_t second[4] = {v[0].z, v[1].z, v[0].w, v[1].w};
#pragma unroll
        for (int r = 0; r < kTiles; ++r) {
          mma_m16n8k16<T>(sum[r][i], first, w[s][r].x, w[s][r].y);
          mma_m16n8k16<T>(sum[r][i], second, w[s][r].z, w[s][r].w);
        }
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

  static __device__ __forceinline__ uint4 load_shared_vector(std::uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
  }
};

/// Grid: a block for each kRows rows of W. Dynamic shared memory: kSharedBytes.
template <class T, class Out, int kTiles, int kTokens>
__global__ void __launch_bounds__(SmallMTraits<kTiles, kTokens>::kThreads,
                                  SmallMTraits<kTiles, kTokens>::kBlocksPerSm)
    small_m_linear_kernel(const SmallMParams<T, Out> p) {
  using Traits = SmallMTraits<kTiles, kTokens>;
  extern __shared__ uint4 small_m_shared[];  // two stages of x, then the sums of each warp
  using Parts = float[kTokens][Traits::kPitch];
  Parts* const parts = reinterpret_cast<Parts*>(small_m_shared + Traits::kXBytes / 16);
  grid_dependency_launch();
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows;
  SmallMThread<T, Out, kTiles, kTokens> thread(p, first_row, small_m_shared);
  typename SmallMThread<T, Out, kTiles, kTokens>::Weights even, odd;
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

}  // namespace detail

/// Whether `small_m_linear` takes these operands.
template <Element T>
[[nodiscard]] bool small_m_linear_takes(const MatrixView<const T>& x,
                                        const MatrixView<const T>& weight) {
  if constexpr (sizeof(T) != 2) {
    return false;
  } else {
    return fits_small_m_linear(x.extent(0), weight.extent(0), weight.extent(1)) &&
           has_aligned_rows(x) && is_vector_aligned(weight.data);
  }
}

namespace detail {

template <class T, class Out>
[[nodiscard]] SmallMParams<T, Out> small_m_params(const MatrixView<const T>& x,
                                                  const MatrixView<const T>& weight,
                                                  const MatrixView<Out>& y, bool accumulate) {
  return {.x = x.data,
          .weight = weight.data,
          .y = y.data,
          .x_stride = x.strides[0],
          .y_stride = y.strides[0],
          .num_tokens = static_cast<std::int32_t>(x.extent(0)),
          .n = static_cast<std::int32_t>(weight.extent(0)),
          .k = static_cast<std::int32_t>(weight.extent(1)),
          .accumulate = accumulate};
}

template <class T, class Out, int kTiles, int kTokens>
void launch_small_m_linear(const SmallMParams<T, Out>& params, const Context& context) {
  using Traits = SmallMTraits<kTiles, kTokens>;
  const auto blocks = static_cast<unsigned>(ceil_div(params.n, Traits::kRows));
  launch(
      small_m_linear_kernel<T, Out, kTiles, kTokens>,
      {.grid = dim3(blocks), .block = dim3(Traits::kThreads), .shared_bytes = Traits::kSharedBytes},
      context, params);
}

template <std::int64_t kMostRows, int kTiles, class T, class Out>
void launch_small_m_rows(const SmallMParams<T, Out>& params, const Context& context) {
  if (params.num_tokens <= 8) return launch_small_m_linear<T, Out, kTiles, 8>(params, context);
  if (kMostRows <= 16 || params.num_tokens <= 16)
    return launch_small_m_linear<T, Out, kTiles, 16>(params, context);
  if constexpr (kMostRows > 16) launch_small_m_linear<T, Out, kTiles, 32>(params, context);
}

}  // namespace detail

/// y = x · Wᵀ (+ y) for operands that `small_m_linear_takes`; blocks own `tiles` tiles of 8 rows of
/// W, one of kSmallMTiles, which changes the time and not the result. No operand is empty. Throws
/// ShapeError where x has more than `kMostRows` rows, for which alone the kernels are compiled,
/// ConfigError for other tiles.
template <MmaElement T, Element Out, std::int64_t kMostRows = kMaxSmallMRows>
void small_m_linear(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                    const MatrixView<Out>& y, bool accumulate, int tiles, const Context& context) {
  static_assert(kMostRows <= kMaxSmallMRows);
  check<ShapeError>(x.extent(0) <= kMostRows, "small_m_linear: x must have at most ", kMostRows,
                    " rows, got ", x.extent(0));
  const auto params = detail::small_m_params(x, weight, y, accumulate);
  switch (tiles) {
    case 1: return detail::launch_small_m_rows<kMostRows, 1>(params, context);
    case 2: return detail::launch_small_m_rows<kMostRows, 2>(params, context);
    case 4: return detail::launch_small_m_rows<kMostRows, 4>(params, context);
    case 6: return detail::launch_small_m_rows<kMostRows, 6>(params, context);
    default: throw ConfigError(concat("small_m_linear: tiles must be 1, 2, 4 or 6, got ", tiles));
  }
}

}  // namespace nanovllm::cuda
