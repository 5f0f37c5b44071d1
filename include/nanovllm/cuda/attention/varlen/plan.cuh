#pragma once
/// The schedule of `varlen_attention`: the work of a step as a list of items, the longest sequences
/// first. An item is a tile of up to 128 query rows of one sequence, for one head.
///
/// The host knows how many sequences and rows there are, the device how they divide. One small
/// kernel a step, before all layers, sorts the sequences by the number of their keys (a counting
/// sort in one block; sequences of about equal length come in no fixed order, which moves no
/// result) and lists each as often as it has tiles. Item i is found from entry i / heads:
///
///   a sequence's items: sections of kv heads; in each the tiles, last (longest) first; in each
///   tile the section's query heads
///
/// so that the items in flight at a time share the keys and values of few kv heads, which then stay
/// in L2: a section has as many kv heads as fit into `kVarlenSectionBytes`.
/// Source: Shah et al., "FlashAttention-3", 2024 (its scheduler sorts and cuts alike).
/// Measured: varlen_attention_bench, cuda_varlen_attention.json, needed: 1.8 us a step of 256
/// prompts, 3.3 of one of 16,384 tokens.

#include <cub/block/block_scan.cuh>

#include <cstdint>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/attention/varlen/tuning.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/device_buffer.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"

namespace nanovllm::cuda {

/// One sequence of the schedule. It stands in `ceil_div(q_len, 128)` neighbouring entries.
struct alignas(16) VarlenEntry {
  std::int32_t sequence;
  std::int32_t first_row;    ///< in q
  std::int32_t q_len;        ///< ≥ 1
  std::int32_t prefix;       ///< keys ahead of its first row
  std::int32_t first_entry;  ///< number of the first of its entries
  std::int32_t unused[3];
};

/// Numbers of the schedule, kept by the device.
struct VarlenCounters {
  std::int32_t entries;
  std::int32_t next;  ///< items given to persistent blocks beyond their first; 0 between kernels
  std::int32_t finished;  ///< blocks that were told that there are no more; 0 between kernels
};

/// The schedule as kernels see it.
struct VarlenSchedule {
  const VarlenEntry* entries;
  VarlenCounters* counters;
};

/// One item: up to 128 neighbouring query rows of one sequence, one head.
struct VarlenItem {
  static constexpr int kRows = kVarlenRows;

  int sequence;
  int first_row;    ///< in q
  int num_rows;     ///< 1 … kRows; 0 means that there is no work left
  int first_limit;  ///< keys that its first row sees; each later row sees 1 more
  int head;
  int new_from;  ///< position from which whole tiles of keys are this step's (`varlen_new_from`)

  /// Keys that its last row sees, and with it the tile.
  [[nodiscard]] __device__ __forceinline__ int limit() const { return first_limit + num_rows - 1; }
};

/// Item `i` < entries · heads. `section_keys` is kVarlenSectionBytes over the bytes of a key and
/// its value in one kv head.
__device__ __forceinline__ VarlenItem varlen_item(const VarlenSchedule& schedule, int i, int heads,
                                                  int kv_heads, int section_keys) {
  const VarlenEntry* const entry = schedule.entries + i / heads;
  const int4 a = *reinterpret_cast<const int4*>(entry);
  const int sequence = a.x, first_row = a.y, q_len = a.z, prefix = a.w;
  const int local = i - entry->first_entry * heads;
  int section = kv_heads & -kv_heads;  // a power of two, so that sections are equal
  while (section > 1 && section > section_keys / (prefix + q_len)) section /= 2;
  section *= heads / kv_heads;
  const int tiles = ceil_div(q_len, VarlenItem::kRows), of_section = local % (tiles * section);
  const int row = (tiles - 1 - of_section / section) * VarlenItem::kRows;
  return {sequence,
          first_row + row,
          min(VarlenItem::kRows, q_len - row),
          prefix + row + 1,
          local / (tiles * section) * section + of_section % section,
          varlen_new_from(prefix, q_len)};
}

/// Device memory of the schedule, allocated once, and the tensor maps of the kernel for Hopper. One
/// per engine is enough, because the ops that use it run in one stream.
class VarlenWorkspace {
 public:
  /// Room for steps of up to `max_num_seqs` sequences and `max_num_batched_tokens` query rows, on
  /// the device that is current, which must be the context's.
  VarlenWorkspace(std::int64_t max_num_seqs, std::int64_t max_num_batched_tokens, const Context&)
      : entries_(
            static_cast<std::size_t>(varlen_max_entries(max_num_seqs, max_num_batched_tokens))),
        counters_(1) {}

  [[nodiscard]] std::int64_t capacity() const { return static_cast<std::int64_t>(entries_.size()); }
  [[nodiscard]] VarlenEntry* entries() { return entries_.data(); }
  [[nodiscard]] VarlenCounters* counters() { return counters_.data(); }
  [[nodiscard]] VarlenSchedule schedule() { return {entries_.data(), counters_.data()}; }
  /// Descriptions of the cache and of this step's rows for the copy engine.
  [[nodiscard]] TensorMaps& tensor_maps() { return tensor_maps_; }

 private:
  DeviceBuffer<VarlenEntry> entries_;
  DeviceBuffer<VarlenCounters> counters_;
  TensorMaps tensor_maps_;
};

struct VarlenPlanTraits {
  static constexpr int kThreads = 1024;
  static constexpr int kBins = 2 * kThreads;  ///< the longest share bin 0
  static constexpr int kKeysPerBin = 128;
};

/// One block; a thread takes a sequence. Never more than `capacity` entries.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads)
    plan_varlen_kernel(const std::int32_t* query_starts, const std::int32_t* kv_lens, int num_seqs,
                       int capacity, VarlenEntry* entries, VarlenCounters* counters) {
  using Scan = cub::BlockScan<int, Traits::kThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  __shared__ int next[Traits::kBins];
  const int t = static_cast<int>(threadIdx.x);
  const auto bin = [](int kv_len) {
    return Traits::kBins - 1 - min(ceil_div(kv_len, Traits::kKeysPerBin), Traits::kBins - 1);
  };
  grid_dependency_wait();
  grid_dependency_launch();
  next[2 * t] = next[2 * t + 1] = 0;
  __syncthreads();
  for (int s = t; s < num_seqs; s += Traits::kThreads) {
    atomicAdd(&next[bin(kv_lens[s])],
              ceil_div(query_starts[s + 1] - query_starts[s], VarlenItem::kRows));
  }
  __syncthreads();
  int sizes[2] = {next[2 * t], next[2 * t + 1]}, total = 0;
  Scan(scan_storage).ExclusiveSum(sizes, sizes, total);
  next[2 * t] = sizes[0];
  next[2 * t + 1] = sizes[1];
  __syncthreads();
  for (int s = t; s < num_seqs; s += Traits::kThreads) {
    const int begin = query_starts[s], q_len = query_starts[s + 1] - begin, kv_len = kv_lens[s];
    const int tiles = ceil_div(q_len, VarlenItem::kRows);
    const int first = atomicAdd(&next[bin(kv_len)], tiles);
    for (int i = first; i < min(first + tiles, capacity); ++i) {
      entries[i] = VarlenEntry{s, begin, q_len, kv_len - q_len, first, {}};
    }
  }
  if (t == 0) *counters = {min(total, capacity), 0, 0};
}

/// Writes the schedule of a step with `num_tokens` query rows into `workspace`, for the calls of
/// `varlen_attention` that follow in the stream with the same `query_starts` and `kv_lens`. Both
/// are device memory. Throws ShapeError when they do not fit together or not into the workspace.
void plan_varlen(VectorView<const std::int32_t> query_starts,
                 VectorView<const std::int32_t> kv_lens, std::int64_t num_tokens,
                 VarlenWorkspace& workspace, const LaunchContext auto& context) {
  const std::int64_t num_seqs = kv_lens.extent(0);
  check_shape("plan_varlen", "query_starts", query_starts, {num_seqs + 1});
  const std::int64_t most = varlen_max_entries(num_seqs, num_tokens);
  check<ShapeError>(most <= workspace.capacity(), "plan_varlen: ", num_seqs, " sequences with ",
                    num_tokens, " query rows may need ", most,
                    " tiles, the workspace has room for ", workspace.capacity());
  launch(plan_varlen_kernel<VarlenPlanTraits>, {.grid = 1, .block = VarlenPlanTraits::kThreads},
         context, query_starts.data, kv_lens.data, static_cast<int>(num_seqs),
         static_cast<int>(workspace.capacity()), workspace.entries(), workspace.counters());
}

}  // namespace nanovllm::cuda
