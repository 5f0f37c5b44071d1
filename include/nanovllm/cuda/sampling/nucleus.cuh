#pragma once
/// top_p without top_k: the draw from the nucleus, by the blocks of a cluster, without finding
/// where the nucleus ends.
///
/// 1. A sample of the row's tiles says between which two logits the cut must lie, with a margin of
///    four standard deviations and more (`bracket_cut`).
/// 2. One pass over the tiles: the tokens above the bracket run the race, their mass is added up,
///    and the tokens within the bracket are listed (`visit_nucleus`).
/// 3. Only listed tokens that would beat the race's winner are looked at, best first: one is kept
///    if the mass before it is below top_p of all mass (`draw_from_nucleus`). Mostly there is none.
///
/// Masses are float32 exponentials and within kMassError. What that leaves undecided (some two rows
/// in 100,000), a bracket that misses, and a list that overflows are found out and left to the
/// exact way of filter.cuh; so are temperatures that need it and a top_p above kMaxNucleus. Tokens
/// therefore depend neither on the sample nor on the number of blocks.
///
/// Cost of a row of 151,936 tokens: 76 KB read by every block for the sample, then the tiles that
/// reach the bracket once; for each token 10 instructions, and Philox for groups of four with a
/// token above the bracket.
/// Longer than 400 lines: three steps of one draw, which share a part of shared memory.

#include <cstdint>
#include <limits>

#include "nanovllm/cuda/ptx/cluster.cuh"
#include "nanovllm/cuda/sampling/exponential_race.cuh"
#include "nanovllm/cuda/sampling/filter.cuh"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/row_tiles.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"

namespace nanovllm::cuda {

/// Bounds the error of a sum of float32 masses, relative to the mass of the row: e^x in float32 is
/// within 1.3e-7 · |log2 of the mass| + 2e-7, masses below 2^-40 do not count, ten roundings
/// follow.
inline constexpr double kMassError = 6e-6;
/// Largest top_p: what it leaves out must be far above the error.
inline constexpr float kMaxNucleus = 0.9999f;

/// Whether a row's draw is from a nucleus, if its logits allow that.
[[nodiscard]] __device__ __forceinline__ bool has_nucleus(const SamplingRow& row,
                                                          std::int64_t vocab) {
  return row.temperature > 0 && row.top_p <= kMaxNucleus && !has_top_k(row, vocab);
}

/// A token within the bracket.
struct Listed {
  float logit;
  TokenId id;

  /// The order of the contract.
  [[nodiscard]] __device__ bool is_before(const Listed& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

/// Groups of four tokens that a warp has yet to enter into the race, logits -inf for those that do
/// not take part: dense, so that no lane makes noise for nothing.
struct GroupQueue {
  float4 logits[2 * 32];
  std::uint32_t groups[2 * 32];
};

/// What a block tells the others of its cluster.
struct NucleusPart {
  double above, listed;  ///< mass above and in the bracket
  double before;         ///< mass of listed tokens before the one that is looked at
  Scored certain;        ///< the best token above the bracket
  float arrival;         ///< its arrival
  bool failed;
  Scored challenger;
};

/// Shared memory of the draw.
struct NucleusShared {
  union {
    std::uint32_t bins[kNucleusBins];
    Listed list[kNucleusCapacity];
  };
  GroupQueue queues[kSelectWarps];
  ExponentialRace race;
  NucleusPart part;
  double sums[2][kSelectWarps];
  float warp_floats[kSelectWarps];
  Scored best[kSelectWarps];
  int low_bin, high_bin;
  int list_size;
};

/// Tokens with logits above `high` are kept, those below `low` are not.
struct Bracket {
  float low, high;
};

inline constexpr float kNucleusBinsPerBit = kNucleusBins / 40.f;  ///< the last has the mass 2^-40

/// Counts in `shared.bins` the tokens of every kNucleusStride-th tile, bins of equal width in
/// logits, and returns how many tiles these are. Contains barriers.
__device__ __forceinline__ int count_sample(RowTiles row, float bins_per_logit,
                                            NucleusShared& shared) {
  constexpr int kAhead = 4;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kNucleusBins; i += kSelectThreads) shared.bins[i] = 0;
  if (thread == 0) shared.low_bin = kNucleusBins, shared.high_bin = -1;
  __syncthreads();
  const int samples = (row.num_tiles() + kNucleusStride / 2) / kNucleusStride;
  for (int begin = thread / 32; begin < samples; begin += kAhead * kSelectWarps) {
    int which[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int at = begin + j * kSelectWarps;
      which[j] = at < samples ? at * kNucleusStride + kNucleusStride / 2 - 1 : -1;
    }
    const LoadedTiles<kAhead> loaded(row, which);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (which[j] < 0) continue;
      float x[4];
      loaded.get(row, j, which[j], x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float depth = (row.largest - x[i]) * bins_per_logit;  // NaN is in no bin
        if (depth < static_cast<float>(kNucleusBins)) {
          atomicAdd(&shared.bins[static_cast<int>(depth)], 1u);
        }
      }
    }
  }
  __syncthreads();
  return samples;
}

/// Finds the bracket from a sample of the row. The mass B below a bin's upper edge, where a token
/// has the mass m, is estimated with a standard deviation below sqrt(stride · m · B). The same in
/// all blocks of a cluster. Contains barriers.
__device__ inline Bracket bracket_cut(RowTiles row, const Draw& draw, float top_p, double total,
                                      NucleusShared& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kPerBit = kNucleusBinsPerBit;
  constexpr int kPer = kNucleusBins / kSelectThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int tiles = row.num_tiles();
  if (tiles * kLogitTile <= kNucleusCapacity) {  // the list has room for all
    return {std::numeric_limits<float>::lowest(), kInfinity};
  }
  const float bins_per_logit = draw.scale * kPerBit;
  const int samples = count_sample(row, bins_per_logit, shared);
  // Thread 0 has the bins of the smallest masses: sums go upwards from there.
  const float stride = static_cast<float>(tiles) / static_cast<float>(samples);
  const int last = kNucleusBins - 1 - thread * kPer;
  float below[kPer], sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float bin = static_cast<float>(last - i);
    sum += static_cast<float>(shared.bins[last - i]) * stride * exp2_approx((-.5f - bin) / kPerBit);
    below[i] = sum;
  }
  float before = sum;
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(kAllLanes, before, offset);
    if (lane >= offset) before += other;
  }
  if (lane == 31) shared.warp_floats[warp] = before;
  __syncthreads();
  before -= sum;
  for (int w = 0; w < warp; ++w) before += shared.warp_floats[w];
  const auto left_out = static_cast<float>((1 - double{top_p}) * total);
  const float deep = static_cast<float>(row.vocab) * 0x1p-40f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float b = before + below[i];
    const float one = stride * exp2_approx(static_cast<float>(i - last) / kPerBit);
    const float noise = 4.f * sqrtf(one * b) + .01f * b;  // .01: half a bin's width
    if (b + noise + 10 * one + deep <= left_out) atomicMin(&shared.low_bin, last - i);
    if (b - noise - 4 * one >= left_out) atomicMax(&shared.high_bin, last - i);
  }
  __syncthreads();
  const auto edge = [&](int bin) { return row.largest - static_cast<float>(bin) / bins_per_logit; };
  Bracket out{std::numeric_limits<float>::lowest(), kInfinity};
  if (shared.low_bin < kNucleusBins) out.low = fmaxf(out.low, edge(shared.low_bin));
  if (shared.high_bin >= 0) out.high = edge(shared.high_bin);
  return out;
}

/// Enters `count` ≤ 32 groups of the queue, from `first` on, into the race.
__device__ __forceinline__ void enter_queued(const GroupQueue& queue, int first, int count,
                                             const Draw& draw, ExponentialRace& race) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int lane = static_cast<int>(threadIdx.x % 32);
  float x[4] = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
  std::uint32_t group = 0;
  if (lane < count) {
    const float4 y = queue.logits[first + lane];
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    group = queue.groups[first + lane];
  }
  const Noise noise = draw.noise(x, group);
  if (__any_sync(kAllLanes, race.bound() == kInfinity)) {
    offer_bound(race, noise);
    __syncwarp();
  }
  enter(race, noise, x, group);
}

/// This block's share of the tiles: tokens above the bracket that have `least` at the least run the
/// race, those in it go into the list. Masses are returned in `above` and `listed`.
__device__ __forceinline__ void visit_nucleus(RowTiles row, const Draw& draw, Bracket bracket,
                                              float least, BlockCluster cluster,
                                              NucleusShared& shared, double& above,
                                              double& listed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kAhead = 4;  // loads in flight
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  GroupQueue& queue = shared.queues[warp];
  int queued = 0;
  const auto visit = [&](int tile, const float(&x)[4]) {
    float mass = 0, listed_mass = 0;
    float racing[4];
    bool is_racing = false;
    unsigned inside = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = draw.weight(x[i]);
      const bool is_above = x[i] > bracket.high, is_inside = !is_above && x[i] >= bracket.low;
      mass += is_above ? weight : 0.f;
      listed_mass += is_inside ? weight : 0.f;
      inside |= is_inside ? 1u << i : 0u;
      const bool races = is_above && x[i] >= least;
      racing[i] = races ? x[i] : -kInfinity;
      is_racing |= races;
    }
    above += double{mass};
    if (__any_sync(kAllLanes, inside != 0)) {
      listed += double{listed_mass};
      if (inside != 0) {
        int slot = atomicAdd(&shared.list_size, __popc(inside));
        const TokenId first = static_cast<TokenId>(tile * kLogitTile + lane * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if ((inside >> i & 1) == 0) continue;
          if (slot < kNucleusCapacity) shared.list[slot] = {x[i], first + i};
          ++slot;
        }
      }
    }
    const unsigned entering = __ballot_sync(kAllLanes, is_racing);
    if (entering == 0) return;
    if (is_racing) {
      const int at = queued + __popc(entering & ((1u << lane) - 1));
      queue.logits[at] = {racing[0], racing[1], racing[2], racing[3]};
      queue.groups[at] = static_cast<std::uint32_t>(tile * (kLogitTile / 4) + lane);
    }
    queued += __popc(entering);
    __syncwarp();
    if (queued < 32) return;
    queued -= 32;
    enter_queued(queue, queued, 32, draw, shared.race);
    __syncwarp();
  };
  load_tiles_above<kAhead>(row, key_of(bracket.low), cluster.rank, cluster.size,
                           [&](LoadedTiles<kAhead>& loaded, int(&tiles)[kAhead]) {
#pragma unroll 1
                             for (; tiles[0] >= 0; loaded.advance(tiles)) {
                               float x[4];
                               loaded.get(row, 0, tiles[0], x);
                               visit(tiles[0], x);
                             }
                           });
  if (queued > 0) enter_queued(queue, 0, queued, draw, shared.race);
}

/// The best of this block's listed tokens before `limit` that have `least` at the least and may
/// arrive as early as `bound`. Contains barriers.
__device__ inline Scored find_challenger(const Draw& draw, const Listed& limit, float least,
                                         float bound, int size, NucleusShared& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto bits_of = [&](TokenId id) {
    const auto four = sampling_words(draw.seed, draw.position, static_cast<std::uint32_t>(id) / 4);
    const std::uint32_t even = (id & 2) != 0 ? four[2] : four[0];
    const std::uint32_t odd = (id & 2) != 0 ? four[3] : four[1];
    return (id & 1) != 0 ? odd : even;
  };
  const int thread = static_cast<int>(threadIdx.x);
  float earliest = kInfinity;
  for (int i = thread; i < size; i += kSelectThreads) {
    const Listed token = shared.list[i];
    if (!token.is_before(limit) || token.logit < least) continue;
    earliest = fminf(earliest, draw.arrival(token.logit, bits_of(token.id)));
  }
  const float first =
      __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(fmaxf(earliest, 0.f))));
  if (thread % 32 == 0) shared.warp_floats[thread / 32] = first;
  __syncthreads();
  for (const float other : shared.warp_floats) bound = fminf(bound, other * (1.f + kArrivalSlack));
  Scored best;
  if (earliest <= bound && earliest < kInfinity) {
    for (int i = thread; i < size; i += kSelectThreads) {
      const Listed token = shared.list[i];
      if (!token.is_before(limit) || token.logit < least) continue;
      const std::uint32_t bits = bits_of(token.id);
      if (draw.arrival(token.logit, bits) <= bound) {
        best.offer(draw.score(token.logit, token.id, bits));
      }
    }
  }
  return block_best(best, shared.best);
}

/// The sum over the blocks of the cluster, in all threads.
template <class Value>
__device__ double cluster_total(BlockCluster cluster, const NucleusPart& part, Value value) {
  double sum = 0;
  for (int rank = 0; rank < cluster.size; ++rank) sum += value(*cluster.at(&part, rank));
  return sum;
}

/// Leaves in `shared.part` what this block has to tell: its masses, and the winner of its race.
/// Contains a barrier, and ends before one.
__device__ __forceinline__ void leave_part(const Draw& draw, double above, double listed,
                                           NucleusShared& shared) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  above = warp_sum(above), listed = warp_sum(listed);
  if (thread % 32 == 0) shared.sums[0][warp] = above, shared.sums[1][warp] = listed;
  __syncthreads();
  if (warp > 0) return;
  NucleusPart part{};
  part.arrival = std::numeric_limits<float>::infinity();
  part.failed =
      shared.race.count > ExponentialRace::kCapacity || shared.list_size > kNucleusCapacity;
  if (!part.failed) {
    const int winner = find_winner(shared.race, draw);
    if (winner >= 0) {
      const Candidate& candidate = shared.race.candidates[winner];
      part.certain = draw.score(candidate.logit, candidate.id, candidate.bits);
      part.arrival = candidate.arrival;
    }
  }
  for (const double sum : shared.sums[0]) part.above += sum;
  for (const double sum : shared.sums[1]) part.listed += sum;
  if (thread == 0) shared.part = part;
}
/// Leaves in `shared.part.before` the mass of this block's `size` listed tokens before `limit`.
/// Contains a barrier, and ends before one.
__device__ __forceinline__ void leave_mass_before(const Listed& limit, const Draw& draw, int size,
                                                  NucleusShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  double before = 0;
  for (int i = thread; i < size; i += kSelectThreads) {
    if (shared.list[i].is_before(limit)) before += double{draw.weight(shared.list[i].logit)};
  }
  before = warp_sum(before);
  if (thread % 32 == 0) shared.sums[0][thread / 32] = before;
  __syncthreads();
  if (thread == 0) {
    shared.part.before = 0;
    for (const double sum : shared.sums[0]) shared.part.before += sum;
  }
}

/// The token drawn from a row with top_p and without top_k; kNoToken where only the exact way can
/// tell. `total` is the mass of the row within kMassError, `first` the lowest id with the largest
/// logit, `least` the lowest logit that min_p keeps. Called by all threads of all blocks of the
/// cluster with equal arguments, returns the same in all. Contains barriers; no block leaves while
/// others read from it.
__device__ __noinline__ inline TokenId draw_from_nucleus(RowTiles row, const SamplingRow& settings,
                                                         const Draw& row_draw, double total,
                                                         TokenId first, float least,
                                                         NucleusShared& shared) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Draw draw = row_draw;  // in registers: the caller's has an address
  const BlockCluster cluster;
  const int thread = static_cast<int>(threadIdx.x);
  const Bracket bracket = bracket_cut(row, draw, settings.top_p, total, shared);
  if (thread == 0) shared.race.start(), shared.list_size = 0;
  __syncthreads();
  double above = 0, listed = 0;
  visit_nucleus(row, draw, bracket, least, cluster, shared, above, listed);
  leave_part(draw, above, listed, shared);
  cluster.sync();
  const int size = shared.list_size;

  const auto sum_of = [&](auto value) { return cluster_total(cluster, shared.part, value); };
  const double error = 2 * kMassError * total, goal = double{settings.top_p} * total;
  const double failures = sum_of([](const NucleusPart& part) { return part.failed ? 1. : 0.; });
  above = sum_of([](const NucleusPart& part) { return part.above; });
  listed = sum_of([](const NucleusPart& part) { return part.listed; });
  TokenId token = kNoToken;
  Scored certain;
  float bound = kInfinity;
  for (int rank = 0; rank < cluster.size; ++rank) {
    const NucleusPart* const part = cluster.at(&shared.part, rank);
    certain.offer(part->certain);
    bound = fminf(bound, part->arrival * (1.f + kArrivalSlack));
  }
  const bool holds =
      failures == 0 && (above == 0 || above < goal - error) && above + listed > goal + error;
  Listed limit{-kInfinity, std::numeric_limits<TokenId>::max()};  // looked at are those before
  while (holds) {
    const Scored mine = find_challenger(draw, limit, least, bound, size, shared);
    if (thread == 0) shared.part.challenger = mine;
    cluster.sync();
    Scored challenger = certain;
    for (int rank = 0; rank < cluster.size; ++rank) {
      challenger.offer(cluster.at(&shared.part, rank)->challenger);
    }
    if (challenger.id == certain.id || challenger.id == first) {
      if (challenger.id >= 0 && challenger.id < row.vocab) token = challenger.id;
      break;
    }
    limit = {clean(row.logits[challenger.id]), challenger.id};
    leave_mass_before(limit, draw, size, shared);
    cluster.sync();
    const double before = above + sum_of([](const NucleusPart& part) { return part.before; });
    if (before < goal - error) {
      token = challenger.id;
      break;
    }
    if (before < goal + error) break;
  }
  cluster.sync();
  return token;
}

}  // namespace nanovllm::cuda
