#pragma once
/// The draw behind a product whose sums never leave the registers: what of a tile of logits can
/// still win, and the best of each row so far.
///
/// As in plain_race.cuh, a token whose random word is b arrives no earlier than log2(b + 1/2) -
/// logit · scale. Words do not depend on logits, so they are drawn while a tile is multiplied, and
/// what is left of them is a byte for two tokens: the upper bits of a float in [8, 32) that does not
/// exceed (log2(smaller b + 1/2) + 1) · kNoiseScale + kNoiseOffset. A pair goes on, into a queue,
/// unless logit · slope + threshold stays below that number, which takes four instructions. What is
/// in the queue is entered in its row: its words are drawn again, and it is compared by its exact
/// arrival, or by float64 scores where arrivals are close or the row cannot be raced, with the best
/// so far. So the winner is the contract's, in whatever order tokens are entered.
///
/// A greedy row's tokens arrive at minus their logit, with no noise.

#include <array>
#include <cstdint>
#include <limits>

#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/plain_race.cuh"

namespace nanovllm::cuda {

inline constexpr float kNoiseScale = 0.72f, kNoiseOffset = 8.01f;
inline constexpr float kLeastLevel = 8.f;  ///< of byte 0, which greedy rows have

/// A token of a row, clean, and when it arrives.
struct Entry {
  float at;
  TokenId id;
  float logit;
};
[[nodiscard]] __device__ constexpr Entry no_entry() {
  return {std::numeric_limits<float>::infinity(), kNoToken, 0.f};
}

/// The best of a row so far, in shared memory. While others may enter theirs it is read and written
/// by atomic operations alone.
struct BestEntry {
  Entry entry;
  unsigned lock;  ///< 1 while a thread changes `entry`

  [[nodiscard]] __device__ unsigned* words() { return reinterpret_cast<unsigned*>(&entry); }

  /// Puts `mine` in its place if `wins(what is there)`.
  template <class Wins>
  __device__ __forceinline__ void update(const Wins& wins, const Entry& mine) {
    for (bool done = false; !done;) {
      if (atomicCAS(&lock, 0u, 1u) != 0) continue;
      __threadfence_block();
      unsigned* const kept = words();
      const Entry other{__uint_as_float(atomicOr(kept, 0u)),
                        static_cast<TokenId>(atomicOr(kept + 1, 0u)),
                        __uint_as_float(atomicOr(kept + 2, 0u))};
      if (wins(other)) {
        atomicExch(kept, __float_as_uint(mine.at));
        atomicExch(kept + 1, static_cast<unsigned>(mine.id));
        atomicExch(kept + 2, __float_as_uint(mine.logit));
      }
      __threadfence_block();
      atomicExch(&lock, 0u);
      done = true;
    }
  }
};

/// What a row's logits are compared with. A logit goes on unless logit · slope + threshold is below
/// the byte's number. Made between two tiles by the warps that draw noise.
struct EntryTest {
  float slope, threshold;
};

/// The byte of two tokens by the smaller of their words.
__device__ __forceinline__ std::uint32_t noise_byte(std::uint32_t word) {
  const float level =
      fmaf(log2_approx(__uint2float_rn(word) + 0.5f), kNoiseScale, kNoiseScale + kNoiseOffset);
  return __float_as_uint(level) >> 16 & 0xffu;
}

/// The number of byte `kByte` of `bytes`.
template <int kByte>
__device__ __forceinline__ float noise_level(std::uint32_t bytes) {
  // Bytes 0x41, the noise, 0, 0.
  return __uint_as_float(__byte_perm(bytes, 0x41000000u, 0x7044u | kByte << 8));
}

/// A threshold, and more than the error of what is compared with it.
[[nodiscard]] __device__ __forceinline__ float with_slack(float threshold) {
  return threshold + fmaf(fabsf(threshold), 0x1p-20f, 2e-3f);
}
/// The threshold of a row that can be raced where the best arrives at `at`.
[[nodiscard]] __device__ __forceinline__ float threshold_of_draw(float at) {
  if (!(fabsf(at) < kMostRaced)) return std::numeric_limits<float>::infinity();
  return with_slack(fmaf(latest_of(at), kNoiseScale, kNoiseScale + kNoiseOffset));
}
[[nodiscard]] __device__ __forceinline__ float threshold_of_greedy(float at) {
  return with_slack(kLeastLevel + at);
}

/// One row's draw, or its greedy choice.
struct RowRace {
  PlainDraw draw;
  bool draws;

  __device__ explicit RowRace(const SamplingRow& row)
      : draw(row, nullptr), draws(row.temperature > 0) {}

  /// Whether arrivals decide.
  [[nodiscard]] __device__ bool is_raced() const { return draw.temperature >= kColdest; }

  /// The slope of its test, 0 where it cannot be raced.
  [[nodiscard]] __device__ float slope() const {
    return !draws ? 1.f : is_raced() ? draw.scale * kNoiseScale : 0.f;
  }
  /// Whether an entry at `at` cannot win against one at `best`.
  [[nodiscard]] __device__ bool is_beaten(float at, float best) const {
    if (!draws) return at > best;
    return draw.is_raced(best) && at > latest_of(best);
  }

  /// Whether `mine` wins against `other`.
  [[nodiscard]] __device__ bool beats(const Entry& mine, const Entry& other) const {
    if (other.id == kNoToken) return true;
    if (!draws) return mine.at < other.at || (mine.at == other.at && mine.id < other.id);
    if (is_beaten(mine.at, other.at)) return false;
    if (is_beaten(other.at, mine.at)) return true;
    double score = 0, before = 0;  // of `other`, of `mine`
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      before = score;
      score = score_of(i == 0 ? mine.logit : other.logit, draw.temperature,
                       bits_of(i == 0 ? mine.id : other.id));
    }
    return before > score || (before == score && mine.id < other.id);
  }

  [[nodiscard]] __device__ std::uint32_t bits_of(TokenId id) const {
    const std::array<std::uint32_t, 4> bits =
        sampling_words(draw.seed, draw.position, static_cast<std::uint32_t>(id) / 4);
    const std::uint32_t even = (id & 2) != 0 ? bits[2] : bits[0];
    const std::uint32_t odd = (id & 2) != 0 ? bits[3] : bits[1];
    return (id & 1) != 0 ? odd : even;
  }

  /// Enters a token in its row.
  __device__ __forceinline__ void enter(float raw_logit, TokenId id, BestEntry& best) const {
    const float logit = clean(raw_logit);
    if (logit == -std::numeric_limits<float>::infinity()) return;  // never wins
    const float at = draws ? draw.arrival(logit, bits_of(id)) : -logit + 0.f;
    if (is_beaten(at, __uint_as_float(atomicOr(best.words(), 0u)))) return;
    best.update([&](const Entry& other) { return beats({at, id, logit}, other); }, {at, id, logit});
  }
};

// What a row's first bound is made of. A token whose word is b arrives by its byte's number, less
// logit · slope, plus kLevelSlack: what a byte is coarse by, and log2(E / u) where u < 1/2. Tokens
// with more have no part in it.
inline constexpr float kLevelSlack = 0.126f + 0.475f * kNoiseScale;
inline constexpr float kMostLevel = 31.f * kNoiseScale + kNoiseScale + kNoiseOffset - 0.13f;

}  // namespace nanovllm::cuda
