#pragma once
/// `route_tokens` of a few tokens in one kernel, for 16-bit elements. ops/route_tokens.hpp is the
/// contract.
///
/// A block owns a token and eight experts, a warp each. It reads their rows of the router ahead of
/// the kernels before it, norms the token, and multiplies. The last block of a token to finish has
/// all logits, and chooses by the code of route.cuh.
///
/// The sum of squares and the products are float32: a thread's vectors in order, then lanes, then
/// warps. Bits differ from those of `rms_norm` and `linear`, and depend on that token alone.
///
/// Bytes moved: the router once for each token, x of a token for each block, normed once.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/experts/route.cuh"
#include "nanovllm/cuda/experts/workspace.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/ops/route_tokens.hpp"

namespace nanovllm::cuda {
namespace detail {

struct RouteFewTraits {
  static constexpr std::int64_t kMaxTokens = ExpertWorkspace::kTickets;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kLaneVectors = 16;                     ///< of a router's row, at the most
  static constexpr int kVectors = 32 * kLaneVectors;          ///< of a row
  static constexpr int kThreadVectors = kVectors / kThreads;  ///< of x
};

template <class T>
struct RouteFewProblem {
  MatrixView<const T> x;
  const T* norm;  ///< null for none
  float eps, inverse_width;
  MatrixView<T> normed;
  const T* router;
  MatrixView<float> logits;
  RouteExpertsArgs route;
  std::uint32_t* tickets;  ///< of each token; 0, and so again when the kernel ends
};

/// Grid: (blocks of experts, tokens).
template <class T, int kHeld>
__global__ void __launch_bounds__(RouteFewTraits::kThreads)
    route_few_kernel(const RouteFewProblem<T> p) {
  using Traits = RouteFewTraits;
  __shared__ uint4 row[Traits::kVectors];
  __shared__ float scratch[32];
  __shared__ bool is_last;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int vectors = static_cast<int>(p.x.extent(1)) / kVecSize<T>;
  const int expert = static_cast<int>(blockIdx.x) * Traits::kWarps + warp;
  const bool has_expert = expert < static_cast<int>(p.logits.extent(1));
  const std::int64_t token = blockIdx.y;
  uint4 weights[Traits::kLaneVectors];
#pragma unroll
  for (int v = 0; v < Traits::kLaneVectors; ++v) {
    const int at = 32 * v + lane;
    weights[v] = has_expert && at < vectors
                     ? load_vector<Load::constant>(
                           p.router + (std::int64_t{expert} * vectors + at) * kVecSize<T>)
                     : uint4{};
  }
  grid_dependency_launch();
  grid_dependency_wait();
  uint4 x[Traits::kThreadVectors];
  float squares = 0.f;
#pragma unroll
  for (int v = 0; v < Traits::kThreadVectors; ++v) {
    const int at = Traits::kThreads * v + thread;
    x[v] = at < vectors ? load_vector(p.x.at(token, at * kVecSize<T>)) : uint4{};
    float values[kVecSize<T>];
    unpack<T>(x[v], values);
    squares += sum_of_squares(values);
  }
  if (p.norm != nullptr) {
    const float sum = block_sum(squares, scratch, Traits::kThreads);
    const float inverse = inverse_rms(sum, p.inverse_width, p.eps);
#pragma unroll
    for (int v = 0; v < Traits::kThreadVectors; ++v) {
      const int at = Traits::kThreads * v + thread;
      if (at >= vectors) continue;
      float values[kVecSize<T>], norm[kVecSize<T>];
      unpack<T>(x[v], values);
      unpack<T>(load_vector<Load::constant>(p.norm + at * kVecSize<T>), norm);
      normalise<T>(values, inverse, norm);
      x[v] = pack<T>(values);
      if (blockIdx.x == 0) store_vector(p.normed.at(token, at * kVecSize<T>), x[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < Traits::kThreadVectors; ++v) row[Traits::kThreads * v + thread] = x[v];
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int v = 0; v < Traits::kLaneVectors; ++v) {
    float a[kVecSize<T>], b[kVecSize<T>];
    unpack<T>(weights[v], a);
    unpack<T>(row[32 * v + lane], b);
#pragma unroll
    for (int i = 0; i < kVecSize<T>; ++i) sum = __fmaf_rn(a[i], b[i], sum);
  }
  sum = warp_sum(sum);
  if (has_expert && lane == 0) {
    *static_cast<volatile float*>(p.logits.at(token, expert)) = sum;
    __threadfence();
  }
  __syncthreads();
  if (thread == 0) is_last = atomicInc(p.tickets + token, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last || warp > 0) return;
  __threadfence();
  route_row<kHeld>(p.route, token);
}

/// Enqueues the kernel, where it is one for such operands; returns whether it is.
template <class T>
[[nodiscard]] bool route_few(const RouteTokensArgs<T, DeviceMatrix<T>, T>& args,
                             ExpertWorkspace& workspace, const Context& context) {
  using Traits = RouteFewTraits;
  const std::int64_t n = args.x.extent(0), in = args.x.extent(1), experts = args.logits.extent(1);
  const bool fits =
      n > 0 && n <= Traits::kMaxTokens && in <= Traits::kVectors * std::int64_t{kVecSize<T>} &&
      experts <= 512 && has_whole_rows(args.x) && has_whole_rows(args.router->view()) &&
      (!args.norm || (has_whole_rows(args.normed) && has_whole_rows(args.norm.weight)));
  if (!fits) return false;
  const RouteFewProblem<T> problem{.x = args.x,
                                   .norm = args.norm.weight.data,
                                   .eps = args.norm.eps,
                                   .inverse_width = 1.f / static_cast<float>(in),
                                   .normed = args.normed,
                                   .router = args.router->data(),
                                   .logits = args.logits,
                                   .route = args.route,
                                   .tickets = workspace.tickets()};
  launch(experts <= 128 ? route_few_kernel<T, 4> : route_few_kernel<T, 16>,
         {.grid = dim3(static_cast<unsigned>(ceil_div(experts, std::int64_t{Traits::kWarps})),
                       static_cast<unsigned>(n)),
          .block = Traits::kThreads},
         context, problem);
  return true;
}

}  // namespace detail

/// One kernel for up to four tokens, and else the ops that the contract names.
template <Element T, class State>
requires(sizeof(T) == 2) void run_op(const RouteTokensArgs<T, DeviceMatrix<T>, T>& args,
                                     State& state) {
  validate(args);
  ExpertWorkspace& workspace = state.parts.template of<ExpertWorkspace>();
  if (!detail::route_few(args, workspace, state.context))
    compose(args, [&](const auto& part) { run_op(part, state); });
}

}  // namespace nanovllm::cuda
