#pragma once
/// Which experts a token goes to: `route_experts`, whose contract is in with/moe/ops.hpp. And which
/// tokens each expert gets: what the grouped products work through.
///
/// For `route_experts` a warp takes a row. Its k largest logits come one after the other: each is
/// the largest of those after the one before, in the order of the contract. Rows of up to 512
/// logits stay in registers; longer ones are read again for each.
///
/// Bytes moved: 4 · n · experts, and 8 · n · k; with counts n · k additions that nothing waits for.
/// Measured: experts_bench, cuda_moe_few_tokens.json, needed: 2.3 us for 1 token, 10.1 for 8,192;
/// the plan in 16 us for 8,192 tokens, 72 by one block (cuda_experts_plan.json), and in 282 us for
/// a layer's experts of 64 tokens (cuda_moe_h200.json).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/reduce.cuh"
#include "nanovllm/with/moe/ops.hpp"

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

/// Contract: with/moe/ops.hpp. A row's result depends on that row alone, bit for bit.
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
inline constexpr int kPlanCluster = 8;
/// Pairs from which a cluster shares the work: of 8,192 tokens with 8 each in 16 us in place of 72,
/// of 256 in 6.8 in place of 4.6 (one H200).
inline constexpr std::int64_t kPlanClusterPairs = 8192;

/// A block alone, in the form of `BlockCluster`.
struct OneBlock {
  static constexpr int rank = 0, size = 1;
  __device__ void sync() const { __syncthreads(); }
  template <class T>
  [[nodiscard]] __device__ const T* at(const T* mine, int) const {
    return mine;
  }
};

/// Calls use(pair, its expert's number) for this thread's pairs whose expert is here. Loads come
/// first, so that they overlap.
template <int kPlanThreads, class Cluster, class Use>
__device__ __forceinline__ void each_local_pair(const MatrixView<const std::int32_t>& ids,
                                                const LocalExperts& local, const Cluster& cluster,
                                                const Use& use) {
  const auto k = static_cast<std::uint32_t>(ids.extent(1));
  const auto pairs = static_cast<std::uint32_t>(ids.extent(0)) * k;
  const auto first = static_cast<std::uint32_t>(cluster.rank * kPlanLoads * kPlanThreads);
  const auto step = static_cast<std::uint32_t>(cluster.size * kPlanLoads * kPlanThreads);
  for (std::uint32_t from = first + threadIdx.x; from < pairs; from += step) {
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
}

/// One `Cluster`. Dynamic shared memory: two ints for each expert. A template, so that
/// only programs that launch it have it.
template <int kPlanThreads, class Cluster>
__global__ void __launch_bounds__(kPlanThreads)
    plan_experts_kernel(MatrixView<const std::int32_t> ids, LocalExperts local, int tile_rows,
                        ExpertPlan to) {
  extern __shared__ std::int32_t expert_counts[];
  std::int32_t* const next_pair = expert_counts + local.count;  // where an expert's next one goes
  using Scan = cub::BlockScan<std::int32_t, kPlanThreads>;
  __shared__ typename Scan::TempStorage scratch;
  grid_dependency_launch();
  const Cluster cluster{};
  const int thread = static_cast<int>(threadIdx.x), experts = local.count;
  for (int e = thread; e < experts; e += kPlanThreads) expert_counts[e] = 0;
  __syncthreads();
  grid_dependency_wait();
  each_local_pair<kPlanThreads>(
      ids, local, cluster, [&](std::int32_t, std::uint32_t e) { atomicAdd(&expert_counts[e], 1); });
  cluster.sync();
  /// Pairs of an expert in the blocks up to `end`.
  const auto count_of = [&](int e, int end) {
    std::int32_t sum = 0;
    for (int from = 0; from < end; ++from) sum += cluster.at(expert_counts, from)[e];
    return sum;
  };
  // A thread has neighbouring experts.
  const int per_thread = (experts + kPlanThreads - 1) / kPlanThreads;
  const int begin = min(thread * per_thread, experts), end = min(begin + per_thread, experts);
  std::int32_t num_pairs = 0, num_tiles = 0;
  for (int e = begin; e < end; ++e) {
    const std::int32_t count = count_of(e, cluster.size);
    num_pairs += count;
    num_tiles += (count + tile_rows - 1) / tile_rows;
  }
  std::int32_t pair = 0, tile = 0, all_tiles = 0;
  Scan(scratch).ExclusiveSum(num_pairs, pair);
  __syncthreads();
  Scan(scratch).ExclusiveSum(num_tiles, tile, all_tiles);
  if (thread == 0 && cluster.rank == 0) *to.num_tiles = all_tiles;
  for (int e = begin; e < end; ++e) {
    const std::int32_t count = count_of(e, cluster.size);
    for (std::int32_t i = 0; i < count; i += tile_rows, ++tile) {
      if (e % cluster.size == cluster.rank)
        to.tiles[tile] = {e, pair + i, min(tile_rows, count - i)};
    }
    next_pair[e] = pair + count_of(e, cluster.rank);
    pair += count;
  }
  cluster.sync();  // no block reads counts of others any more
  each_local_pair<kPlanThreads>(ids, local, cluster, [&](std::int32_t p, std::uint32_t e) {
    to.pairs[atomicAdd(&next_pair[e], 1)] = p;
  });
}

}  // namespace detail

/// Enqueues the plan of `ids` [n, k] for the experts that are here, in tiles of up to `tile_rows`
/// pairs.
template <int kThreads = 1024>
void plan_experts(const MatrixView<const std::int32_t>& ids, const LocalExperts& local,
                  int tile_rows, const ExpertPlan& to, const Context& context) {
  const bool shares =
      context.has_clusters && ids.extent(0) * ids.extent(1) >= detail::kPlanClusterPairs;
  const int cluster = shares ? detail::kPlanCluster : 1;
  launch(shares ? detail::plan_experts_kernel<kThreads, BlockCluster>
                : detail::plan_experts_kernel<kThreads, detail::OneBlock>,
         {.grid = static_cast<unsigned>(cluster),
          .block = kThreads,
          .shared_bytes = 2 * static_cast<std::size_t>(local.count) * sizeof(std::int32_t),
          .cluster = cluster},
         context, ids, local, tile_rows, to);
}

}  // namespace nanovllm::cuda
