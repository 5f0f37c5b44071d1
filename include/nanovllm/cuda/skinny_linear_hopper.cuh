#pragma once
/// `skinny_linear` for up to 8 rows of x on sm_90a: the copy engine brings W to shared memory.
///
///   y[m, n] = Σ_k x[m, k] · W[n, k]   (+ y[m, n] before the rounding, with `accumulate`)
///
/// x [M ≤ 8, K], 16-byte aligned rows, 2 M K at most 48 KiB;  W [N, K] dense, 16-byte aligned, K a
/// multiple of 8;  y [M, N], any alignment; T is bf16 or half, y is T or float.
///
/// Why not registers, as in `skinny_linear`: loads of a multiprocessor return in order, so that x,
/// which is in L2, would wait behind weights that come from memory, even those of the next kernel.
/// Bulk copies go their own way. Up to 104 KiB of W are on their way in a block, from before the
/// kernel ahead has ended; two blocks fit on a multiprocessor, this kernel's and the next one's.
///
/// A ninth warp keeps a ring of stages of 512 columns filled, a copy for each row. Rows lie 64
/// bytes off a multiple of 128 apart, so that the fragments of 8 rows fall into different banks.
/// Which warp multiplies what, and the order of all sums, are those of `skinny_linear`: the results
/// are equal bit for bit.
///
/// Bytes moved: W once, 2 N K; x once for each block (from L2); y once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cuda/ptx>

#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/async_copy.cuh"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/mbarrier.cuh"
#include "nanovllm/cuda/mma.cuh"
#include "nanovllm/cuda/named_barrier.cuh"
#include "nanovllm/cuda/skinny_linear.cuh"
#include "nanovllm/cuda/vec.cuh"

namespace nanovllm::cuda {
namespace detail {

/// Shapes of a block: `kTiles` tiles of 8 rows of W.
template <int kTiles>
struct SkinnyHopperTraits {
  static constexpr int kWarps = 8;              ///< that multiply; one more copies
  static constexpr int kThreads = 32 * kWarps;  ///< that multiply
  static constexpr int kTokens = 8;
  static constexpr int kRows = 8 * kTiles;      ///< rows of W
  static constexpr int kStep = 32;              ///< columns a warp takes at a time
  static constexpr int kSpan = kWarps * kStep;  ///< columns the block takes at a time
  static constexpr int kSteps = 2;              ///< of a warp, in one stage
  static constexpr int kStageColumns = kSteps * kSpan;
  static constexpr int kRowBytes = kStageColumns * 2 + 64;  ///< from a row of a stage to the next
  static constexpr int kStageBytes = kRows * kRowBytes;
  static constexpr int kStages = std::min(6, 104 * 1024 / kStageBytes);
  static constexpr int kPitch = kTiles == 1 ? kRows : kRows + 8;  ///< of partial sums
  static constexpr int kPartBytes = kWarps * kTokens * kPitch * 4;
  static constexpr int kOutputs = (kTokens * kRows + kThreads - 1) / kThreads;  ///< of a thread

  /// From a row of x to the next: 64 off a multiple of 128 as well.
  NANOVLLM_HD static constexpr int x_row_bytes(int k) { return (k * 2 + 127) / 128 * 128 + 64; }
  /// Of W, only the stages that a short row needs.
  static constexpr int shared_bytes(int m, int k) {
    return kPartBytes + m * x_row_bytes(k) +
           std::min(kStages, (k + kStageColumns - 1) / kStageColumns) * kStageBytes;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The copying warp: fills the stages in turn, each once the other warps have read it.
template <class Traits, class T, class Out>
__device__ __forceinline__ void copy_stages(const SkinnyParams<T, Out>& p, int first_row,
                                            std::byte* stages, std::uint64_t* full,
                                            std::uint64_t* empty) {
  const int lane = threadIdx.x % 32;
  const int rows = min(Traits::kRows, p.n - first_row);
  RingPosition<Traits::kStages> at;
  for (int column = 0; column < p.k; column += Traits::kStageColumns, at.advance()) {
    mbarrier_wait(empty[at.stage], at.parity ^ 1);
    const auto bytes = static_cast<std::uint32_t>(min(Traits::kStageColumns, p.k - column) * 2);
    if (lane == 0) mbarrier_arrive_expect(full[at.stage], bytes * static_cast<std::uint32_t>(rows));
    __syncwarp();
    for (int row = lane; row < rows; row += 32) {
      ::cuda::ptx::cp_async_bulk(
          ::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
          stages + at.stage * Traits::kStageBytes + row * Traits::kRowBytes,
          p.weight + static_cast<std::int64_t>(first_row + row) * p.k + column, bytes,
          &full[at.stage]);
    }
  }
}

/// Starts copying those columns of x that this warp multiplies.
template <class Traits, class T, class Out>
__device__ __forceinline__ void copy_x_columns(const SkinnyParams<T, Out>& p, std::byte* x) {
  constexpr int kVectors = Traits::kStep / 8;  // of one step
  const int first = static_cast<int>(threadIdx.x) / 32 * Traits::kStep;
  for (int token = 0; token < p.num_tokens; ++token) {
    for (int i = threadIdx.x % 32;; i += 32) {
      const int column = i / kVectors * Traits::kSpan + first + i % kVectors * 8;
      if (i / kVectors * Traits::kSpan >= p.k) break;
      if (column < p.k)
        copy_async_16(shared_address(x + token * Traits::x_row_bytes(p.k) + column * 2),
                      p.x + token * p.x_stride + column);
    }
  }
  copy_async_commit();
}

/// 16 bytes of shared memory, or zeros where `wanted` is false.
__device__ __forceinline__ uint4 load_fragment(const std::byte* p, bool wanted) {
  return wanted ? *reinterpret_cast<const uint4*>(p) : uint4{0, 0, 0, 0};
}

/// A multiplying warp: sums its columns of all stages and writes them to part[token][row].
template <class Traits, class T, class Out, int kTiles>
__device__ __forceinline__ void multiply_stages(const SkinnyParams<T, Out>& p,
                                                const std::byte* stages, const std::byte* x,
                                                std::uint64_t* full, std::uint64_t* empty,
                                                float (*part)[Traits::kPitch]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = static_cast<int>(threadIdx.x) / 32 * Traits::kStep + 8 * t;
  // Missing rows of x only reach missing rows of y: any row will do for them.
  x += min(g, p.num_tokens - 1) * Traits::x_row_bytes(p.k);
  float sum[kTiles][4] = {};
  RingPosition<Traits::kStages> at;
  for (int begin = 0; begin < p.k; begin += Traits::kStageColumns, at.advance()) {
    mbarrier_wait(full[at.stage], at.parity);
    const std::byte* const w = stages + at.stage * Traits::kStageBytes + g * Traits::kRowBytes;
#pragma unroll
    for (int s = 0; s < Traits::kSteps; ++s) {
      const int column = s * Traits::kSpan + first;
      const bool wanted = begin + column < p.k;
      const uint4 v = load_fragment(x + (begin + column) * 2, wanted);
      const std::uint32_t a[4] = {v.x, 0, v.y, 0}, b[4] = {v.z, 0, v.w, 0};
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        const uint4 f = load_fragment(w + r * 8 * Traits::kRowBytes + column * 2, wanted);
        mma_m16n8k16<T>(sum[r], a, f.x, f.y);
        mma_m16n8k16<T>(sum[r], b, f.z, f.w);
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty[at.stage]);
  }
#pragma unroll
  for (int r = 0; r < kTiles; ++r)
    *reinterpret_cast<float2*>(&part[g][8 * r + 2 * t]) = {sum[r][0], sum[r][1]};
}

/// The body of `skinny_linear_hopper_kernel`.
template <class T, class Out, int kTiles>
__device__ __forceinline__ void skinny_linear_hopper_block(const SkinnyParams<T, Out>& p) {
  using Traits = SkinnyHopperTraits<kTiles>;
  extern __shared__ uint4 skinny_hopper_shared[];  // partial sums, x, stages of W
  __shared__ std::uint64_t full[Traits::kStages], empty[Traits::kStages];
  std::byte* const part_bytes = reinterpret_cast<std::byte*>(skinny_hopper_shared);
  std::byte* const x = part_bytes + Traits::kPartBytes;
  std::byte* const stages = x + p.num_tokens * Traits::x_row_bytes(p.k);
  using Part = float[Traits::kTokens][Traits::kPitch];
  Part* const parts = reinterpret_cast<Part*>(part_bytes);
  const int first_row = static_cast<int>(blockIdx.x) * Traits::kRows;
  const int thread = static_cast<int>(threadIdx.x);
  grid_dependency_launch();
  if (thread == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(full[i], 1);
      mbarrier_init(empty[i], Traits::kWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  if (thread >= Traits::kThreads) {
    copy_stages<Traits>(p, first_row, stages, full, empty);
    grid_dependency_wait();
    return;
  }
  grid_dependency_wait();
  copy_x_columns<Traits>(p, x);
  // The old y of this thread's outputs is loaded here, because nothing waits for it yet.
  float out[Traits::kOutputs] = {};
  const auto each_output = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < Traits::kOutputs; ++i) {
      const int index = thread + i * Traits::kThreads;
      const int token = index / Traits::kRows, row = index % Traits::kRows;
      if (token < p.num_tokens && first_row + row < p.n)
        use(p.y[token * p.y_stride + first_row + row], out[i], token, row);
    }
  };
  if (p.accumulate) each_output([](const Out& y, float& value, int, int) { value = to_float(y); });
  copy_async_wait<0>();
  __syncwarp();
  multiply_stages<Traits, T, Out, kTiles>(p, stages, x, full, empty, parts[thread / 32]);
  named_barrier_sync<Traits::kThreads>(1);
  each_output([&](Out& y, float value, int token, int row) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) sum += parts[w][token][row];
    y = from_float<Out>(value + sum);
  });
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// Grid: a block for each kRows rows of W. Dynamic shared memory: shared_bytes(M, K).
template <class T, class Out, int kTiles>
__global__ void __launch_bounds__(SkinnyHopperTraits<kTiles>::kThreads + 32, 2)
    skinny_linear_hopper_kernel(const SkinnyParams<T, Out> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  skinny_linear_hopper_block<T, Out, kTiles>(p);
#endif
}

template <class T, class Out, int kTiles>
void launch_skinny_linear_hopper(const SkinnyParams<T, Out>& params, const Context& context) {
  using Traits = SkinnyHopperTraits<kTiles>;
  launch(
      skinny_linear_hopper_kernel<T, Out, kTiles>,
      {.grid = dim3(static_cast<unsigned>(ceil_div(params.n, Traits::kRows))),
       .block = dim3(Traits::kThreads + 32),
       .shared_bytes = static_cast<std::size_t>(Traits::shared_bytes(params.num_tokens, params.k))},
      context, params);
}

}  // namespace detail

/// Whether `skinny_linear_hopper` takes these operands.
template <Element T>
[[nodiscard]] bool skinny_linear_hopper_takes(const MatrixView<const T>& x,
                                              const MatrixView<const T>& weight,
                                              const Context& context) {
  return context.is_hopper() && x.extent(0) <= 8 &&
         x.extent(0) * weight.extent(1) * 2 <= 48 * 1024 && skinny_linear_takes(x, weight);
}

/// y = x · Wᵀ (+ y) for operands that `skinny_linear_hopper_takes`; otherwise as `skinny_linear`.
template <MmaElement T, Element Out>
void skinny_linear_hopper(const MatrixView<const T>& x, const MatrixView<const T>& weight,
                          const MatrixView<Out>& y, bool accumulate, int tiles,
                          const Context& context) {
  const auto params = detail::skinny_params(x, weight, y, accumulate);
  switch (tiles) {
    case 1: return detail::launch_skinny_linear_hopper<T, Out, 1>(params, context);
    case 2: return detail::launch_skinny_linear_hopper<T, Out, 2>(params, context);
    case 4: return detail::launch_skinny_linear_hopper<T, Out, 4>(params, context);
    case 6: return detail::launch_skinny_linear_hopper<T, Out, 6>(params, context);
    default:
      throw ConfigError(concat("skinny_linear_hopper: tiles must be 1, 2, 4 or 6, got ", tiles));
  }
}

}  // namespace nanovllm::cuda
