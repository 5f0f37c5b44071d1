#pragma once
/// How segments of keys are merged, in both kernels of batch-invariant attention.
///
/// A segment leaves of each row the maximum m of its scores, the sum l of its weights and the
/// weighted sums o of its values, all float32, l complete. Segments are taken in one after the
/// other, from the first:
///
///   M' = max(M, m),   a = 2^(c (M - M')),   b = 2^(c (m - M')),   L' = a L + b l,   O' = a O + b o
///
/// beginning with M = -inf, L = O = 0; every product and sum is the one written here. Taking in the
/// first segment leaves it as it is, and so does taking in one that a row sees nothing of.

#include <cmath>

#include "nanovllm/cuda/tile/exp2.cuh"

namespace nanovllm::cuda {

/// Maximum and sum of the segments of a row so far.
struct SegmentSum {
  float max = -INFINITY;
  float sum = 0.f;

  /// What the sums so far and those of a segment are multiplied by.
  struct Factors {
    float before;
    float segment;
  };

  /// Takes in a segment with maximum `m` and sum `l`; c = scale · log2 e.
  __device__ __forceinline__ Factors take(float m, float l, float c) {
    if (m == -INFINITY) return {1.f, 0.f};
    const float most = fmaxf(max, m);
    const Factors out{exp2_approx(__fmul_rn(__fsub_rn(max, most), c)),
                      exp2_approx(__fmul_rn(__fsub_rn(m, most), c))};
    max = most;
    sum = add(sum, l, out);
    return out;
  }

  [[nodiscard]] static __device__ __forceinline__ float add(float before, float segment,
                                                            const Factors& factors) {
    return __fmaf_rn(before, factors.before, __fmul_rn(segment, factors.segment));
  }

  /// What sums are multiplied by at the end; 0 for a row without keys.
  [[nodiscard]] __device__ __forceinline__ float finish() const {
    return sum == 0.f ? 0.f : __frcp_rn(sum);
  }
};

}  // namespace nanovllm::cuda
