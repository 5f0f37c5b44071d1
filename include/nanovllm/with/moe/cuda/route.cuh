#pragma once
/// `route_experts` on CUDA. Contract: with/moe/route_experts.hpp.
///
/// A warp takes a row. Its k largest logits come one after the other: each is the largest of those
/// after the one before, in the order of the contract. Rows of up to 512 logits stay in registers;
/// longer ones are read again for each.
///
/// Bytes moved: 4 · n · experts, and 8 · n · k; with counts n · k additions that nothing waits for.
/// Measured: experts_bench, cuda_moe_few_tokens.json, needed: 2.3 us for 1 token, 10.1 for 8,192.

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/with/moe/route_experts.hpp"

namespace nanovllm::cuda {
namespace detail {

inline constexpr int kRouteWarps = 4;  ///< rows of a block

/// A logit and its expert as a number that is larger where the expert comes first; never 0. NaN
/// comes after all numbers.
__device__ __forceinline__ std::uint64_t route_key(float logit, int expert) {
  const std::uint32_t bits = __float_as_uint(logit + 0.f);  // -0 is 0
  const std::uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(isnan(logit) ? 0u : ordered) << 32 |
         (0xffffffffu - static_cast<std::uint32_t>(expert));
}

[[nodiscard]] __device__ __forceinline__ int expert_of_key(std::uint64_t key) {
  return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(key));
}
[[nodiscard]] __device__ __forceinline__ float logit_of_key(std::uint64_t key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);  // of NaN 0
  return __uint_as_float(ordered >> 31 != 0 ? ordered & 0x7fffffffu : ~ordered);
}

/// kHeld logits of each lane are in registers; 0 for rows that are longer than any such number.
template <int kHeld>
__global__ void __launch_bounds__(32 * kRouteWarps) route_experts_kernel(RouteExpertsArgs args) {
  grid_dependency_launch();
  grid_dependency_wait();
  const auto row = static_cast<std::int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / 32;
  if (row >= args.logits.extent(0)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto experts = static_cast<int>(args.logits.extent(1));
  const auto k = static_cast<int>(args.ids.extent(1));
  const volatile float* const logits = args.logits.at(row);
  float held[kHeld > 0 ? kHeld : 1];
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = 32 * i + lane < experts ? logits[32 * i + lane] : 0.f;
  }
  /// use(logit, expert) for the lane's own.
  const auto each = [&](const auto& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (32 * i + lane < experts) use(held[i], 32 * i + lane);
      }
    } else {
      for (int e = lane; e < experts; e += 32) use(logits[e], e);
    }
  };
  std::int32_t* const ids = args.ids.at(row);
  float* const weights = args.weights.at(row);
  std::uint64_t before = ~std::uint64_t{0};
  float largest = 0.f, chosen = 0.f;
  for (int s = 0; s < k; ++s) {
    std::uint64_t best = 0;
    each([&](float logit, int expert) {
      const std::uint64_t key = route_key(logit, expert);
      if (key < before && key > best) best = key;
    });
    const auto high = static_cast<std::uint32_t>(best >> 32);
    const std::uint32_t first = __reduce_max_sync(0xffffffffu, high);
    const std::uint32_t second =
        __reduce_max_sync(0xffffffffu, high == first ? static_cast<std::uint32_t>(best) : 0);
    before = static_cast<std::uint64_t>(first) << 32 | second;
    const float logit = logit_of_key(before);
    if (s == 0) largest = logit;
    const float weight = expf(logit - largest);
    chosen += weight;
    if (lane == 0) {
      ids[s] = expert_of_key(before);
      weights[s] = weight;
    }
  }
  float all = 0.f;
  each([&](float logit, int) { all += expf(logit - largest); });
  all = warp_sum(all);
  const float sum = args.normalise && !isnan(all) ? chosen : all;
  __syncwarp();
  const bool counts =
      !args.counts.empty() &&
      (args.slots.empty() || *static_cast<const volatile Slot*>(args.slots.at(row)) != kNoSlot);
  for (int s = lane; s < k; s += 32) {
    weights[s] = __fdiv_rn(weights[s], sum);
    if (counts) atomicAdd(reinterpret_cast<unsigned long long*>(args.counts.at(ids[s])), 1ull);
  }
}

}  // namespace detail

/// See the head of this file. A row's result depends on that row alone, bit for bit.
inline void route_experts(const RouteExpertsArgs& args, const Context& context) {
  validate(args);
  if (args.logits.extent(0) == 0) return;
  const std::int64_t experts = args.logits.extent(1);
  const auto kernel = experts <= 128   ? detail::route_experts_kernel<4>
                      : experts <= 512 ? detail::route_experts_kernel<16>
                                       : detail::route_experts_kernel<0>;
  launch(kernel,
         {.grid = static_cast<unsigned>(
              ceil_div(args.logits.extent(0), std::int64_t{detail::kRouteWarps})),
          .block = 32 * detail::kRouteWarps},
         context, args);
}

template <class State>
void run_op(const RouteExpertsArgs& args, State& state) {
  route_experts(args, state.context);
}

}  // namespace nanovllm::cuda
