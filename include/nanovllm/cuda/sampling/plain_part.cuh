#pragma once
/// The part of a row that a block of the sampler's kernel for rows without filters reads, and how.

#include <cstdint>
#include <limits>

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

}  // namespace nanovllm::cuda
