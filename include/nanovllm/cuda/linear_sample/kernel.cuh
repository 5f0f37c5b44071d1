#pragma once
/// Logits and the plain draw from them in one kernel, by wgmma and TMA (sm_90a): logits[r, t] =
/// Σ_k x[r, k] · W[t, k] stay in registers, and a token for every row comes out (ops/sampler.hpp,
/// plain rows). The same products as a kernel that stores float32 logits: the same bits.
///
/// x [M, K] and W [vocab, K] bf16 with 16-byte aligned rows, K a multiple of 8, M up to kColumns.
///
/// A block goes through tiles of kTokens rows of W. A thread of its first warpgroup copies panels of
/// 64 columns of W and x into a ring; blocks of a cluster bring each other parts of x. Two
/// warpgroups multiply: rows of W are wgmma's 64 rows (operand A), rows of x its columns. So a
/// thread has two tokens, 8 apart, for each of a quarter of the rows. Meanwhile the other three
/// warps of the first warpgroup draw the noise of the tile, a byte for two tokens (race.cuh). What
/// can win is put into a queue of the warp, and entered in its row by all lanes.
///
/// At its end a block leaves the best of each row, unless an earlier block's arrives well before it,
/// and the last block to be done finds the winners.
///
/// Sums are in float32, one chain along K, whatever the number of rows.
///
/// Moved: W once from memory, x once for each tile from L2, 16 bytes for each row and some blocks.

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/linear_sample/race.cuh"
#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/ptx/mbarrier.cuh"
#include "nanovllm/cuda/ptx/mma.cuh"
#include "nanovllm/cuda/ptx/named_barrier.cuh"
#include "nanovllm/cuda/ptx/tma.cuh"
#include "nanovllm/cuda/ptx/wgmma.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/ops/sampling_batch.hpp"

namespace nanovllm::cuda {

/// Device memory that blocks meet in. Between calls `counts` and `ticket` are 0 and `bounds` those
/// of no arrival.
struct LinearSampleScratch {
  std::uint32_t* bounds = nullptr;  ///< [rows], key of the earliest arrival left so far
  unsigned* counts = nullptr;       ///< [rows], entries left so far
  float4* entries = nullptr;        ///< [rows, blocks]: arrival, id, logit
  unsigned* ticket = nullptr;       ///< blocks that are done
};

/// Operands, by value.
struct LinearSampleParams {
  float* logits;  ///< [rows, stride], of the form that stores them
  std::int64_t logits_stride;
  const SamplingRow* settings;  ///< [rows]
  TokenId* tokens;              ///< [rows]
  LinearSampleScratch scratch;
  std::int32_t rows;
  std::int32_t vocab;
  std::int32_t panels;  ///< of 64 columns, in K
  std::int32_t tiles;   ///< of W
};

namespace detail {

/// Sizes that follow from how a block is cut, see `LinearSampleBlock`.
template <int kColumnsOfBlock, int kSubtilesOfBlock, int kStagesOfBlock, int kClusterOfBlock,
          bool kStoresLogits>
struct LinearSampleTraits {
  static constexpr int kColumns = kColumnsOfBlock;    ///< rows of x
  static constexpr int kSubtiles = kSubtilesOfBlock;  ///< of 64 tokens, of a warpgroup
  static constexpr int kStages = kStagesOfBlock, kCluster = kClusterOfBlock;
  static constexpr bool kStores = kStoresLogits;
  static constexpr int kTokens = 2 * 64 * kSubtiles;
  static constexpr int kConsumers = 256, kThreads = 128 + kConsumers;
  static constexpr int kNoiseThreads = 96;
  static constexpr int kRowBytes = kTmaColumns * 2;
  static constexpr int kXBytes = kColumns * kRowBytes, kWeightBytes = kTokens * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kSums = kColumns / 2;  ///< of a thread and subtile
  static constexpr int kWords = ceil_div(kColumns, 16);  ///< of noise, of a thread and subtile
  static constexpr int kNoiseWords = 2 * kSubtiles * kWords * 128;
  static constexpr int kQueue = 64;  ///< entries of a warp's queue
  static constexpr int kQueueWords = kConsumers / 32 * kQueue * 3;
  static constexpr int kAlignment = 1024;
  static constexpr bool kMovesRegisters = kSums * kSubtiles >= 128;

  static_assert(kColumns >= 8 && kColumns <= 256 && kColumns % kCluster == 0 && kStages >= 2);
  static_assert(kXBytes / kCluster % kAlignment == 0);
};

/// What else than the ring is in shared memory.
template <class Traits>
struct LinearSampleShared {
  std::uint32_t noise[Traits::kNoiseWords];
  alignas(16) EntryTest tests[Traits::kColumns];
  BestEntry best[Traits::kColumns];
  ulonglong2 seeds[Traits::kColumns];  ///< seed and position
  std::uint32_t queue[Traits::kQueueWords];
  std::uint32_t draws[8];  ///< a bit for each row that is drawn
  unsigned is_last;
};

template <class Traits>
[[nodiscard]] constexpr std::size_t linear_sample_shared_bytes() {
  const std::size_t ring = static_cast<std::size_t>(Traits::kStages) * Traits::kStageBytes;
  return ring + Traits::kAlignment + (Traits::kStores ? 0 : sizeof(LinearSampleShared<Traits>));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The barriers of a block.
template <class Traits>
struct LinearSampleBarriers {
  std::uint64_t full[Traits::kStages], empty[Traits::kStages];
  std::uint64_t noise_full, noise_empty;
};

/// Which tiles are a block's: those of its cluster go on by as many as there are blocks.
template <class Traits>
struct LinearSampleTiles {
  int first, step, rounds;

  __device__ __forceinline__ explicit LinearSampleTiles(int tiles) {
    const int block = static_cast<int>(blockIdx.x), cluster = block / Traits::kCluster;
    first = block;
    step = static_cast<int>(gridDim.x);
    const int groups = (tiles + Traits::kCluster - 1) / Traits::kCluster;
    const int clusters = step / Traits::kCluster;
    rounds = cluster < groups ? (groups - cluster + clusters - 1) / clusters : 0;
  }
};

/// Copies a box to the same place in all blocks of the cluster, whose barriers count it there.
template <int kCluster>
__device__ __forceinline__ void linear_sample_load_shared(void* to, const CUtensorMap& map,
                                                          int column, int row,
                                                          std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)),
      "h"(static_cast<std::uint16_t>((1 << kCluster) - 1))
      : "memory");
}

/// The thread that copies.
template <class Traits>
__device__ __forceinline__ void linear_sample_copy(std::byte* ring,
                                                   LinearSampleBarriers<Traits>& barriers,
                                                   const CUtensorMap& w_map,
                                                   const CUtensorMap& x_map,
                                                   const LinearSampleParams& p) {
  constexpr int kShare = Traits::kColumns / Traits::kCluster;  // rows of x that this block brings
  const LinearSampleTiles<Traits> tiles(p.tiles);
  const int rank = static_cast<int>(blockIdx.x) % Traits::kCluster;
  const auto load_weights = [&](int tile, int panel, int stage) {
    tma_load(ring + stage * Traits::kStageBytes + Traits::kXBytes, w_map,
             {panel * kTmaColumns, tile * Traits::kTokens}, barriers.full[stage]);
  };
  const auto load_x = [&](int panel, int stage) {
    std::byte* const to = ring + stage * Traits::kStageBytes;
    if constexpr (Traits::kCluster == 1) {
      tma_load(to, x_map, {panel * kTmaColumns, 0}, barriers.full[stage]);
    } else {
      linear_sample_load_shared<Traits::kCluster>(to + rank * kShare * Traits::kRowBytes, x_map,
                                                  panel * kTmaColumns, rank * kShare,
                                                  barriers.full[stage]);
    }
  };
  const int panels = tiles.rounds * p.panels, ahead = min(panels, Traits::kStages);
  int tile = tiles.first, panel = 0;
  const auto advance = [&] {
    if (++panel == p.panels) panel = 0, tile += tiles.step;
  };
  for (int i = 0; i < ahead; ++i, advance()) {
    mbarrier_arrive_expect(barriers.full[i], Traits::kStageBytes);
    load_weights(tile, panel, i);
  }
  tma_prefetch_map(x_map);
  grid_dependency_wait();
  grid_dependency_launch();
  async_proxy_fence_global();
  for (int i = 0, at = 0; i < ahead; ++i) {
    load_x(at, i);
    if (++at == p.panels) at = 0;
  }
  RingPosition<Traits::kStages> at;
  for (int i = ahead; i < panels; ++i, advance()) {
    if constexpr (Traits::kCluster == 1) {
      mbarrier_wait(barriers.empty[at.stage], at.parity);
    } else {
      mbarrier_wait_cluster(barriers.empty[at.stage], at.parity);
    }
    mbarrier_arrive_expect(barriers.full[at.stage], Traits::kStageBytes);
    load_x(panel, at.stage);
    load_weights(tile, panel, at.stage);
    at.advance();
  }
}

/// The warps that draw noise: for each tile, the bytes as the consumers' threads want them.
template <class Traits>
__device__ __forceinline__ void linear_sample_noise(LinearSampleShared<Traits>& shared,
                                                    LinearSampleBarriers<Traits>& barriers,
                                                    const LinearSampleParams& p) {
  const LinearSampleTiles<Traits> tiles(p.tiles);
  const int thread = static_cast<int>(threadIdx.x) - 32;
  constexpr int kItems = 2 * Traits::kSubtiles * Traits::kWords * 4 * 2 * 4;
  std::uint32_t parity = 1;
  for (int tile = tiles.first; tile < p.tiles; tile += tiles.step) {
    mbarrier_wait(barriers.noise_empty, parity);
    parity ^= 1;
    for (int item = thread; item < kItems; item += Traits::kNoiseThreads) {
      const int c = item % 4, half = item / 4 % 2, warp = item / 8 % 4;
      const int word = item / 32 % Traits::kWords, subtile = item / 32 / Traits::kWords;
      const auto group = static_cast<std::uint32_t>(tile * Traits::kTokens + subtile * 64 +
                                                    warp * 16 + half * 4) /
          4;
      std::uint32_t bytes[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // of two neighbouring rows, and the same 8 on
        const int column = 16 * word + 2 * c + i % 2 + i / 2 * 8;
        if (column >= Traits::kColumns || (shared.draws[column / 32] >> column % 32 & 1) == 0)
          continue;
        const ulonglong2 seed = shared.seeds[column];
        const auto first = sampling_words(seed.x, seed.y, group);
        const auto second = sampling_words(seed.x, seed.y, group + 2);
#pragma unroll
        for (int t = 0; t < 4; ++t)
          bytes[t] |= noise_byte(min(first[static_cast<unsigned>(t)],
                                     second[static_cast<unsigned>(t)]))
              << 8 * i;
      }
      std::uint32_t* const to = shared.noise + (subtile * Traits::kWords + word) * 128 + warp * 32 +
          half * 16 + c;
#pragma unroll
      for (int t = 0; t < 4; ++t) to[4 * t] = bytes[t];
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.noise_full);
  }
}

/// Frees a stage of the ring, in all blocks that write to it.
template <class Traits>
__device__ __forceinline__ void linear_sample_release(LinearSampleBarriers<Traits>& barriers,
                                                      int stage) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (Traits::kCluster == 1) {
    if (lane == 0) mbarrier_arrive(barriers.empty[stage]);
  } else {
    if (lane < Traits::kCluster)
      asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                       cluster_address(shared_address(&barriers.empty[stage]), lane))
                   : "memory");
  }
}

/// The products of a warpgroup with one tile.
template <class Traits>
__device__ __forceinline__ void linear_sample_multiply(
    float (&sum)[Traits::kSubtiles][Traits::kSums], const std::byte* ring,
    LinearSampleBarriers<Traits>& barriers, RingPosition<Traits::kStages>& at, int warpgroup,
    int panels) {
  const auto multiply = [&]<bool kFirst>() {
    mbarrier_wait(barriers.full[at.stage], at.parity);
    const std::byte* const stage = ring + at.stage * Traits::kStageBytes;
    const WgmmaOperand x = wgmma_operand(stage, 0);
    const WgmmaOperand w = wgmma_operand(
        stage + Traits::kXBytes + warpgroup * Traits::kSubtiles * 64 * Traits::kRowBytes, 0);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // of 16 columns
#pragma unroll
      for (int s = 0; s < Traits::kSubtiles; ++s) {
        const WgmmaOperand rows = w.plus(s * 64 * Traits::kRowBytes + 32 * step);
        if (kFirst && step == 0) {
          wgmma<bf16, false>(sum[s], rows, x.plus(32 * step));
        } else {
          wgmma<bf16, true>(sum[s], rows, x.plus(32 * step));
        }
      }
    }
    wgmma_commit();
  };
  multiply.template operator()<true>();
  int before = at.stage;
  at.advance();
#pragma unroll 1
  for (int i = 1; i < panels; ++i) {
    multiply.template operator()<false>();
    wgmma_wait<1>();
    linear_sample_release(barriers, before);
    before = at.stage;
    at.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int s = 0; s < Traits::kSubtiles; ++s) wgmma_hold(sum[s]);
  linear_sample_release(barriers, before);
}

/// Stores a tile's logits.
template <class Traits>
__device__ __forceinline__ void linear_sample_store(
    const float (&sum)[Traits::kSubtiles][Traits::kSums], int first_token,
    const LinearSampleParams& p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int s = 0; s < Traits::kSubtiles; ++s) {
    const int token = first_token + s * 64 + lane / 4;
    float* const to = p.logits + lane % 4 * 2 * p.logits_stride + token;
#pragma unroll
    for (int i = 0; i < Traits::kSums; ++i) {
      const int row = i / 4 * 8 + i % 2, half = i / 2 % 2;
      if (row + lane % 4 * 2 < p.rows && token + 8 * half < p.vocab)
        to[row * p.logits_stride + 8 * half] = sum[s][i];
    }
  }
}

/// A consumer's part in the draw.
template <class Traits>
struct LinearSampleRace {
  LinearSampleShared<Traits>& shared;
  const LinearSampleParams& p;
  std::uint32_t* queue;  ///< of the warp: kQueue places, then two logits for each
  int thread, lane, warp_row;  ///< of 256; of 32; the warp's first token in a tile

  __device__ __forceinline__ LinearSampleRace(LinearSampleShared<Traits>& of_block,
                                              const LinearSampleParams& params)
      : shared(of_block),
        p(params),
        thread(static_cast<int>(threadIdx.x) - 128),
        lane(thread % 32) {
    // Not known to be the same for every tile, or addresses would take registers that sums need.
    asm volatile("" : "+r"(thread), "+r"(lane));
    queue = shared.queue + thread / 32 * Traits::kQueue * 3;
    warp_row = thread / 128 * Traits::kSubtiles * 64 + thread / 32 % 4 * 16;
  }

  __device__ __forceinline__ const std::uint32_t* noise(int s) const {
    return shared.noise + (thread / 128 * Traits::kSubtiles + s) * Traits::kWords * 128 +
        thread % 128;
  }

  /// The first bounds of the rows, from the first tile of a block. Contains barriers of all
  /// consumers.
  __device__ __forceinline__ void begin(const float (&sum)[Traits::kSubtiles][Traits::kSums],
                                        int first_token) {
    std::uint32_t* const bounds = shared.queue;
    static_assert(Traits::kQueueWords >= Traits::kColumns);
    for (int r = thread; r < Traits::kColumns; r += Traits::kConsumers) bounds[r] = kPlusInfKey;
    named_barrier_sync<Traits::kConsumers>(2);
#pragma unroll
    for (int j = 0; j < Traits::kColumns / 8; ++j) {
      const std::uint32_t draw_bits = shared.draws[j / 4] >> lane % 4 * 2;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * j + lane % 4 * 2 + e;
        const bool draws = (draw_bits & 1u << (j % 4 * 8 + e)) != 0;
        float at = std::numeric_limits<float>::infinity();
#pragma unroll
        for (int s = 0; s < Traits::kSubtiles; ++s) {
          const std::uint32_t bytes = noise(s)[j / 2 * 128];
          const float a = clean(sum[s][4 * j + e]), b = clean(sum[s][4 * j + 2 + e]);
          const float level = j % 2 == 0 ? (e == 0 ? noise_level<0>(bytes) : noise_level<1>(bytes))
                                         : (e == 0 ? noise_level<2>(bytes) : noise_level<3>(bytes));
          const float slope = shared.tests[row].slope * (1.f / kNoiseScale);
          if (first_token + warp_row + s * 64 + lane / 4 + 8 < p.vocab)
            at = fminf(at, latest_arrival(fminf(a, b), fmaxf(a, b), level, slope, draws));
        }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
          at = fminf(at, __shfl_xor_sync(kAllLanes, at, offset));
        if (lane < 4) atomicMin(bounds + row, key_of(at + 0.f));
      }
    }
    named_barrier_sync<Traits::kConsumers>(2);
    for (int r = thread; r < min(Traits::kColumns, p.rows); r += Traits::kConsumers) {
      const float bound = logit_of(bounds[r]);
      if (bound < std::numeric_limits<float>::infinity())
        shared.tests[r] = RowRace(p.settings[r]).test(bound);
    }
    named_barrier_sync<Traits::kConsumers>(2);
  }

  /// Enters what of a tile can win.
  __device__ __forceinline__ void offer(float (&sum)[Traits::kSubtiles][Traits::kSums],
                                        int first_token) {
    constexpr int kSteps = Traits::kSubtiles * Traits::kColumns / 8;
    int done = 0;  // steps
#pragma unroll 1
    do {
#pragma unroll
      for (int s = 0; s < Traits::kSubtiles; ++s) wgmma_hold(sum[s]);
      // So that nothing is made ahead of the loop: there are no registers for it.
      int place = lane % 4 * 2 << 16 | (warp_row + lane / 4);
      asm volatile("" : "+r"(place));
      int count = 0;
      std::uint32_t bytes = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int s = step / (Traits::kColumns / 8), j = step % (Traits::kColumns / 8);
        if (j % 2 == 0) bytes = noise(s)[j / 2 * 128];
        const int row = 8 * j + lane % 4 * 2;
        const float4 test = *reinterpret_cast<const float4*>(shared.tests + row);
        const float* const x = sum[s] + 4 * j;
        const float levels[2] = {j % 2 == 0 ? noise_level<0>(bytes) : noise_level<2>(bytes),
                                 j % 2 == 0 ? noise_level<1>(bytes) : noise_level<3>(bytes)};
        const bool goes[2] = {!(fmaf(fmaxf(x[0], x[2]), test.x, test.y) < levels[0]),
                              !(fmaf(fmaxf(x[1], x[3]), test.z, test.w) < levels[1])};
        if (__any_sync(kAllLanes, goes[0] || goes[1]) && step == done) {
          const unsigned masks[2] = {__ballot_sync(kAllLanes, goes[0]),
                                     __ballot_sync(kAllLanes, goes[1])};
          if (count + __popc(masks[0]) + __popc(masks[1]) <= Traits::kQueue) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int slot = count + __popc(masks[e] & ((1u << lane) - 1));
              if (goes[e]) {
                queue[slot] = static_cast<std::uint32_t>(place + ((8 * j + e) << 16) + s * 64);
                queue[Traits::kQueue + 2 * slot] = __float_as_uint(x[e]);
                queue[Traits::kQueue + 2 * slot + 1] = __float_as_uint(x[2 + e]);
              }
              count += __popc(masks[e]);
            }
            ++done;
          }
        } else if (step == done) {
          ++done;
        }
      }
      __syncwarp();
      for (int i = lane; i < count; i += 32) enter(i, first_token);
      __syncwarp();
    } while (done < kSteps);
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
      race.enter(__uint_as_float(queue[Traits::kQueue + 2 * i + half]), id, shared.best[row],
                 shared.tests[row]);
    }
  }
};

/// Leaves the best of a block's rows, and finds the winners where this is the last block. By all
/// consumers.
template <class Traits>
__device__ __forceinline__ void linear_sample_finish(LinearSampleShared<Traits>& shared,
                                                     const LinearSampleParams& p) {
  const LinearSampleScratch& scratch = p.scratch;
  const int r = static_cast<int>(threadIdx.x) - 128;
  const auto blocks = static_cast<std::int64_t>(gridDim.x);
  named_barrier_sync<Traits::kConsumers>(2);
  if (r < min(Traits::kColumns, p.rows) && shared.best[r].entry.id != kNobody) {
    const Entry mine = shared.best[r].entry;
    const float before = logit_of(atomicMin(scratch.bounds + r, key_of(mine.at)));
    if (!RowRace(p.settings[r]).is_beaten(mine.at, before)) {
      const unsigned slot = atomicAdd(scratch.counts + r, 1u);
      __stcg(scratch.entries + r * blocks + slot,
             float4{mine.at, __int_as_float(mine.id), mine.logit, 0.f});
    }
    __threadfence();
  }
  named_barrier_sync<Traits::kConsumers>(2);
  if (r == 0) {
    __threadfence();
    const unsigned ticket = atomicInc(scratch.ticket, gridDim.x - 1);
    shared.is_last = ticket == gridDim.x - 1 ? 1 : 0;
    __threadfence();
  }
  named_barrier_sync<Traits::kConsumers>(2);
  if (shared.is_last == 0 || r >= min(Traits::kColumns, p.rows)) return;
  __threadfence();
  const RowRace race(p.settings[r]);
  const auto count = static_cast<int>(__ldcg(scratch.counts + r));
  Entry best = no_entry();
  constexpr int kAhead = 8;
  const float4* const entries = scratch.entries + r * blocks;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kAhead) {
    float at[kAhead], bound = best.at;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      at[i] = __ldcg(&entries[min(begin + i, count - 1)].x);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) bound = fminf(bound, at[i]);
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
  p.tokens[r] = best.id == kNobody ? 0 : best.id;
}

/// Prepares the rows in shared memory. By one thread a row.
template <class Traits>
__device__ __forceinline__ void linear_sample_prepare(LinearSampleShared<Traits>& shared,
                                                      const LinearSampleParams& p, int r) {
  bool draws = false;
  if (r < min(Traits::kColumns, p.rows)) {
    const RowRace race(p.settings[r]);
    draws = race.draws;
    shared.tests[r] = {race.test(0.f).slope, std::numeric_limits<float>::infinity()};
    shared.seeds[r] = {race.draw.seed, race.draw.position};
  } else if (r < Traits::kColumns) {
    shared.tests[r] = {0.f, -std::numeric_limits<float>::infinity()};
    shared.seeds[r] = {};
  }
  if (r < Traits::kColumns) shared.best[r] = {no_entry(), 0};
  const unsigned mask = __ballot_sync(kAllLanes, draws);
  if (r % 32 == 0) shared.draws[r / 32] = mask;
}

/// The warps that multiply.
template <class Traits>
__device__ __forceinline__ void linear_sample_consume(const std::byte* ring,
                                                      LinearSampleShared<Traits>* shared,
                                                      LinearSampleBarriers<Traits>& barriers,
                                                      const LinearSampleParams& p) {
  const LinearSampleTiles<Traits> tiles(p.tiles);
  const int thread = static_cast<int>(threadIdx.x) - 128, warpgroup = thread / 128;
  grid_dependency_wait();
  if constexpr (!Traits::kStores) {
    linear_sample_prepare(*shared, p, thread);
    named_barrier_sync<Traits::kConsumers + Traits::kNoiseThreads>(1);
  }
  RingPosition<Traits::kStages> at;
  std::uint32_t parity = 0;
  int tile = tiles.first;
#pragma unroll 1
  for (int round = 0; round < tiles.rounds; ++round, tile += tiles.step) {
    float sum[Traits::kSubtiles][Traits::kSums];
    linear_sample_multiply<Traits>(sum, ring, barriers, at, warpgroup, p.panels);
    if (tile >= p.tiles) break;  // the last, of another block of the cluster
    const int first_token = tile * Traits::kTokens;
    if constexpr (Traits::kStores) {
      linear_sample_store<Traits>(
          sum, first_token + warpgroup * Traits::kSubtiles * 64 + thread / 32 % 4 * 16, p);
    } else {
      LinearSampleRace<Traits> race(*shared, p);
      mbarrier_wait(barriers.noise_full, parity);
      parity ^= 1;
      if (round == 0) race.begin(sum, first_token);
      race.offer(sum, first_token);
      __syncwarp();
      if (thread % 32 == 0) mbarrier_arrive(barriers.noise_empty);
    }
  }
  if constexpr (!Traits::kStores) linear_sample_finish(*shared, p);
}

/// The body of `linear_sample_kernel`.
template <class Traits>
__device__ __forceinline__ void linear_sample_block(const CUtensorMap& w_map,
                                                    const CUtensorMap& x_map,
                                                    const LinearSampleParams& p) {
  extern __shared__ std::byte linear_sample_memory[];
  __shared__ LinearSampleBarriers<Traits> barriers;
  const std::uint32_t begin = shared_address(linear_sample_memory);
  std::byte* const ring = linear_sample_memory + (align_up(begin, Traits::kAlignment) - begin);
  auto* const shared =
      reinterpret_cast<LinearSampleShared<Traits>*>(ring + Traits::kStages * Traits::kStageBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(barriers.full[i], 1);
      mbarrier_init(barriers.empty[i], Traits::kCluster * Traits::kConsumers / 32);
    }
    mbarrier_init(barriers.noise_full, Traits::kNoiseThreads / 32);
    mbarrier_init(barriers.noise_empty, Traits::kConsumers / 32);
    mbarrier_init_fence();
  }
  if constexpr (Traits::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < 128) {
    if constexpr (Traits::kMovesRegisters) release_registers<40>();
    if (threadIdx.x == 0) linear_sample_copy(ring, barriers, w_map, x_map, p);
    if constexpr (!Traits::kStores) {
      if (threadIdx.x >= 32) {
        grid_dependency_wait();
        named_barrier_sync<Traits::kConsumers + Traits::kNoiseThreads>(1);
        linear_sample_noise(*shared, barriers, p);
      }
    }
    __syncwarp();
  } else {
    if constexpr (Traits::kMovesRegisters) take_registers<232>();
    linear_sample_consume(ring, shared, barriers, p);
    __syncwarp();
  }
  // None ends while another may write to its memory.
  if constexpr (Traits::kCluster > 1) cluster_sync();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

/// A persistent block for each multiprocessor.
template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    linear_sample_kernel(const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ CUtensorMap x_map, const LinearSampleParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  linear_sample_block<Traits>(w_map, x_map, p);
#endif
}

}  // namespace detail
}  // namespace nanovllm::cuda
