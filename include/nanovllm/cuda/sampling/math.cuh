#pragma once
/// The arithmetic of `sample`: the order of logits, masses, Gumbel noise as a race.
///
/// The Gumbel-max rule in another guise: with E = -log1p(-u), exponentially distributed, the score
/// logit / temperature - log(E) is largest where the arrival E · e^((largest - logit) /
/// temperature) is earliest. Arrivals need one e^x in float32 and are within 3e-5 (relative) of the
/// truth; kArrivalSlack is three times that. Since E ≥ u, a token with u > w · earliest, w =
/// e^((logit - largest) / temperature), cannot win: nearly all tokens end there. What is within the
/// slack of the earliest is scored in float64 as the contract says, so that the winner is the
/// contract's.

#include <array>
#include <cstdint>
#include <limits>

#include "nanovllm/core/ids.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cuda/tile/exp2.cuh"
#include "nanovllm/ops/sampler.hpp"

namespace nanovllm::cuda {

/// The id of what is no token.
inline constexpr TokenId kNoToken = -1;

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kArrivalSlack = 1e-4f;

// ---- Keys: unsigned integers in the order of floats.

inline constexpr std::uint32_t kNoKey = 0;                  ///< below all: no such token
inline constexpr std::uint32_t kMinusInfKey = 0x007FFFFFu;  ///< of -inf
inline constexpr std::uint32_t kLowestKey = 0x00800000u;    ///< of the lowest finite float
inline constexpr std::uint32_t kPlusInfKey = 0xFF800000u;   ///< of +inf

/// NaN becomes -inf, and -0 becomes 0, so that equal logits have equal keys.
__device__ __forceinline__ float clean(float logit) {
  return fmaxf(logit, -std::numeric_limits<float>::infinity()) + 0.f;
}

/// Key of a clean logit.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const auto bits = static_cast<std::int32_t>(__float_as_uint(logit));
  return static_cast<std::uint32_t>(bits) ^ (static_cast<std::uint32_t>(bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/// The smallest key in [low, high] for which `holds`, which stays true once it is, and is at
/// `high`. All lanes of a warp call it with equal arguments: 32 are tried at a time.
template <class Predicate>
__device__ std::uint32_t first_key(std::uint32_t low, std::uint32_t high, Predicate holds) {
  const std::uint32_t lane = threadIdx.x % 32;
  while (low < high) {
    const std::uint64_t step = (std::uint64_t{high} - low) / 32 + 1;
    const std::uint64_t probe = low + (lane + 1) * step - 1;
    const std::uint32_t key = probe < high ? static_cast<std::uint32_t>(probe) : high;
    const int found = __ffs(__ballot_sync(kAllLanes, holds(key))) - 1;
    const std::uint32_t below = __shfl_sync(kAllLanes, key, found > 0 ? found - 1 : 0);
    high = __shfl_sync(kAllLanes, key, found);
    if (found > 0) low = below + 1;
  }
  return low;
}

// ---- Masses: probabilities relative to the largest.

/// 2^x for x ≤ 0, relative error 3e-12, exact at 0, 2^-1000 below that. Interpolates (2^f - 1) / f
/// at the Chebyshev nodes of [-1/2, 1/2].
__device__ __forceinline__ double exp2_of_negative(double x) {
  constexpr double kMagic = 0x1.8p52;  // adding it rounds to an integer, left in the low word
  x = x > -1000. ? x : -1000.;
  const double shifted = x + kMagic;
  const double f = x - (shifted - kMagic);
  double p = 1.325080551750225e-06;
  p = fma(p, f, 1.5303700711365693e-05);
  p = fma(p, f, 0.00015403475186530786);
  p = fma(p, f, 0.0013333478473685416);
  p = fma(p, f, 0.00961812913523614);
  p = fma(p, f, 0.055504109063258665);
  p = fma(p, f, 0.24022650695888503);
  p = fma(p, f, 0.6931471805568324);
  p = fma(p, f, 1.);
  return __hiloint2double(__double2hiint(p) + (__double2loint(shifted) << 20), __double2loint(p));
}

/// e^((logit - largest) / temperature) for finite `largest` ≥ logit; `scale` is log2(e) /
/// temperature.
__device__ __forceinline__ double mass_of(float logit, float largest, double scale) {
  return exp2_of_negative((double{logit} - double{largest}) * scale);
}

// ---- The race.

/// The random words of tokens 4 · group … 4 · group + 3: philox4x32 of core/philox.hpp with 32-bit
/// products in one instruction each.
__device__ __forceinline__ std::array<std::uint32_t, 4> sampling_words(std::uint64_t seed,
                                                                       std::uint64_t position,
                                                                       std::uint32_t group) {
  const auto multiply = [](std::uint32_t a, std::uint32_t b, std::uint32_t& low,
                           std::uint32_t& high) {
    asm("{\n\t.reg .b64 p;\n\tmul.wide.u32 p, %2, %3;\n\tmov.b64 {%0, %1}, p;\n\t}"
        : "=r"(low), "=r"(high)
        : "r"(a), "r"(b));
  };
  std::uint32_t c0 = group, c1 = static_cast<std::uint32_t>(position);
  std::uint32_t c2 = static_cast<std::uint32_t>(position >> 32), c3 = 0;
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    std::uint32_t low0, high0, low1, high1;
    multiply(c0, 0xD2511F53u, low0, high0);
    multiply(c2, 0xCD9E8D57u, low1, high1);
    c0 = high1 ^ c1 ^ key0, c1 = low1;
    c2 = high0 ^ c3 ^ key1, c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// -log1p(-u) for u = (bits + 1/2) 2^-32, relative error below 1e-5.
__device__ __forceinline__ float exponential(std::uint32_t bits) {
  const float u = (__uint2float_rn(bits) + 0.5f) * 0x1p-32f;
  if (u < 0x1p-5f) return u * fmaf(u, fmaf(u, fmaf(u, 0.25f, 1.f / 3.f), 0.5f), 1.f);
  return -__logf((__uint2float_rn(~bits) + 0.5f) * 0x1p-32f);
}

/// The contract's score of a token.
__device__ inline double score_of(float logit, float temperature, std::uint32_t bits) {
  return double{logit} / double{temperature} - log(-log1p(-to_unit_interval(bits)));
}

/// A token with its score.
struct Scored {
  double score = -std::numeric_limits<double>::infinity();
  TokenId id = std::numeric_limits<TokenId>::max();

  __device__ void offer(const Scored& other) {
    if (other.score > score || (other.score == score && other.id < id)) *this = other;
  }
};

// ---- Reductions over a warp, the result in all lanes, in an order that never changes.

__device__ __forceinline__ double warp_sum(double x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__device__ __forceinline__ Scored warp_best(Scored x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    Scored other;
    other.score = __shfl_xor_sync(kAllLanes, x.score, offset);
    other.id = __shfl_xor_sync(kAllLanes, x.id, offset);
    x.offer(other);
  }
  return x;
}

// ---- What the settings of a row ask for.

__device__ __forceinline__ bool has_top_k(const SamplingRow& row, std::int64_t vocab) {
  return row.top_k > 0 && row.top_k < vocab;
}

__device__ __forceinline__ bool has_filter(const SamplingRow& row, std::int64_t vocab) {
  return row.temperature > 0 && (has_top_k(row, vocab) || row.top_p < 1 || row.min_p > 0);
}

/// log2(e) / temperature.
__device__ __forceinline__ double mass_scale(const SamplingRow& row) {
  return kLog2E / double{row.temperature};
}

}  // namespace nanovllm::cuda
