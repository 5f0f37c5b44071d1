#pragma once
/// The Gumbel-max rule as a race that the threads of a block run together; see sampler_math.cuh.

#include <cstdint>
#include <limits>

#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/sampler_math.cuh"

namespace nanovllm::cuda {

/// A token that might still win.
struct Entrant {
  float arrival;
  float logit;
  TokenId id;
  std::uint32_t bits;
};

/// The state of a race in shared memory.
struct Race {
  static constexpr int kCapacity = 256;

  std::uint32_t earliest;  ///< bits of an arrival, +inf before the first
  int count;               ///< of entrants; beyond kCapacity they are lost and the race is void
  Entrant entrants[kCapacity];

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

/// One row's draw.
struct Draw {
  std::uint64_t seed;
  std::uint64_t position;
  float temperature;
  float largest;     ///< of the row or slice, finite
  float scale;       ///< log2(e) / temperature, finite
  bool needs_exact;  ///< so cold that float32 arrivals or float64 scores lose the noise

  __device__ Draw(const SamplingRow& row, float largest_logit)
      : seed(row.seed),
        position(row.position),
        temperature(row.temperature),
        largest(largest_logit),
        scale(static_cast<float>(fmin(mass_scale(row), double{std::numeric_limits<float>::max()}))),
        needs_exact(!(fabsf(largest_logit) < 0x1p34f * row.temperature) ||
                    row.temperature < 0x1p-100f) {}

  /// The random words of tokens 4 · group … 4 · group + 3.
  [[nodiscard]] __device__ __forceinline__ std::array<std::uint32_t, 4> words(
      std::uint32_t group) const {
    return philox4x32(seed, {group, static_cast<std::uint32_t>(position),
                             static_cast<std::uint32_t>(position >> 32), 0});
  }

  /// The token with its score; one at -inf never wins.
  [[nodiscard]] __device__ Scored score(float logit, TokenId id, std::uint32_t bits) const {
    Scored out;
    if (logit > -std::numeric_limits<float>::infinity()) {
      out = {score_of(logit, temperature, bits), id};
    }
    return out;
  }

  /// score() where only the id is known; slow.
  [[nodiscard]] __device__ Scored score(float logit, TokenId id) const {
    return score(logit, id, sampling_bits(seed, position, static_cast<std::uint32_t>(id)));
  }

  /// Enters four tokens per lane, logits -inf for those that must not win. All lanes of a warp
  /// call it together.
  __device__ void enter(Race& race, const float (&logits)[4], std::uint32_t group) const;

  /// The best of the entrants that this thread looks at: together, the block's threads look at
  /// all. After a barrier; valid unless `is_void`.
  [[nodiscard]] __device__ Scored best_entrant(const Race& race) const {
    Scored best;
    const float bound = race.bound();
    for (int i = static_cast<int>(threadIdx.x); i < race.count; i += static_cast<int>(blockDim.x)) {
      const Entrant& entrant = race.entrants[i];
      if (entrant.arrival <= bound) best.offer(score(entrant.logit, entrant.id, entrant.bits));
    }
    return best;
  }

  /// Whether the race has no valid result and every token must be scored.
  [[nodiscard]] __device__ bool is_void(const Race& race) const {
    return needs_exact || race.count > Race::kCapacity;
  }
};

__device__ __forceinline__ void Draw::enter(Race& race, const float (&logits)[4],
                                            std::uint32_t group) const {
  const std::array<std::uint32_t, 4> bits = words(group);
  float w[4], v[4];  // v - 1: the upper 23 bits of u, at most u
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = exp2_fast((logits[i] - largest) * scale);
    v[i] = __uint_as_float((bits[i] >> 9) | 0x3F800000u);
  }
  float bound = __shfl_sync(kAllLanes, race.bound(), 0);
  if (bound == std::numeric_limits<float>::infinity()) {  // E ≤ u / (1 - u) gives a first one
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float u = v[i] - 1.f + 0x1p-23f;
      bound = fminf(bound, __fdividef(u, (1.f - u) * w[i]) * (1.f + kArrivalSlack));
    }
    const std::uint32_t first = __reduce_min_sync(kAllLanes, __float_as_uint(bound));
    if (threadIdx.x % 32 == 0) atomicMin(&race.earliest, first);
    bound = __uint_as_float(first) * (1.f + kArrivalSlack);
  }
  unsigned able = 0;  // rounding 1 + w · bound is monotone, so that v ≤ it whenever u ≤ w · bound
#pragma unroll
  for (int i = 0; i < 4; ++i) able |= v[i] <= fmaf(w[i], bound, 1.f) ? 1u << i : 0u;
  for (; able != 0; able &= able - 1) {
    const int i = __ffs(static_cast<int>(able)) - 1;
    const auto pick = [i](const auto& of) {
      return i < 2 ? (i == 0 ? of[0] : of[1]) : (i == 2 ? of[2] : of[3]);
    };
    const float arrival = exponential(pick(bits)) / pick(w);
    if (!(arrival <= race.bound()) || arrival == std::numeric_limits<float>::infinity()) continue;
    atomicMin(&race.earliest, __float_as_uint(arrival));
    const int slot = atomicAdd(&race.count, 1);
    if (slot >= Race::kCapacity) continue;
    race.entrants[slot] = {arrival, pick(logits), static_cast<TokenId>(4 * group) + i, pick(bits)};
  }
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
