#pragma once
/// The draw of `linear_sample`: noise ahead of a tile's logits, what of them can win, and the winner
/// of all tiles.

#include <cstdint>
#include <limits>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/cuda/linear_sample/race.cuh"
#include "nanovllm/cuda/linear_sample/traits.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/sampling/math.cuh"

namespace nanovllm::cuda::detail {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Makes what a tile's logits are compared with from the best of this block so far and what other
/// blocks have told, if not the latest, and tells them. By the warps that draw noise, between two
/// tiles.
template <class Traits>
__device__ __forceinline__ void exchange_bounds(LinearSampleShared<Traits>& shared,
                                                const LinearSampleParams& p, int thread) {
  for (int r = thread; r < min(Traits::kColumns, p.rows); r += Traits::kNoiseThreads) {
    EntryTest& test = shared.tests[r];
    if (test.slope == 0) continue;  // cannot be raced
    const Entry& best = shared.best[r].entry;
    float at = logit_of(__ldcg(p.scratch.bounds + r));
    shared.known[r] = at;
    if (best.id != kNoToken && best.at < at) {
      at = best.at;
      atomicMin(p.scratch.bounds + r, key_of(at));
    }
    const bool draws = (shared.draws[r / 32] >> r % 32 & 1) != 0;
    test.threshold = fminf(test.threshold, draws ? threshold_of_draw(at) : threshold_of_greedy(at));
  }
}

/// The warps that draw noise: for each tile, the bytes as the consumers' threads want them.
template <class Traits>
__device__ __forceinline__ void linear_sample_noise(LinearSampleShared<Traits>& shared,
                                                    LinearSampleBarriers<Traits>& barriers,
                                                    const LinearSampleParams& p) {
  const int thread = static_cast<int>(threadIdx.x) - 32, first_tile = static_cast<int>(blockIdx.x);
  constexpr int kItems = 2 * Traits::kWords * 4 * 2 * 4;
  std::uint32_t parity = 1;
  for (int tile = first_tile; tile < p.tiles; tile += static_cast<int>(gridDim.x)) {
    mbarrier_wait(barriers.noise_empty, parity);
    parity ^= 1;
    const bool is_first = tile == first_tile;
    if (!is_first) exchange_bounds(shared, p, thread);
    for (int item = thread; item < kItems; item += Traits::kNoiseThreads) {
      const int c = item % 4, half = item / 4 % 2, warp = item / 8 % 4;
      const int word = item / 32 % Traits::kWords, warpgroup = item / 32 / Traits::kWords;
      const auto group = static_cast<std::uint32_t>(tile * Traits::kTokens + warpgroup * 64 +
                                                    warp * 16 + half * 4) /
                         4;
      std::uint32_t bytes[4] = {}, seconds[4] = {};
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {  // of two neighbouring rows, and the same 8 on
        const int column = 16 * word + 2 * c + i % 2 + i / 2 * 8;
        if (column >= Traits::kColumns || (shared.draws[column / 32] >> column % 32 & 1) == 0)
          continue;
        const ulonglong2 seed = shared.seeds[column];
        const auto first = sampling_words(seed.x, seed.y, group);
        const auto second = sampling_words(seed.x, seed.y, group + 2);
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const std::uint32_t a = first[static_cast<unsigned>(t)],
                              b = second[static_cast<unsigned>(t)];
          bytes[t] |= noise_byte(min(a, b)) << 8 * i;
          seconds[t] |= b < a ? 1u << i : 0u;
        }
      }
      const int place = (warpgroup * Traits::kWords + word) * 128 + warp * 32 + half * 16 + c;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        shared.noise[place + 4 * t] = bytes[t];
        if (is_first) shared.seconds()[place + 4 * t] = static_cast<std::uint8_t>(seconds[t]);
      }
    }
    mbarrier_arrive(barriers.noise_full);
  }
}

/// A consumer's part in the draw.
template <class Traits>
struct LinearSampleRace {
  LinearSampleShared<Traits>& shared;
  const LinearSampleParams& p;
  std::uint32_t* queue;        ///< of the warp: kQueue places, then two logits for each
  int thread, lane, warp_row;  ///< of 256; of 32; the warp's first token in a tile

  __device__ __forceinline__ LinearSampleRace(LinearSampleShared<Traits>& of_block,
                                              const LinearSampleParams& params)
      : shared(of_block),
        p(params),
        queue(of_block.queue + (threadIdx.x - 128) / 32 * Traits::kQueue * 3),
        thread(static_cast<int>(threadIdx.x) - 128),
        lane(thread % 32),
        warp_row(thread / 32 * 16) {}

  __device__ __forceinline__ const std::uint32_t* noise() const {
    return shared.noise + thread / 128 * Traits::kWords * 128 + thread % 128;
  }

  __device__ __forceinline__ const std::uint8_t* seconds() const {
    return shared.seconds() + (noise() - shared.noise);
  }

  /// The first thresholds of the rows, from the first tile of a block. Contains barriers of all
  /// consumers.
  __device__ __forceinline__ void begin(const float (&sum)[Traits::kSums], int first_token) {
    std::uint32_t* const bounds = shared.queue;
    static_assert(Traits::kQueueWords >= Traits::kColumns);
    for (int r = thread; r < Traits::kColumns; r += Traits::kConsumers) bounds[r] = kPlusInfKey;
    named_barrier_sync<Traits::kConsumers>(1);
    constexpr int kLeast = Traits::kColumns / 4;  // rows of a thread
    const bool counts = first_token + warp_row + lane / 4 + 8 < p.vocab;
    float least[kLeast];
    std::uint32_t bytes = 0, seconds = 0;
#pragma unroll
    for (int i = 0; i < kLeast; ++i) {
      const int j = i / 2, e = i % 2;
      if (i % 4 == 0) bytes = noise()[j / 2 * 128], seconds = this->seconds()[j / 2 * 128];
      const float level = j % 2 == 0 ? (e == 0 ? noise_level<0>(bytes) : noise_level<1>(bytes))
                                     : (e == 0 ? noise_level<2>(bytes) : noise_level<3>(bytes));
      const float x = (seconds & 1u << (j % 2 * 2 + e)) != 0 ? sum[4 * j + 2 + e] : sum[4 * j + e];
      const float slope = shared.tests[8 * j + lane % 4 * 2 + e].slope;
      const float at = fmaf(-x, slope, level);
      // One that is NaN is no bound.
      least[i] = fminf(std::numeric_limits<float>::infinity(),
                       counts && level < kMostLevel ? at : std::numeric_limits<float>::infinity());
    }
    // The lanes of a row share its tokens out: each keeps half of what it had, three times.
    const auto fold = [&]<int kHalf, int kOffset>() {
      if constexpr (kHalf < 1) {
        least[0] = fminf(least[0], __shfl_xor_sync(kAllLanes, least[0], kOffset));
      } else {
        const bool upper = (lane & kOffset) != 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const float other = upper ? least[i] : least[kHalf + i];
          const float mine = upper ? least[kHalf + i] : least[i];
          least[i] = fminf(mine, __shfl_xor_sync(kAllLanes, other, kOffset));
        }
      }
    };
    fold.template operator()<kLeast / 2, 16>();
    fold.template operator()<kLeast / 4, 8>();
    fold.template operator()<kLeast / 8, 4>();
    constexpr int kKept = kLeast / 8 > 0 ? kLeast / 8 : 1;
    const int first = (lane & 16) / 16 * (kLeast / 2) + (lane & 8) / 8 * (kLeast / 4) +
                      (lane & 4) / 4 * (kLeast / 8);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int column = (first + i) / 2 * 8 + lane % 4 * 2 + (first + i) % 2;
      atomicMin(bounds + column, key_of(least[i] + 0.f));
    }
    named_barrier_sync<Traits::kConsumers>(1);
    for (int r = thread; r < Traits::kColumns; r += Traits::kConsumers) {
      const float bound = logit_of(bounds[r]) + kLevelSlack;
      if (shared.tests[r].slope > 0 && bound < std::numeric_limits<float>::infinity())
        shared.tests[r].threshold = with_slack(bound);
    }
    named_barrier_sync<Traits::kConsumers>(1);
  }

  /// Enters what of a tile can win.
  __device__ __forceinline__ void offer(const float (&sum)[Traits::kSums], int first_token) {
    constexpr int kPairs = Traits::kColumns / 4;  // of a thread
    std::uint32_t goes = 0, bytes = 0;
#pragma unroll
    for (int pair = 0; pair < kPairs; pair += 2) {
      const int j = pair / 2;
      if (j % 2 == 0) bytes = noise()[j / 2 * 128];
      const float4 test = *reinterpret_cast<const float4*>(shared.tests + 8 * j + lane % 4 * 2);
      const float* const x = sum + 4 * j;
      const float levels[2] = {j % 2 == 0 ? noise_level<0>(bytes) : noise_level<2>(bytes),
                               j % 2 == 0 ? noise_level<1>(bytes) : noise_level<3>(bytes)};
      // NaN goes on, too.
      if (!(fmaf(fmaxf(x[0], x[2]), test.x, test.y) < levels[0])) goes |= 1u << pair;
      if (!(fmaf(fmaxf(x[1], x[3]), test.z, test.w) < levels[1])) goes |= 2u << pair;
    }
    // Pairs of a lane at least that are not in the queue yet.
    std::uint32_t left = __reduce_or_sync(kAllLanes, goes);
#pragma unroll 1
    while (left != 0) {
      const int place = lane % 4 * 2 << 16 | (warp_row + lane / 4);
      int count = 0;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        if ((left & 1u << pair) == 0) continue;
        const bool mine = (goes & 1u << pair) != 0;
        const unsigned mask = __ballot_sync(kAllLanes, mine);
        if (count + __popc(mask) > Traits::kQueue) continue;
        const int j = pair / 2;
        const float* const x = sum + 4 * j + pair % 2;
        if (mine) {
          const int slot = count + __popc(mask & ((1u << lane) - 1));
          queue[slot] = static_cast<std::uint32_t>(place + ((8 * j + pair % 2) << 16));
          queue[Traits::kQueue + 2 * slot] = __float_as_uint(x[0]);
          queue[Traits::kQueue + 2 * slot + 1] = __float_as_uint(x[2]);
        }
        count += __popc(mask);
        left &= ~(1u << pair);
      }
      __syncwarp();
      for (int i = lane; i < count; i += 32) enter(i, first_token);
      __syncwarp();
    }
  }

  /// Enters the two tokens of place i of the queue.
  __device__ __forceinline__ void enter(int i, int first_token) {
    const std::uint32_t place = queue[i];
    const int row = static_cast<int>(place >> 16);
    const RowRace race(p.settings[row]);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int id = first_token + static_cast<int>(place & 0xffffu) + 8 * half;
      if (id >= p.vocab) return;
      race.enter(__uint_as_float(queue[Traits::kQueue + 2 * i + half]), id, shared.best[row]);
    }
  }
};

/// Leaves the best of a block's rows, but for those known to be beaten, and finds the winners where
/// this is the last block. By all consumers.
template <class Traits>
__device__ __forceinline__ void linear_sample_finish(LinearSampleShared<Traits>& shared,
                                                     const LinearSampleParams& p) {
  const LinearSampleScratch& scratch = p.scratch;
  const int r = static_cast<int>(threadIdx.x) - 128;
  const auto blocks = static_cast<std::int64_t>(gridDim.x);
  named_barrier_sync<Traits::kConsumers>(1);
  if (r < min(Traits::kColumns, p.rows) && shared.best[r].entry.id != kNoToken) {
    const Entry mine = shared.best[r].entry;
    if (!RowRace(p.settings[r]).is_beaten(mine.at, shared.known[r])) {
      const unsigned slot = atomicAdd(scratch.counts + r, 1u);
      __stcg(scratch.entries + r * blocks + slot,
             float4{mine.at, __int_as_float(mine.id), mine.logit, 0.f});
    }
    __threadfence();
  }
  named_barrier_sync<Traits::kConsumers>(1);
  if (r == 0) {
    __threadfence();
    const unsigned ticket = atomicInc(scratch.ticket, gridDim.x - 1);
    shared.is_last = ticket == gridDim.x - 1 ? 1 : 0;
    __threadfence();
  }
  named_barrier_sync<Traits::kConsumers>(1);
  if (shared.is_last == 0 || r >= min(Traits::kColumns, p.rows)) return;
  __threadfence();
  const RowRace race(p.settings[r]);
  constexpr int kAhead = 8;
  const float4* const entries = scratch.entries + r * blocks;
  const auto count = static_cast<int>(__ldcg(scratch.counts + r));
  Entry best = no_entry();
#pragma unroll 1
  for (int begin = 0; begin == 0 || begin < count; begin += kAhead) {
    float at[kAhead], bound = best.at;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)  // the first ones are on their way with their count
      at[i] = begin + i < static_cast<int>(blocks) ? __ldcg(&entries[begin + i].x) : 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (begin + i < count) bound = fminf(bound, at[i]);
    unsigned close = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      close |= begin + i < count && !race.is_beaten(at[i], bound) ? 1u << i : 0u;
#pragma unroll 1
    for (; close != 0; close &= close - 1) {
      const float4 next = __ldcg(entries + begin + __ffs(static_cast<int>(close)) - 1);
      const Entry other{next.x, __float_as_int(next.y), next.z};
      if (race.beats(other, best)) best = other;
    }
  }
  scratch.counts[r] = 0;
  scratch.bounds[r] = kPlusInfKey;
  p.tokens[r] = best.id == kNoToken ? 0 : best.id;
}

/// Prepares the rows in shared memory. By one thread a row.
template <class Traits>
__device__ __forceinline__ void linear_sample_prepare(LinearSampleShared<Traits>& shared,
                                                      const LinearSampleParams& p, int r) {
  bool draws = false;
  if (r < min(Traits::kColumns, p.rows)) {
    const RowRace race(p.settings[r]);
    draws = race.draws;
    shared.tests[r] = {race.slope(), std::numeric_limits<float>::infinity()};
    shared.seeds[r] = {race.draw.seed, race.draw.position};
  } else if (r < Traits::kColumns) {
    shared.tests[r] = {0.f, -std::numeric_limits<float>::infinity()};
    shared.seeds[r] = {};
  }
  if (r < Traits::kColumns) {
    shared.best[r] = {no_entry(), 0};
    shared.known[r] = std::numeric_limits<float>::infinity();
  }
  const unsigned mask = __ballot_sync(kAllLanes, draws);
  if (r % 32 == 0) shared.draws[r / 32] = mask;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace nanovllm::cuda::detail
