#pragma once
/// The schedule of `varlen_attention`: the query rows of a step cut into tiles, the longest first.
///
/// The host knows how many sequences and rows there are, the device how they divide. One small
/// kernel a step, before all layers, writes the list of tiles of 128 query rows that every layer
/// then reads, sorted by the number of keys they see (a counting sort in one block; tiles of equal
/// length come in no fixed order, which moves no result). Tiles never span sequences, so there are
/// at most ⌊n / 128⌋ + num_seqs of them.

#include <cub/block/block_scan.cuh>

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/device_buffer.cuh"
#include "nanovllm/cuda/launch.cuh"

namespace nanovllm::cuda {

/// Up to 128 neighbouring query rows of one sequence.
struct alignas(16) VarlenTile {
  static constexpr int kRows = 128;

  std::int32_t sequence;
  std::int32_t first_row;    ///< in q
  std::int32_t num_rows;     ///< 1 … kRows
  std::int32_t first_limit;  ///< keys that its first row sees; each later row sees 1 more

  /// Keys that its last row sees, and with it the tile.
  [[nodiscard]] __host__ __device__ int limit() const { return first_limit + num_rows - 1; }
};

/// The list as kernels see it.
struct VarlenTiles {
  const VarlenTile* data;
  const std::int32_t* count;
};

/// Device memory of the schedule, allocated once. Not copyable; one per engine is enough, because
/// the ops that use it run in one stream.
class VarlenWorkspace {
 public:
  /// Room for steps of up to `max_seqs` sequences and `max_tokens` query rows, on the device that
  /// is current, which must be the context's.
  VarlenWorkspace(std::int64_t max_seqs, std::int64_t max_tokens, const Context&)
      : tiles_(static_cast<std::size_t>(max_tokens / VarlenTile::kRows + max_seqs)), count_(1) {}

  /// Tiles that fit.
  [[nodiscard]] std::int64_t capacity() const { return static_cast<std::int64_t>(tiles_.size()); }
  [[nodiscard]] VarlenTile* data() { return tiles_.data(); }
  [[nodiscard]] std::int32_t* count() { return count_.data(); }
  [[nodiscard]] VarlenTiles tiles() const { return {tiles_.data(), count_.data()}; }

 private:
  DeviceBuffer<VarlenTile> tiles_;
  DeviceBuffer<std::int32_t> count_;
};

struct VarlenPlanTraits {
  static constexpr int kThreads = 1024;
  static constexpr int kBins = 2 * kThreads;  ///< tiles with as many blocks of keys or more share
  static constexpr int kKeysPerBin = 128;
};

namespace detail {

/// Calls `visit(tile)` for the tiles of all sequences; a warp takes a sequence, a lane a tile.
template <class Visit>
__device__ __forceinline__ void for_each_varlen_tile(const std::int32_t* query_starts,
                                                     const std::int32_t* kv_lens, int num_seqs,
                                                     Visit visit) {
  constexpr int kRows = VarlenTile::kRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int s = warp; s < num_seqs; s += VarlenPlanTraits::kThreads / 32) {
    const int begin = query_starts[s], q_len = query_starts[s + 1] - begin;
    const int prefix = kv_lens[s] - q_len;
    for (int row = lane * kRows; row < q_len; row += 32 * kRows) {
      visit(VarlenTile{s, begin + row, min(kRows, q_len - row), prefix + row + 1});
    }
  }
}

/// Longest tiles have the lowest bins.
__device__ __forceinline__ int varlen_bin(const VarlenTile& tile) {
  const int blocks = ceil_div(tile.limit(), VarlenPlanTraits::kKeysPerBin);
  return VarlenPlanTraits::kBins - 1 - min(blocks, VarlenPlanTraits::kBins - 1);
}

}  // namespace detail

/// One block. `count` receives the number of tiles, never more than `capacity`.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads)
    plan_varlen_kernel(const std::int32_t* query_starts, const std::int32_t* kv_lens, int num_seqs,
                       int capacity, VarlenTile* tiles, std::int32_t* count) {
  using Scan = cub::BlockScan<int, Traits::kThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  __shared__ int next[Traits::kBins];
  grid_dependency_wait();
  grid_dependency_launch();
  const int t = static_cast<int>(threadIdx.x);
  next[2 * t] = next[2 * t + 1] = 0;
  __syncthreads();
  detail::for_each_varlen_tile(query_starts, kv_lens, num_seqs, [&](const VarlenTile& tile) {
    atomicAdd(&next[detail::varlen_bin(tile)], 1);
  });
  __syncthreads();
  int sizes[2] = {next[2 * t], next[2 * t + 1]}, total = 0;
  Scan(scan_storage).ExclusiveSum(sizes, sizes, total);
  next[2 * t] = sizes[0];
  next[2 * t + 1] = sizes[1];
  __syncthreads();
  detail::for_each_varlen_tile(query_starts, kv_lens, num_seqs, [&](const VarlenTile& tile) {
    const int place = atomicAdd(&next[detail::varlen_bin(tile)], 1);
    if (place < capacity) tiles[place] = tile;
  });
  if (t == 0) *count = min(total, capacity);
}

/// Writes the schedule of a step with `num_tokens` query rows into `workspace`, for the calls of
/// `varlen_attention` that follow in the stream with the same `query_starts` and `kv_lens`. Both
/// are device memory. Throws ShapeError when they do not fit together or not into the workspace.
inline void plan_varlen(VectorView<const std::int32_t> query_starts,
                        VectorView<const std::int32_t> kv_lens, std::int64_t num_tokens,
                        VarlenWorkspace& workspace, const Context& context) {
  const std::int64_t num_seqs = kv_lens.extent(0);
  check_shape("plan_varlen", "query_starts", query_starts, {num_seqs + 1});
  const std::int64_t most = num_tokens / VarlenTile::kRows + num_seqs;
  nanovllm::check<ShapeError>(most <= workspace.capacity(), "plan_varlen: ", num_seqs,
                              " sequences with ", num_tokens, " query rows may need ", most,
                              " tiles, the workspace has room for ", workspace.capacity());
  launch(plan_varlen_kernel<VarlenPlanTraits>, {.grid = 1, .block = VarlenPlanTraits::kThreads},
         context, query_starts.data, kv_lens.data, static_cast<int>(num_seqs),
         static_cast<int>(workspace.capacity()), workspace.data(), workspace.count());
}

}  // namespace nanovllm::cuda
