#pragma once
/// `sample` for steps whose rows are all plain: greedy, or drawn from the whole vocabulary.
///
/// One kernel, a block per (row, part). A block streams its part and finds who would win it; the
/// last of a row to be done finds the winner among the parts'. Rows are greedy or drawn by their
/// settings, which are read on the device.
///
/// Moved: 4 bytes per logit read, 8 bytes per part written and read.
/// Measured: sampler_bench, cuda_sampler_plain.json, 106 to 43 us for 256 drawn rows, 53 to 37 for
/// greedy ones: 2.2% of a step of 0.6B (docs/lab/decode_step.md).

#include <cstdint>
#include <limits>

#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/plain_race.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/sampling/workspace.cuh"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cuda {

/// Shared memory of a block.
template <int kThreads>
struct PlainShared {
  static constexpr int kWarps = kThreads / 32;
  Arrival winners[kWarps];
  float bounds[kWarps];
};

/// The first of a warp's: the smallest `at`, the lowest id among equals. Greedy rows "arrive" at
/// minus the logit. In all lanes.
__device__ __forceinline__ Arrival warp_first(Arrival mine) {
  const std::uint32_t key = key_of(mine.at);
  const std::uint32_t least = __reduce_min_sync(kAllLanes, key);
  const auto id = key == least ? static_cast<std::uint32_t>(mine.id) : 0xffffffffu;
  return {logit_of(least), static_cast<TokenId>(__reduce_min_sync(kAllLanes, id))};
}

/// What wins a greedy row's part; in warp 0. Contains a barrier.
template <int kThreads, int kAhead>
__device__ __forceinline__ Arrival largest_of_part(const PlainPart<kThreads>& part,
                                                   float4 (&x)[kAhead],
                                                   PlainShared<kThreads>& shared) {
  PlainKeys keys;
  keys.unit = part.begin;
  part.stream(x, [&](int unit, const float4& y) {
    const float key = -fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w));
    if (key < keys.smallest) keys.unit = unit;
    keys.smallest = fminf(keys.smallest, key);
  });
  Arrival mine = no_arrival();
  mine.at = keys.smallest + 0.f;  // 0 and -0 are equal
  if (mine.at == warp_earliest(mine.at) && mine.at < std::numeric_limits<float>::infinity()) {
    float y[4];
    part.load_clean(keys.unit, y);
    const int i = y[0] == -mine.at ? 0 : y[1] == -mine.at ? 1 : y[2] == -mine.at ? 2 : 3;
    mine.id = static_cast<TokenId>(part.first(keys.unit)) + i;
  }
  mine = warp_first(mine);
  if (threadIdx.x % 32 == 0) shared.winners[threadIdx.x / 32] = mine;
  __syncthreads();
  const unsigned lane = threadIdx.x % 32;
  return warp_first(lane < PlainShared<kThreads>::kWarps ? shared.winners[lane] : no_arrival());
}

/// What wins the part of a row that is drawn; in warp 0. Contains barriers.
template <int kThreads, int kAhead>
__device__ __forceinline__ Arrival drawn_from_part(const PlainPart<kThreads>& part,
                                                   const PlainDraw& draw, float4 (&x)[kAhead],
                                                   PlainShared<kThreads>& shared) {
  constexpr int kWarps = PlainShared<kThreads>::kWarps;
  PlainKeys keys;
  keys.unit = part.begin;
  float at[4];
  if constexpr (kAhead == 1) {  // its only unit
    const float y[4] = {clean(x[0].x), clean(x[0].y), clean(x[0].z), clean(x[0].w)};
    draw.arrivals(y, part.group(part.begin), at);
  } else {
    part.stream(x, [&](int unit, const float4& y) {
      keys.offer(draw.key(fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w)), part.group(unit)), unit);
    });
    float y[4];
    part.load_clean(keys.unit, y);
    draw.arrivals(y, part.group(keys.unit), at);
  }
  float bound = warp_earliest(fminf(fminf(at[0], at[1]), fminf(at[2], at[3])));
  if (threadIdx.x % 32 == 0) shared.bounds[threadIdx.x / 32] = bound;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) bound = fminf(bound, shared.bounds[i]);
  const Arrival mine = draw.is_raced(bound) ? first_of_warp(part, draw, keys, at, latest_of(bound))
                                            : best_of_warp(part, draw);
  if (threadIdx.x % 32 == 0) shared.winners[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return no_arrival();
  return first_of_all(kWarps, draw, [&](int i) { return shared.winners[i]; });
}

/// Leaves what won a part for the last block of the row to be done, and says whether this is it. By
/// one warp.
__device__ __forceinline__ bool leave_arrival(const Arrival& mine, const SamplerScratch& scratch,
                                              std::int64_t row, int part, int num_parts) {
  unsigned ticket = 0;
  if (threadIdx.x == 0) {
    const uint2 bits{__float_as_uint(mine.at), static_cast<std::uint32_t>(mine.id)};
    __stcg(scratch.arrivals + row * scratch.part_pitch + part, bits);
    __threadfence();
    // Wraps to 0 after the last, so that it is 0 between calls.
    ticket = atomicInc(scratch.tickets + row, static_cast<unsigned>(num_parts - 1));
    __threadfence();
  }
  ticket = __shfl_sync(kAllLanes, ticket, 0);
  __syncwarp();
  return ticket == static_cast<unsigned>(num_parts - 1);
}

/// Words of what wins a part of a row: its logit, its id, and in two a float64.
inline constexpr std::int64_t kPartWinnerWords = 4;

/// Writes such words. By one thread.
__device__ __forceinline__ void write_winner(float* words, float logit, TokenId id, double sum) {
  const int2 halves{__double2loint(sum), __double2hiint(sum)};
  *reinterpret_cast<float4*>(words) = {logit, __int_as_float(id), __int_as_float(halves.x),
                                       __int_as_float(halves.y)};
}

/// Of rows that are parts of longer ones: where they begin, and where their winners go. Without
/// `winner` rows are whole.
struct PartPlace {
  std::int64_t first_token = 0;  ///< a multiple of 4
  float* winner = nullptr;       ///< [rows, kPartWinnerWords]
};

/// Grid (parts, rows). kAhead: units of a part whose loads are under way at a time; with 1, parts
/// are one unit.
template <int kThreads, int kBlocksPerSm, int kAhead>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    sample_plain_kernel(const SampleArgs args, const SamplerScratch scratch,
                        const PartPlace place) {
  __shared__ PlainShared<kThreads> shared;
  grid_dependency_launch();
  grid_dependency_wait();
  const std::int64_t row = blockIdx.y;
  const auto num_parts = static_cast<int>(gridDim.x);
  const float* const logits = args.logits.at(row);
  const PlainPart<kThreads> part(logits, args.logits.extent(1), static_cast<int>(blockIdx.x),
                                 num_parts);
  float4 x[kAhead];  // on their way with the settings
#pragma unroll
  for (int j = 0; j < kAhead; ++j) x[j] = part.load(part.begin + j);
  const SamplingRow settings = args.batch.rows.data[row];
  const bool draws = settings.temperature > 0;
  const PlainDraw draw(settings, logits, static_cast<std::uint32_t>(place.first_token / 4));
  Arrival winner =
      draws ? drawn_from_part(part, draw, x, shared) : largest_of_part(part, x, shared);
  if (threadIdx.x >= 32) return;
  if (num_parts > 1) {
    if (!leave_arrival(winner, scratch, row, static_cast<int>(blockIdx.x), num_parts)) return;
    const uint2* const arrivals = scratch.arrivals + row * scratch.part_pitch;
    const auto of = [&](int i) {
      const uint2 bits = __ldcg(arrivals + i);
      return Arrival{__uint_as_float(bits.x), static_cast<TokenId>(bits.y)};
    };
    if (draws) {
      winner = first_of_all(num_parts, draw, of);
    } else {
      Arrival mine = no_arrival();
      for (int i = static_cast<int>(threadIdx.x); i < num_parts; i += 32) {
        const Arrival other = of(i);
        if (other.at < mine.at) mine = other;  // of equals the first part's
      }
      winner = warp_first(mine);
    }
  }
  if (threadIdx.x != 0) return;
  const TokenId id = winner.id == kNoToken ? 0 : winner.id;
  if (place.winner == nullptr) {
    args.tokens.data[row] = id;
  } else {
    write_winner(place.winner + row * kPartWinnerWords, clean(logits[id]),
                 static_cast<TokenId>(place.first_token) + id, 0);
  }
}

/// Launches the kernel; operands are checked by `sample`, and `scratch` has room for them.
void sample_plain(const SampleArgs& args, const SamplerScratch& scratch,
                  const LaunchContext auto& context, const PartPlace& place = {}) {
  const std::int64_t rows = args.logits.extent(0);
  const PlainParts parts = plain_parts(rows, args.logits.extent(1), context.num_sms);
  launch(parts.is_short ? sample_plain_kernel<kShortPlainThreads, kShortPlainBlocksPerSm, 1>
                        : sample_plain_kernel<kPlainThreads, kPlainBlocksPerSm, kPlainAhead>,
         {.grid = dim3(static_cast<unsigned>(parts.num_parts), static_cast<unsigned>(rows)),
          .block = dim3(parts.is_short ? kShortPlainThreads : kPlainThreads)},
         context, args, scratch, place);
}

}  // namespace nanovllm::cuda
