#pragma once
/// Selecting from a row without sorting it: the prefix, in descending order, that reaches a number
/// of tokens or a mass.
///
/// A round counts the tokens (and adds up their masses) in 2048 bins and goes on in the bin where
/// the goal is reached; once a bin fits into shared memory, its tokens are sorted there. The first
/// round's bins are equally wide in logits, and mostly the only ones; later bins are of keys, so
/// that each round narrows the range by 2^10 at least. Only tiles whose largest logit says so are
/// read. Numbers and masses are integers: results do not depend on the order of the atomics.

#include <cstdint>
#include <limits>

#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/row_tiles.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"

namespace nanovllm::cuda {

/// Shared memory of the selection.
struct SelectShared {
  unsigned long long list[kSelectCapacity];  ///< key above, ~id below: the order of the contract
  struct {
    std::uint32_t count[kSelectBins], mass_low[kSelectBins], mass_high[kSelectBins];
  } bins;
  Mass few_masses[kSelectFew];
  std::uint32_t few_kth;
  std::uint32_t list_size;
  std::uint32_t warp_counts[kSelectWarps];
  Mass warp_masses[kSelectWarps];
  struct Crossing {
    int index;  ///< of the bin or token that reaches the goal; -1 when none does
    std::uint32_t count_before, count;
    Mass mass_before, mass;
  } crossing;
};

/// A range of keys in bins, the largest keys in bin 0.
struct Bins {
  std::uint32_t low, high;  ///< inclusive
  bool by_logit;
  int shift = 0;         ///< by key: log2 of a bin's keys
  float top, per_logit;  ///< by logit

  __device__ Bins(std::uint32_t low_key, std::uint32_t high_key, bool linear)
      : low(low_key), high(high_key), by_logit(linear), top(logit_of(high_key)) {
    const std::uint32_t span = high - low;
    shift = max(0, 32 - __clz(static_cast<int>(span)) - kSelectBinBits);
    // A range that float32 cannot divide up is divided by key.
    per_logit = kSelectBins / (top - logit_of(low));
    by_logit = by_logit && shift > 0 && per_logit > 0 && per_logit < 0x1p100f;
  }
  [[nodiscard]] __device__ __forceinline__ int operator()(std::uint32_t key) const {
    if (!by_logit) return static_cast<int>((high - key) >> shift);
    return min(__float2int_rz(__fmul_rn(__fsub_rn(top, logit_of(key)), per_logit)),
               kSelectBins - 1);
  }
  /// Leaves only bin `index`.
  __device__ void narrow(int index) {
    const std::uint32_t old_low = low;
    low = first_key(old_low, high, [&](std::uint32_t key) { return (*this)(key) <= index; });
    if (index > 0) {
      high = first_key(old_low, high, [&](std::uint32_t key) { return (*this)(key) < index; }) - 1;
    }
  }
};

/// What a prefix must reach, and what is before the range that it ends in.
struct Goal {
  bool by_mass;
  std::uint32_t count;  ///< ≥ 1
  double mass;
  std::uint32_t count_before = 0;
  Mass mass_before = 0;

  [[nodiscard]] __device__ bool reached(std::uint32_t more, Mass more_mass) const {
    return by_mass ? static_cast<double>(mass_before + more_mass) >= mass
                   : count_before + more >= count;
  }
};

/// What the filters keep: tokens with keys above `key` and, among those with it, ids up to `last`.
struct Cut {
  std::uint32_t key = kLowestKey;
  TokenId last = std::numeric_limits<TokenId>::max();

  [[nodiscard]] __device__ bool keeps(std::uint32_t other, TokenId id) const {
    return other > key || (other == key && id <= last);
  }
};

__device__ __forceinline__ void clear_bins(SelectShared& shared, bool with_masses) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSelectBins; i += kSelectThreads) {
    shared.bins.count[i] = 0;
    if (with_masses) shared.bins.mass_low[i] = shared.bins.mass_high[i] = 0;
  }
  __syncthreads();
}

__device__ __forceinline__ void add_to_bin(SelectShared& shared, int bin, Mass mass) {
  atomicAdd(&shared.bins.count[bin], 1u);
  if (mass == 0) return;
  const auto low = static_cast<std::uint32_t>(mass);
  const std::uint32_t before = atomicAdd(&shared.bins.mass_low[bin], low);
  const std::uint32_t high =
      static_cast<std::uint32_t>(mass >> 32) + (before + low < before ? 1u : 0u);
  if (high != 0) atomicAdd(&shared.bins.mass_high[bin], high);
}

/// Finds where the running sum over kPer · kSelectThreads items reaches the goal; item(i, count,
/// mass) tells what is there. Contains barriers; afterwards shared.crossing is valid. Returns the
/// mass of all items.
template <int kPer, class Item>
__device__ Mass find_crossing(SelectShared& shared, const Goal& goal, Item item) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t counts[kPer], count = 0;
  Mass masses[kPer], mass = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    counts[i] = 0, masses[i] = 0;
    item(static_cast<int>(threadIdx.x) * kPer + i, counts[i], masses[i]);
    count += counts[i], mass += masses[i];
  }
  std::uint32_t count_to = count;  // inclusive prefix sums of the warp's threads
  Mass mass_to = mass;
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, count_to, offset);
    if (lane >= offset) count_to += other;
    if (!goal.by_mass) continue;
    const Mass other_mass = __shfl_up_sync(kAllLanes, mass_to, offset);
    if (lane >= offset) mass_to += other_mass;
  }
  if (threadIdx.x == 0) shared.crossing = {.index = -1};
  if (lane == 31) shared.warp_counts[warp] = count_to, shared.warp_masses[warp] = mass_to;
  __syncthreads();
  count_to -= count, mass_to -= mass;
  for (unsigned w = 0; w < warp; ++w) {
    count_to += shared.warp_counts[w], mass_to += shared.warp_masses[w];
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    // The first token is in the prefix even if nothing is to be reached.
    const bool is_open = count_to == 0 || !goal.reached(count_to, mass_to);
    if (counts[i] > 0 && is_open && goal.reached(count_to + counts[i], mass_to + masses[i])) {
      shared.crossing = {static_cast<int>(threadIdx.x) * kPer + i, count_to, counts[i], mass_to,
                         masses[i]};
    }
    count_to += counts[i], mass_to += masses[i];
  }
  Mass total = 0;
  for (const Mass part : shared.warp_masses) total += part;
  __syncthreads();
  return total;
}

/// Fills shared.list with the tokens that `cut` keeps up to key `high`, in any order. Returns their
/// number; beyond kSelectCapacity the list is incomplete. Contains barriers.
__device__ inline std::uint32_t gather(RowTiles row, const Cut& cut, std::uint32_t high,
                                       SelectShared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.list_size = 0;
  __syncthreads();
  visit_tiles(row, cut.key, [&](TokenId first, const std::uint32_t(&keys)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!cut.keeps(keys[i], first + i) || keys[i] > high) continue;
      const std::uint32_t slot = atomicAdd(&shared.list_size, 1u);
      if (slot >= kSelectCapacity) continue;
      shared.list[slot] =
          static_cast<unsigned long long>(keys[i]) << 32 | ~static_cast<std::uint32_t>(first + i);
    }
  });
  __syncthreads();
  return shared.list_size;
}

__device__ __forceinline__ std::uint32_t list_key(const SelectShared& shared, int i) {
  return static_cast<std::uint32_t>(shared.list[i] >> 32);
}
__device__ __forceinline__ TokenId list_id(const SelectShared& shared, int i) {
  return static_cast<TokenId>(~static_cast<std::uint32_t>(shared.list[i]));
}

/// Sorts the list, `size` ≤ kSelectCapacity, best first (bitonic). Contains barriers.
__device__ inline void sort_list(SelectShared& shared, int size) {
  int padded = 1;
  while (padded < size) padded *= 2;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = size + thread; i < padded; i += kSelectThreads) shared.list[i] = 0;
  for (int run = 2; run <= padded; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = thread; pair < padded / 2; pair += kSelectThreads) {
        const int i = 2 * pair - (pair & (step - 1)), j = i + step;
        const unsigned long long a = shared.list[i], b = shared.list[j];
        const bool descending = (i & run) == 0;
        if ((a < b) == descending) shared.list[i] = b, shared.list[j] = a;
      }
    }
  }
  __syncthreads();
}

/// The id of the `count`-th of the tokens with `key`, lowest first. Contains barriers.
__device__ __noinline__ inline TokenId find_tie(RowTiles row, std::uint32_t key,
                                                std::uint32_t count, SelectShared& shared) {
  std::int64_t begin = 0, size = row.vocab;
  while (true) {
    int shift = 0;
    while ((size - 1) >> shift >= kSelectBins) ++shift;
    clear_bins(shared, false);
    visit_tiles(row, key, [&](TokenId first, const std::uint32_t(&keys)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t at = first + i - begin;
        if (keys[i] == key && at >= 0 && at < size) {
          atomicAdd(&shared.bins.count[at >> shift], 1u);
        }
      }
    });
    find_crossing<kSelectBins / kSelectThreads>(
        shared, {.by_mass = false, .count = count, .mass = 0},
        [&](int i, std::uint32_t& n, Mass&) { n = shared.bins.count[i]; });
    const auto crossing = shared.crossing;
    if (crossing.index < 0) return std::numeric_limits<TokenId>::max();
    begin += std::int64_t{crossing.index} << shift;
    if (shift == 0) return static_cast<TokenId>(begin);
    size = std::int64_t{1} << shift;
    count -= crossing.count_before;
  }
}

/// The shortest prefix that reaches the goal, among the tokens with keys in [low, high], high being
/// the largest left; all of them if they do not reach it. Contains barriers.
__device__ __noinline__ inline Cut find_prefix(RowTiles row, Goal goal, std::uint32_t low,
                                               std::uint32_t high, SelectShared& shared) {
  Bins bins(low, high, true);
  while (true) {
    clear_bins(shared, goal.by_mass);
    const Bins now = bins;  // in registers: `bins` has an address
    visit_tiles(row, now.low, [&](TokenId, const std::uint32_t(&keys)[4]) {
      Mass masses[4] = {};
      if (goal.by_mass) {  // without a branch per token, so that the four overlap
#pragma unroll
        for (int i = 0; i < 4; ++i) masses[i] = row.mass_of_key(keys[i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (keys[i] >= now.low && keys[i] <= now.high) {
          add_to_bin(shared, now(keys[i]), masses[i]);
        }
      }
    });
    find_crossing<kSelectBins / kSelectThreads>(
        shared, goal, [&](int i, std::uint32_t& count, Mass& mass) {
          count = shared.bins.count[i];
          mass = static_cast<Mass>(shared.bins.mass_high[i]) << 32 | shared.bins.mass_low[i];
        });
    const auto crossing = shared.crossing;
    if (crossing.index < 0) return {.key = bins.low};
    bins.narrow(crossing.index);
    goal.count_before += crossing.count_before;
    goal.mass_before += crossing.mass_before;
    if (crossing.count <= kSelectCapacity) break;
    if (bins.low == bins.high) {
      std::uint32_t ties = goal.count - goal.count_before;
      if (goal.by_mass) {
        const auto each = static_cast<double>(row.mass_of_key(bins.low));
        const double needed = (goal.mass - static_cast<double>(goal.mass_before)) / each;
        ties = needed < 1 ? 1 : static_cast<std::uint32_t>(fmin(ceil(needed), crossing.count));
      }
      return {.key = bins.low, .last = find_tie(row, bins.low, ties, shared)};
    }
    bins = Bins(bins.low, bins.high, false);
  }
  const auto size = static_cast<int>(gather(row, {.key = bins.low}, bins.high, shared));
  sort_list(shared, size);
  find_crossing<kSelectCapacity / kSelectThreads>(shared, goal,
                                                  [&](int i, std::uint32_t& count, Mass& mass) {
                                                    if (i >= size) return;
                                                    count = 1;
                                                    if (goal.by_mass)
                                                      mass = row.mass_of_key(list_key(shared, i));
                                                  });
  const int last = shared.crossing.index < 0 ? size - 1 : shared.crossing.index;
  return {.key = list_key(shared, last), .last = list_id(shared, last)};
}

/// Counts the tiles by their maxima and finds the bin of the goal. Contains barriers.
__device__ inline SelectShared::Crossing count_maxima(RowTiles row, const Bins& bins,
                                                      const Goal& goal, SelectShared& shared) {
  clear_bins(shared, false);
  for (int i = static_cast<int>(threadIdx.x); i < row.num_tiles(); i += kSelectThreads) {
    const std::uint32_t key = row.maxima[i];
    if (key >= bins.low && key <= bins.high) atomicAdd(&shared.bins.count[bins(key)], 1u);
  }
  find_crossing<kSelectBins / kSelectThreads>(
      shared, goal, [&](int i, std::uint32_t& n, Mass&) { n = shared.bins.count[i]; });
  return shared.crossing;
}

/// A key that at least `count` tokens of the row reach, found from its tiles' maxima; `otherwise`
/// when there are too few tiles. Contains barriers.
__device__ inline std::uint32_t bound_of_largest(RowTiles row, std::uint32_t count,
                                                 std::uint32_t otherwise, SelectShared& shared) {
  if (count > static_cast<std::uint32_t>(row.num_tiles())) return otherwise;
  Goal goal{.by_mass = false, .count = count, .mass = 0};
  constexpr std::uint32_t kFew = 16;  // bins of few tiles gain nothing by another round
  constexpr float kDepth = 32;        // logits are of this order: one round mostly
  const std::uint32_t deep = key_of(clean(row.largest - kDepth));
  if (fabsf(row.largest) < 1e4f) {  // or the bins are finer than float32
    const Bins bins(deep, row.largest_key(), true);
    const auto crossing = count_maxima(row, bins, goal, shared);
    if (crossing.index >= 0 && crossing.count <= kFew) {
      const float bound =
          row.largest - (static_cast<float>(crossing.index) + 1.25f) / bins.per_logit;
      return key_of(clean(bound));  // 1/4 is more than the bins' rounding
    }
  }
  Bins bins(otherwise, row.largest_key(), false);
  while (true) {
    const auto crossing = count_maxima(row, bins, goal, shared);
    if (crossing.index < 0) return otherwise;
    bins.narrow(crossing.index);
    goal.count_before += crossing.count_before;
    if (bins.low == bins.high || crossing.count <= kFew) return bins.low;
    bins = Bins(bins.low, bins.high, false);
  }
}

}  // namespace nanovllm::cuda
