#pragma once
/// First kernel of `sample`: reads every logit once, a block per (row, slice).
///
/// A slice is 256 threads × kGroups × 4 consecutive logits and stays in registers, so that its
/// largest logit is known before the masses and the noise that need it, and memory is read once.
/// For each slice it writes a SlicePart, for rows with filters or log-probabilities the largest
/// logit of each tile of 128, and for rows with bans one bit per token.
///
/// Moved: 4 bytes per logit read, 48 bytes per slice and 0.03 per logit written. Noise (Philox: ten
/// rounds for four logits) costs about as much again as reading on an H200.
/// Measured: sampler_bench, cuda_sampler.json, needed: with sampler.cuh 53 us for 256 greedy rows,
/// 106 for drawn ones; one read of the logits takes 36.5.

#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/exponential_race.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {

/// kGroups: 16-byte loads per thread.
template <int kGroups>
struct SampleScanTraits {
  static constexpr int kThreads = kSampleScanThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSlice = sample_slice(kGroups);
  static constexpr int kTiles = kSlice / kLogitTile;
  static constexpr int kWords = kSlice / 32;
  static constexpr int kBlocksPerSm = kGroups > 4 ? 3 : 4;
};

/// Shared memory of a block.
template <int kGroups>
struct SampleScanShared {
  using Traits = SampleScanTraits<kGroups>;
  ExponentialRace race;
  std::uint32_t keys[2][Traits::kWarps];  ///< largest keys before and after bans
  double sums[2][Traits::kWarps];         ///< of exponentials and masses
  Scored best[Traits::kWarps];
  TokenId first;
  std::uint32_t ban_bits[Traits::kWords];
};

/// Four consecutive logits as they lie in memory, made clean; -inf from `end` on.
__device__ __forceinline__ void load_logits(const float* row, std::int64_t first, std::int64_t end,
                                            bool is_aligned, float (&out)[4]) {
  if (is_aligned && first + 4 <= end) {
    const float4 x = *reinterpret_cast<const float4*>(row + first);
    out[0] = x.x, out[1] = x.y, out[2] = x.z, out[3] = x.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = first + i < end ? row[first + i] : -std::numeric_limits<float>::infinity();
  }
}

/// The thread's logits of a slice: group j is that of tokens begin + 4 · (j · kThreads + thread).
template <int kGroups>
__device__ __forceinline__ void load_slice(const float* row, std::int64_t begin, std::int64_t vocab,
                                           float (&x)[kGroups][4]) {
  using Traits = SampleScanTraits<kGroups>;
  const bool aligned = is_vector_aligned(row);
  const std::int64_t mine = begin + 4 * threadIdx.x;
  if (aligned && begin + Traits::kSlice <= vocab) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float4 y = *reinterpret_cast<const float4*>(row + mine + j * 4 * Traits::kThreads);
      x[j][0] = y.x, x[j][1] = y.y, x[j][2] = y.z, x[j][3] = y.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      load_logits(row, mine + j * 4 * Traits::kThreads, vocab, aligned, x[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j][i] = clean(x[j][i]);
  }
}

/// Sets the logits of banned tokens to -inf and writes the slice's ban bits to `out`. Contains
/// barriers.
template <int kGroups>
__device__ void apply_bans(VectorView<const TokenId> banned, std::int64_t begin,
                           SampleScanShared<kGroups>& shared, std::uint32_t* out,
                           float (&x)[kGroups][4]) {
  using Traits = SampleScanTraits<kGroups>;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < Traits::kWords; i += Traits::kThreads) shared.ban_bits[i] = 0;
  __syncthreads();
  for (std::int64_t i = thread; i < banned.extent(0); i += Traits::kThreads) {
    const std::int64_t at = banned.data[i] - begin;
    if (at >= 0 && at < Traits::kSlice) {
      atomicOr(&shared.ban_bits[at / 32], 1u << static_cast<unsigned>(at % 32));
    }
  }
  __syncthreads();
  for (int i = thread; i < Traits::kWords; i += Traits::kThreads) out[i] = shared.ban_bits[i];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const std::uint32_t bits =
        shared.ban_bits[(j * Traits::kThreads + thread) / 8] >> (thread % 8 * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((bits >> i & 1) != 0) x[j][i] = -std::numeric_limits<float>::infinity();
    }
  }
}

/// Key of the largest logit of the slice, and those of the tiles to `maxima` unless that is null.
/// `keys` is left with the warps' largest. Contains a barrier.
template <int kGroups>
__device__ std::uint32_t find_largest(const float (&x)[kGroups][4], std::uint32_t* keys,
                                      std::uint32_t* maxima) {
  using Traits = SampleScanTraits<kGroups>;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t largest = kNoKey;
  if (maxima == nullptr) {
    float mine = x[0][0];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      mine = fmaxf(mine, fmaxf(fmaxf(x[j][0], x[j][1]), fmaxf(x[j][2], x[j][3])));
    }
    largest = __reduce_max_sync(kAllLanes, key_of(mine));
  } else {
    std::uint32_t tile = kNoKey;  // lane j keeps that of tile j of the warp
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float mine = fmaxf(fmaxf(x[j][0], x[j][1]), fmaxf(x[j][2], x[j][3]));
      const std::uint32_t key = __reduce_max_sync(kAllLanes, key_of(mine));
      if (lane == j) tile = key;
      largest = key > largest ? key : largest;
    }
    if (lane < kGroups) maxima[lane * Traits::kWarps + warp] = tile;
  }
  if (lane == 0) keys[warp] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Traits::kWarps; ++i) largest = keys[i] > largest ? keys[i] : largest;
  return largest;
}

/// The sum over all threads, in all threads. `sums` has room for one per warp. Contains a barrier.
template <int kWarps>
__device__ double block_sum(double mine, double (&sums)[kWarps]) {
  mine = warp_sum(mine);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
  __syncthreads();
  double sum = 0;
  for (double part : sums) sum += part;
  return sum;
}

/// Σ e^(logit - largest), or how many are +inf when the largest is.
template <int kGroups>
__device__ double sum_exp(const float (&x)[kGroups][4], float largest,
                          SampleScanShared<kGroups>& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float sum = 0;
  if (fabsf(largest) < kInfinity) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum += exp2_approx((x[j][i] - largest) * static_cast<float>(kLog2E));
    }
  } else if (largest == kInfinity) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += x[j][i] == kInfinity ? 1.f : 0.f;
    }
  }
  return block_sum(double{sum}, shared.sums[0]);
}

/// Σ e^((logit - largest) / temperature), `largest` finite; see kMassError.
template <int kGroups>
__device__ double sum_weights(const float (&x)[kGroups][4], const Draw& draw,
                              SampleScanShared<kGroups>& shared) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    sum += (draw.weight(x[j][0]) + draw.weight(x[j][1])) +
           (draw.weight(x[j][2]) + draw.weight(x[j][3]));
  }
  return block_sum(double{sum}, shared.sums[1]);
}

/// Leaves the lowest id with the largest logit in `first` after the next barrier; called by the
/// warps that have one.
template <int kGroups>
__device__ void find_first(const float (&x)[kGroups][4], float largest, std::int64_t begin,
                           TokenId& first) {
  using Traits = SampleScanTraits<kGroups>;
  TokenId mine = std::numeric_limits<TokenId>::max();
#pragma unroll
  for (int j = kGroups - 1; j >= 0; --j) {
#pragma unroll
    for (int i = 3; i >= 0; --i) {
      if (x[j][i] == largest) {
        mine = static_cast<TokenId>(begin) +
               static_cast<TokenId>(4 * (j * Traits::kThreads + threadIdx.x)) + i;
      }
    }
  }
  mine = __reduce_min_sync(kAllLanes, mine);
  if (threadIdx.x % 32 == 0) atomicMin(&first, mine);
}

/// Runs the race of the slice, `draw.largest` finite. Contains a barrier, and ends before one.
template <int kGroups>
__device__ void race_in_slice(const float (&x)[kGroups][4], const Draw& draw, std::int64_t begin,
                              ExponentialRace& race) {
  using Traits = SampleScanTraits<kGroups>;
  const std::uint32_t group = static_cast<std::uint32_t>(begin / 4) + threadIdx.x;
  const Noise first = draw.noise(x[0], group);
  offer_bound(race, first);
  __syncthreads();
  enter(race, first, x[0], group);
#pragma unroll
  for (int j = 1; j < kGroups; ++j) {
    enter(race, draw.noise(x[j], group + j * Traits::kThreads), x[j], group + j * Traits::kThreads);
  }
}

/// The winner of a race that is void: every token is scored, read from memory once more. The result
/// is in all threads. Contains a barrier.
template <int kGroups>
__device__ Candidate score_slice(VectorView<const float> logits, const Draw& draw,
                                 std::int64_t begin, bool has_bans,
                                 SampleScanShared<kGroups>& shared) {
  using Traits = SampleScanTraits<kGroups>;
  Scored best;
  for (int at = static_cast<int>(threadIdx.x); at < Traits::kSlice; at += Traits::kThreads) {
    if (begin + at >= logits.extent(0)) break;
    if (has_bans && (shared.ban_bits[at / 32] >> (at % 32) & 1) != 0) continue;
    best.offer(draw.score(clean(logits.data[begin + at]), static_cast<TokenId>(begin + at)));
  }
  const TokenId id = block_best(best, shared.best).id;
  const float logit = clean(logits.data[id]);
  const std::uint32_t bits = draw.bits_of(id);
  return {draw.arrival(logit, bits), logit, id, bits};
}

/// Where in the vocabulary a call's rows are.
struct VocabPlace {
  std::int64_t first_token = 0;  ///< a multiple of 4; ids within the call count from there
  std::int64_t size;             ///< of the whole

  [[nodiscard]] __device__ std::uint32_t first_group() const {
    return static_cast<std::uint32_t>(first_token / 4);
  }
};

/// Grid (slices, rows).
template <int kGroups>
__global__ void __launch_bounds__(SampleScanTraits<kGroups>::kThreads,
                                  SampleScanTraits<kGroups>::kBlocksPerSm)
    sample_scan_kernel(const SampleArgs args, const SamplerScratch scratch,
                       const VocabPlace place) {
  using Traits = SampleScanTraits<kGroups>;
  __shared__ SampleScanShared<kGroups> shared;
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y, slice = blockIdx.x, begin = slice * Traits::kSlice;
  const std::int64_t vocab = args.logits.extent(1);
  float x[kGroups][4];
  load_slice<kGroups>(args.logits.at(row), begin, vocab, x);
  const SamplingRow settings = args.batch.rows.data[row];
  const std::int32_t ban_begin = args.batch.banned.starts.data[row];
  const std::int32_t ban_end = args.batch.banned.starts.data[row + 1];
  const bool has_bans = ban_begin < ban_end, is_filtered = has_filter(settings, place.size);
  const std::int64_t tiles = row * scratch.tile_pitch + slice * Traits::kTiles;

  if (threadIdx.x == 0) {
    shared.first = std::numeric_limits<TokenId>::max();
    shared.race.start();
  }
  SlicePart part{};
  part.winner.id = -1;
  std::uint32_t* const originals = has_bans ? scratch.original_maxima : scratch.maxima;
  const bool needs_original_maxima = settings.num_logprobs > 0 || (is_filtered && !has_bans);
  std::uint32_t largest =
      find_largest<kGroups>(x, shared.keys[0], needs_original_maxima ? originals + tiles : nullptr);
  if (settings.num_logprobs >= 0) {
    part.original_largest = logit_of(largest);
    part.original_sum = sum_exp<kGroups>(x, part.original_largest, shared);
  }
  if (has_bans) {
    apply_bans<kGroups>(args.batch.banned.values.slice(ban_begin, ban_end),
                        place.first_token + begin, shared,
                        scratch.ban_bits + row * scratch.word_pitch + slice * Traits::kWords, x);
    largest =
        find_largest<kGroups>(x, shared.keys[1], is_filtered ? scratch.maxima + tiles : nullptr);
  }
  part.largest = logit_of(largest);
  if (shared.keys[has_bans ? 1 : 0][threadIdx.x / 32] == largest) {
    find_first<kGroups>(x, part.largest, begin, shared.first);
  }
  const bool draws = settings.temperature > 0 && largest >= kLowestKey && largest < kPlusInfKey;
  const Draw draw(settings, part.largest, place.first_group());
  if (draws && !is_filtered && !draw.needs_exact) {
    race_in_slice<kGroups>(x, draw, begin, shared.race);
  } else if (draws && settings.top_p < 1 && !has_top_k(settings, place.size)) {
    part.mass = sum_weights<kGroups>(x, draw, shared);
  }
  __syncthreads();
  if (draws && !is_filtered) {
    if (draw.is_void(shared.race)) {
      part.winner =
          score_slice<kGroups>({args.logits.at(row), {vocab}}, draw, begin, has_bans, shared);
    } else if (threadIdx.x < 32) {
      part.winner = shared.race.candidates[find_winner(shared.race, draw)];
    }
  }
  part.first = shared.first;
  if (threadIdx.x == 0) scratch.parts[row * scratch.part_pitch + slice] = part;
}

}  // namespace nanovllm::cuda
