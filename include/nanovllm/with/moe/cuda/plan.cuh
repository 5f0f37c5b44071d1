#pragma once
/// Which tokens each expert gets: what the grouped products work through.
/// Measured: not by itself; 282 us for a layer's experts of 64 tokens with the choice and the plan
/// (experts_bench, cuda_moe_h200.json).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda {

/// Up to so many pairs of one expert, as one block of a grouped product takes them.
struct ExpertTile {
  std::int32_t expert;  ///< among those that are here
  std::int32_t first;   ///< of its pairs, in `ExpertPlan::pairs`
  std::int32_t count;
};

/// Which experts of a layer are here: `count` from `first` on.
struct LocalExperts {
  std::int32_t first = 0;
  std::int32_t count = 0;

  /// The number of expert `id` among them; not below `count` if it is elsewhere.
  [[nodiscard]] __host__ __device__ constexpr std::uint32_t index_of(std::int32_t id) const {
    return static_cast<std::uint32_t>(id - first);
  }
  [[nodiscard]] __host__ __device__ constexpr bool contains(std::int32_t id) const {
    return index_of(id) < static_cast<std::uint32_t>(count);
  }
};

/// Pairs of a token and a slot whose expert is here, sorted by expert: pair p is slot p % k of
/// token p / k. In device memory. The order of an expert's pairs is not fixed.
struct ExpertPlan {
  std::int32_t* pairs = nullptr;      ///< room for [n · k]
  ExpertTile* tiles = nullptr;        ///< [num_tiles], of at most `max_expert_tiles`
  std::int32_t* num_tiles = nullptr;  ///< one
};

/// The most tiles of `tile_rows` pairs that `pairs` pairs of `experts` experts make.
[[nodiscard]] constexpr std::int64_t max_expert_tiles(std::int64_t pairs, std::int64_t experts,
                                                      std::int64_t tile_rows) {
  return std::min(pairs, std::min(pairs, experts) + pairs / tile_rows);
}

namespace detail {

inline constexpr int kPlanLoads = 8;

/// One block. Dynamic shared memory: an int for each expert. A template, so that only programs that
/// launch it have it.
template <int kPlanThreads>
__global__ void __launch_bounds__(kPlanThreads)
    plan_experts_kernel(MatrixView<const std::int32_t> ids, LocalExperts local, int tile_rows,
                        ExpertPlan to) {
  extern __shared__ std::int32_t expert_counts[];
  using Scan = cub::BlockScan<std::int32_t, kPlanThreads>;
  __shared__ typename Scan::TempStorage scratch;
  grid_dependency_launch();
  const int thread = static_cast<int>(threadIdx.x), experts = local.count;
  for (int e = thread; e < experts; e += kPlanThreads) expert_counts[e] = 0;
  __syncthreads();
  grid_dependency_wait();
  const auto k = static_cast<std::uint32_t>(ids.extent(1));
  const auto pairs = static_cast<std::uint32_t>(ids.extent(0)) * k;
  /// use(pair, its expert's number) for the thread's pairs. Loads come first, so that they overlap.
  const auto each_pair = [&](const auto& use) {
    for (std::uint32_t from = threadIdx.x; from < pairs; from += kPlanLoads * kPlanThreads) {
      std::int32_t id[kPlanLoads];
#pragma unroll
      for (int i = 0; i < kPlanLoads; ++i) {
        const std::uint32_t p = from + i * kPlanThreads;
        id[i] = p < pairs ? *static_cast<const volatile std::int32_t*>(ids.at(p / k, p % k)) : -1;
      }
#pragma unroll
      for (int i = 0; i < kPlanLoads; ++i) {
        if (local.contains(id[i]))
          use(static_cast<std::int32_t>(from + i * kPlanThreads), local.index_of(id[i]));
      }
    }
  };
  each_pair([&](std::int32_t, std::uint32_t e) { atomicAdd(&expert_counts[e], 1); });
  __syncthreads();
  // A thread has neighbouring experts.
  const int per_thread = (experts + kPlanThreads - 1) / kPlanThreads;
  const int begin = min(thread * per_thread, experts), end = min(begin + per_thread, experts);
  std::int32_t num_pairs = 0, num_tiles = 0;
  for (int e = begin; e < end; ++e) {
    num_pairs += expert_counts[e];
    num_tiles += (expert_counts[e] + tile_rows - 1) / tile_rows;
  }
  std::int32_t pair = 0, tile = 0, all_tiles = 0;
  Scan(scratch).ExclusiveSum(num_pairs, pair);
  __syncthreads();
  Scan(scratch).ExclusiveSum(num_tiles, tile, all_tiles);
  if (thread == 0) *to.num_tiles = all_tiles;
  for (int e = begin; e < end; ++e) {
    const std::int32_t count = expert_counts[e];
    for (std::int32_t i = 0; i < count; i += tile_rows)
      to.tiles[tile++] = {e, pair + i, min(tile_rows, count - i)};
    expert_counts[e] = pair;  // where its next pair goes
    pair += count;
  }
  __syncthreads();
  each_pair(
      [&](std::int32_t p, std::uint32_t e) { to.pairs[atomicAdd(&expert_counts[e], 1)] = p; });
}

}  // namespace detail

/// Enqueues the plan of `ids` [n, k] for the experts that are here, in tiles of up to `tile_rows`
/// pairs.
template <int kThreads = 1024>
void plan_experts(const MatrixView<const std::int32_t>& ids, const LocalExperts& local,
                  int tile_rows, const ExpertPlan& to, const Context& context) {
  launch(detail::plan_experts_kernel<kThreads>,
         {.grid = 1,
          .block = kThreads,
          .shared_bytes = static_cast<std::size_t>(local.count) * sizeof(std::int32_t)},
         context, ids, local, tile_rows, to);
}

}  // namespace nanovllm::cuda
