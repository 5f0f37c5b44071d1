#pragma once
/// The part of a row that a block of the sampler's kernel for rows without filters reads, and the
/// draw from a whole vocabulary: a race (math.cuh) without a branch while logits are read.
///
/// Here tokens arrive at log2(2^32 · E) - logit · log2(e) / temperature: logarithms need no largest
/// logit. Of four tokens, a group, let x be the largest logit and b the smallest random word. Since
/// E ≥ u, none of them arrives before log2(b) - x · scale, the group's key, which takes one
/// logarithm. A thread keeps its smallest key with the place, and the second smallest without. At
/// the end each thread computes when the tokens of its smallest key arrive; the earliest of the
/// block is the bound, and only tokens below it, one as a rule, are looked at. Where a thread's
/// second key is below the bound, its warp goes through all of its groups again. Of several tokens
/// that are close, float64 scores find the contract's winner.
///
/// No token is lost to rounding. One that matters has |x · scale| ≤ |bound| + 38: keys and
/// arrivals, float32, are within 2^-22 · (|bound| + 64) and what logarithms lose, 5e-5.
/// `latest_of` adds four times that and more. Where bounds are not below kMostRaced, and in rows
/// that are colder than kColdest, every token is scored.
///
/// Cost for four tokens: Philox, 40 instructions, and 12 for the key.

#include <array>
#include <cstdint>
#include <limits>

#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/tuning.hpp"
#include "nanovllm/cuda/tile/alignment.cuh"

namespace nanovllm::cuda {

/// A part in units of 4 · kThreads logits, of which each thread has four consecutive ones, a group.
template <int kThreads>
struct PlainPart {
  static constexpr int kUnit = plain_unit(kThreads);

  const float* logits;  ///< of the row
  std::int64_t vocab;
  int begin, end;  ///< units
  int fast_end;    ///< units before it are whole and 16-byte aligned

  __device__ PlainPart(const float* row, std::int64_t vocab_size, int part, int num_parts)
      : logits(row), vocab(vocab_size) {
    const std::int64_t units = (vocab + kUnit - 1) / kUnit;
    begin = static_cast<int>(units * part / num_parts);
    end = static_cast<int>(units * (part + 1) / num_parts);
    fast_end = is_vector_aligned(row) ? min(end, static_cast<int>(vocab / kUnit)) : begin;
  }

  /// Which four tokens of the row are a thread's in a unit.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t group(
      int unit, unsigned thread = threadIdx.x) const {
    return static_cast<std::uint32_t>(unit) * kThreads + thread;
  }
  /// The first of them.
  [[nodiscard]] __device__ __forceinline__ std::int64_t first(int unit,
                                                              unsigned thread = threadIdx.x) const {
    return 4 * std::int64_t{group(unit, thread)};
  }

  /// A thread's logits of a unit as they lie in memory; -inf after the part.
  [[nodiscard]] __device__ __forceinline__ float4 load(int unit,
                                                       unsigned thread = threadIdx.x) const {
    const std::int64_t at = first(unit, thread);
    if (unit < fast_end) return *reinterpret_cast<const float4*>(logits + at);
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    float4 out{kNone, kNone, kNone, kNone};
    if (unit >= end) return out;
    if (at < vocab) out.x = logits[at];
    if (at + 1 < vocab) out.y = logits[at + 1];
    if (at + 2 < vocab) out.z = logits[at + 2];
    if (at + 3 < vocab) out.w = logits[at + 3];
    return out;
  }
  /// The same, clean.
  __device__ __forceinline__ void load_clean(int unit, float (&out)[4],
                                             unsigned thread = threadIdx.x) const {
    const float4 x = load(unit, thread);
    out[0] = clean(x.x), out[1] = clean(x.y), out[2] = clean(x.z), out[3] = clean(x.w);
  }

  /// Calls visit(unit, logits as they lie in memory) for every unit; `x` has the first kAhead
  /// already, and the next are on their way while these are visited.
  template <int kAhead, class Visit>
  __device__ __forceinline__ void stream(float4 (&x)[kAhead], Visit visit) const {
    int unit = begin;
    const auto* ahead = reinterpret_cast<const float4*>(logits + first(begin + kAhead));
    float4 next[kAhead];
#pragma unroll 1
    for (; unit + 2 * kAhead <= fast_end; unit += kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) next[j] = ahead[j * kThreads];
      ahead += kAhead * kThreads;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) visit(unit + j, x[j]);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) x[j] = next[j];
    }
#pragma unroll 1
    for (; unit < end; unit += kAhead) {
#pragma unroll
      for (int j = 0; j < kAhead; ++j) next[j] = load(unit + kAhead + j);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (unit + j < end) visit(unit + j, x[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) x[j] = next[j];
    }
  }
};

inline constexpr float kMostRaced = 0x1p34f;
inline constexpr float kColdest = 0x1p-100f;

/// log2(x) of 0 or a normal number, absolute error 3e-6.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A token and when it arrives.
struct Arrival {
  float at;
  TokenId id;
};
[[nodiscard]] __device__ constexpr Arrival no_arrival() {
  return {std::numeric_limits<float>::infinity(), kNoToken};
}

/// Out of line, for it is long and rarely needed.
__device__ __noinline__ inline Scored score_token(float logit, float temperature,
                                                  std::uint32_t bits, TokenId id) {
  Scored out;
  if (logit > -std::numeric_limits<float>::infinity()) {
    out = {score_of(logit, temperature, bits), id};
  }
  return out;
}

/// What tokens that may have been the first do not exceed.
__device__ __forceinline__ float latest_of(float bound) {
  return bound + fmaf(fabsf(bound), 0x1p-20f, 64 * 0x1p-20f + 3 * kArrivalSlack);
}

/// The draw of one row.
struct PlainDraw {
  std::uint64_t seed, position;
  float temperature, scale;
  const float* logits;        ///< of the row
  std::uint32_t first_group;  ///< of the row's first token in the vocabulary: ids count from there

  __device__ PlainDraw(const SamplingRow& row, const float* row_logits,
                       std::uint32_t first_group_of_row)
      : seed(row.seed),
        position(row.position),
        temperature(row.temperature),
        scale(static_cast<float>(kLog2E) / row.temperature),
        logits(row_logits),
        first_group(first_group_of_row) {}

  /// Whether a race with this bound decides.
  [[nodiscard]] __device__ bool is_raced(float bound) const {
    return temperature >= kColdest && fabsf(bound) < kMostRaced;
  }
  /// No token of these four arrives earlier.
  [[nodiscard]] __device__ __forceinline__ float key(float largest, std::uint32_t group) const {
    const std::array<std::uint32_t, 4> bits = sampling_words(seed, position, first_group + group);
    const std::uint32_t b = min(min(bits[0], bits[1]), min(bits[2], bits[3]));
    return fmaf(-largest, scale, log2_approx(__uint2float_rn(b)));
  }
  [[nodiscard]] __device__ __forceinline__ float arrival(float logit, std::uint32_t bits) const {
    return fmaf(-logit, scale, log2_approx(exponential(bits)) + 32.f);
  }
  /// When these four tokens, clean logits, arrive.
  __device__ __forceinline__ void arrivals(const float (&x)[4], std::uint32_t group,
                                           float (&at)[4]) const {
    const std::array<std::uint32_t, 4> bits = sampling_words(seed, position, first_group + group);
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i] = arrival(x[i], bits[i]);
  }
  [[nodiscard]] __device__ Arrival arrival(TokenId id) const {
    return {arrival(clean(logits[id]), bits_of(id)), id};
  }
  /// The contract's score; a token at -inf never wins.
  [[nodiscard]] __device__ Scored score(TokenId id) const {
    return score_token(clean(logits[id]), temperature, bits_of(id), id);
  }

 private:
  [[nodiscard]] __device__ std::uint32_t bits_of(TokenId id) const {
    const std::array<std::uint32_t, 4> bits =
        sampling_words(seed, position, first_group + static_cast<std::uint32_t>(id) / 4);
    const std::uint32_t even = (id & 2) != 0 ? bits[2] : bits[0];
    const std::uint32_t odd = (id & 2) != 0 ? bits[3] : bits[1];
    return (id & 1) != 0 ? odd : even;
  }
};

/// The keys of a thread's groups.
struct PlainKeys {
  float smallest = std::numeric_limits<float>::infinity();
  float second = std::numeric_limits<float>::infinity();
  int unit;  ///< of the smallest

  __device__ __forceinline__ void offer(float key, int key_unit) {
    if (key < smallest) unit = key_unit;
    second = fminf(second, fmaxf(key, smallest));
    smallest = fminf(smallest, key);
  }
};

/// The smallest of a warp's, not NaN, in all lanes.
__device__ __forceinline__ float warp_earliest(float at) {
  return logit_of(__reduce_min_sync(kAllLanes, key_of(at)));
}

/// The winner among the tokens of a warp that arrive by `latest`: `at` are those of the thread's
/// smallest key, and groups after a second one are read again. In all lanes.
template <int kThreads>
__device__ inline Arrival first_of_warp(const PlainPart<kThreads>& part, const PlainDraw& draw,
                                        const PlainKeys& keys, const float (&at)[4], float latest) {
  unsigned close = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) close |= at[i] <= latest ? 1u << i : 0u;
  const unsigned owners = __ballot_sync(kAllLanes, close != 0);
  unsigned again = __ballot_sync(kAllLanes, keys.second <= latest);
  if ((owners | again) == 0) return no_arrival();
  const TokenId first = static_cast<TokenId>(part.first(keys.unit));
  const TokenId mine = first + __ffs(static_cast<int>(close)) - 1;
  const bool is_alone = again == 0 && (owners & (owners - 1)) == 0;
  if (is_alone && __all_sync(kAllLanes, (close & (close - 1)) == 0)) {
    const float earliest = fminf(fminf(at[0], at[1]), fminf(at[2], at[3]));
    const int owner = __ffs(static_cast<int>(owners)) - 1;
    return {__shfl_sync(kAllLanes, earliest, owner), __shfl_sync(kAllLanes, mine, owner)};
  }
  Scored best;
  for (; close != 0; close &= close - 1) {
    best.offer(draw.score(first + __ffs(static_cast<int>(close)) - 1));
  }
  for (; again != 0; again &= again - 1) {
    const unsigned thread =
        threadIdx.x / 32 * 32 + static_cast<unsigned>(__ffs(static_cast<int>(again)) - 1);
    for (int unit = part.begin + static_cast<int>(threadIdx.x % 32); unit < part.end; unit += 32) {
      float x[4], again_at[4];
      part.load_clean(unit, x, thread);
      draw.arrivals(x, part.group(unit, thread), again_at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (again_at[i] <= latest) {
          best.offer(draw.score(static_cast<TokenId>(part.first(unit, thread)) + i));
        }
      }
    }
  }
  best = warp_best(best);
  return best.id == Scored{}.id ? no_arrival() : draw.arrival(best.id);
}

/// The winner among a thread's arrivals and those of the other lanes, `of(i)` for the lane's i of
/// `count`, in all lanes. Scores those that are close.
template <class Of>
__device__ inline Arrival first_of_all(int count, const PlainDraw& draw, Of of) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Arrival mine = no_arrival();
  float second = std::numeric_limits<float>::infinity();
  for (int i = lane; i < count; i += 32) {
    const Arrival other = of(i);
    if (other.id == kNoToken) continue;
    second = fminf(second, fmaxf(other.at, mine.at));
    if (other.at < mine.at || mine.id == kNoToken) mine = other;
  }
  const float bound = warp_earliest(mine.at), latest = latest_of(bound);
  const bool is_raced = draw.is_raced(bound);
  const unsigned owners = __ballot_sync(kAllLanes, mine.at <= latest);
  const bool has_more = __any_sync(kAllLanes, second <= latest);
  if (is_raced && !has_more && (owners & (owners - 1)) == 0) {
    return {bound, __shfl_sync(kAllLanes, mine.id, __ffs(static_cast<int>(owners)) - 1)};
  }
  Scored best;
  for (int i = lane; i < count; i += 32) {
    const Arrival other = of(i);
    if (other.id == kNoToken || !(!is_raced || other.at <= latest)) continue;
    best.offer(draw.score(other.id));
  }
  best = warp_best(best);
  return best.id == Scored{}.id ? no_arrival() : draw.arrival(best.id);
}

/// The winner among the tokens of a warp where a race does not decide: all are scored. In all
/// lanes.
template <int kThreads>
__device__ inline Arrival best_of_warp(const PlainPart<kThreads>& part, const PlainDraw& draw) {
  Scored best;
  for (int unit = part.begin; unit < part.end; ++unit) {
    const std::int64_t first = part.first(unit);
#pragma unroll 1
    for (int i = 0; i < 4 && first + i < part.vocab; ++i) {
      best.offer(draw.score(static_cast<TokenId>(first + i)));
    }
  }
  best = warp_best(best);
  return best.id == Scored{}.id ? no_arrival() : draw.arrival(best.id);
}

}  // namespace nanovllm::cuda
