#pragma once
/// The Gumbel-max rule as a race that the threads of a block run together; see math.cuh.

#include <array>
#include <cstdint>
#include <limits>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/workspace.cuh"

namespace nanovllm::cuda {

/// The state of a race in shared memory.
struct ExponentialRace {
  static constexpr int kCapacity = 256;

  std::uint32_t earliest;  ///< bits of an arrival, +inf before the first
  int count;               ///< of candidates; beyond kCapacity they are lost and the race is void
  Candidate candidates[kCapacity];

  /// By one thread, with a barrier before and after.
  __device__ void start() {
    earliest = __float_as_uint(std::numeric_limits<float>::infinity());
    count = 0;
  }

  __device__ float bound() const {
    return __uint_as_float(*static_cast<const volatile std::uint32_t*>(&earliest)) *
           (1.f + kArrivalSlack);
  }
};

/// Four tokens of a lane before the race: their random words, w, and 1 + the upper 23 bits of u.
struct Noise {
  std::array<std::uint32_t, 4> bits;
  float w[4], v[4];
};

/// One row's draw.
struct Draw {
  std::uint64_t seed;
  std::uint64_t position;
  float temperature;
  std::uint32_t first_group;  ///< of the row's first token in the vocabulary: ids count from there
  float largest;              ///< of the row or slice, finite
  float scale;                ///< log2(e) / temperature, finite
  bool needs_exact;           ///< so cold that float32 arrivals or float64 scores lose the noise

  __device__ Draw(const SamplingRow& row, float largest_logit, std::uint32_t first_group_of_row = 0)
      : seed(row.seed),
        position(row.position),
        temperature(row.temperature),
        first_group(first_group_of_row),
        largest(largest_logit),
        scale(static_cast<float>(fmin(mass_scale(row), double{std::numeric_limits<float>::max()}))),
        needs_exact(!(fabsf(largest_logit) < 0x1p34f * row.temperature) ||
                    row.temperature < 0x1p-100f) {}

  /// The score of a token; one at -inf never wins.
  [[nodiscard]] __device__ Scored score(float logit, TokenId id, std::uint32_t bits) const {
    Scored out;
    if (logit > -std::numeric_limits<float>::infinity()) {
      out = {score_of(logit, temperature, bits), id};
    }
    return out;
  }

  /// The random word of a token; slow.
  [[nodiscard]] __device__ std::uint32_t bits_of(TokenId id) const {
    const std::array<std::uint32_t, 4> four = words(static_cast<std::uint32_t>(id) / 4);
    const std::uint32_t even = (id & 2) != 0 ? four[2] : four[0];
    const std::uint32_t odd = (id & 2) != 0 ? four[3] : four[1];
    return (id & 1) != 0 ? odd : even;
  }

  /// score() where only the id is known; slow.
  [[nodiscard]] __device__ Scored score(float logit, TokenId id) const {
    return score(logit, id, bits_of(id));
  }

  /// When a token arrives; infinitely late at -inf.
  [[nodiscard]] __device__ float arrival(float logit, std::uint32_t bits) const {
    return __fdividef(exponential(bits), weight(logit));
  }

  /// w, the probability of a token relative to the largest.
  [[nodiscard]] __device__ __forceinline__ float weight(float logit) const {
    return exp2_approx((logit - largest) * scale);
  }

  /// The tokens 4 · group … 4 · group + 3, logits -inf for those that must not win.
  [[nodiscard]] __device__ __forceinline__ Noise noise(const float (&logits)[4],
                                                       std::uint32_t group) const {
    Noise out;
    out.bits = words(group);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.w[i] = weight(logits[i]);
      out.v[i] = __uint_as_float((out.bits[i] >> 9) | 0x3F800000u);
    }
    return out;
  }

  /// Whether the race has no valid result and every token must be scored.
  [[nodiscard]] __device__ bool is_void(const ExponentialRace& race) const {
    return needs_exact || race.count > ExponentialRace::kCapacity;
  }

 private:
  [[nodiscard]] __device__ __forceinline__ std::array<std::uint32_t, 4> words(
      std::uint32_t group) const {
    return sampling_words(seed, position, first_group + group);
  }
};

/// A first bound of the race from the tokens of a warp, cheap and close: E ≤ u / (1 - u).
__device__ __forceinline__ void offer_bound(ExponentialRace& race, const Noise& noise) {
  float bound = std::numeric_limits<float>::infinity();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float u = noise.v[i] - 1.f + 0x1p-23f;
    bound = fminf(bound, __fdividef(u, (1.f - u) * noise.w[i]) * (1.f + kArrivalSlack));
  }
  const std::uint32_t first = __reduce_min_sync(kAllLanes, __float_as_uint(bound));
  if (threadIdx.x % 32 == 0) atomicMin(&race.earliest, first);
}

/// Enters those of a lane's four tokens that might win.
__device__ __forceinline__ void enter(ExponentialRace& race, const Noise& noise,
                                      const float (&logits)[4], std::uint32_t group) {
  const float bound = race.bound();
  unsigned able = 0;  // rounding 1 + w · bound is monotone, so that v ≤ it whenever u ≤ w · bound
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    able |= noise.v[i] <= fmaf(noise.w[i], bound, 1.f) ? 1u << i : 0u;
  }
  for (; able != 0; able &= able - 1) {
    const int i = __ffs(static_cast<int>(able)) - 1;
    const auto pick = [i](const auto& of) {
      return i < 2 ? (i == 0 ? of[0] : of[1]) : (i == 2 ? of[2] : of[3]);
    };
    const float arrival = __fdividef(exponential(pick(noise.bits)), pick(noise.w));
    if (!(arrival <= race.bound()) || arrival == std::numeric_limits<float>::infinity()) continue;
    atomicMin(&race.earliest, __float_as_uint(arrival));
    const int slot = atomicAdd(&race.count, 1);
    if (slot >= ExponentialRace::kCapacity) continue;
    race.candidates[slot] = {arrival, pick(logits), static_cast<TokenId>(4 * group) + i,
                             pick(noise.bits)};
  }
}

/// The index of the candidate that wins, in all lanes, -1 without any. By one warp, after a
/// barrier; the race must not be void. Scores only if more than one is close.
__device__ inline int find_winner(const ExponentialRace& race, const Draw& draw) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float bound = race.bound();
  int close = 0, index = -1;
  for (int begin = 0; begin < race.count; begin += 32) {
    const bool is_close =
        begin + lane < race.count && race.candidates[begin + lane].arrival <= bound;
    const unsigned mask = __ballot_sync(kAllLanes, is_close);
    close += __popc(mask);
    if (mask != 0) index = begin + __ffs(static_cast<int>(mask)) - 1;
  }
  if (close <= 1) return index;
  Scored best;
  int mine = -1;
  for (int i = lane; i < race.count; i += 32) {
    const Candidate& candidate = race.candidates[i];
    if (!(candidate.arrival <= bound)) continue;
    const TokenId before = best.id;
    best.offer(draw.score(candidate.logit, candidate.id, candidate.bits));
    if (best.id != before) mine = i;
  }
  const TokenId id = warp_best(best).id;
  const unsigned owner = __ballot_sync(kAllLanes, best.id == id);
  return __shfl_sync(kAllLanes, mine, __ffs(static_cast<int>(owner)) - 1);
}

/// The best of all threads' tokens, in all threads. `scratch` has room for one per warp. Contains
/// barriers.
__device__ inline Scored block_best(Scored mine, Scored* scratch) {
  mine = warp_best(mine);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) mine.offer(scratch[warp]);
  return mine;
}

}  // namespace nanovllm::cuda
