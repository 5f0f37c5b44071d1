#pragma once
/// Log-probabilities: log_softmax of the logits as they came, and the most likely tokens.

#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/cuda/sampling/math.cuh"
#include "nanovllm/cuda/sampling/select.cuh"

namespace nanovllm::cuda {

/// log_softmax of a row. Without a logit above -inf all are -inf; with logits of +inf these share
/// the probability.
struct LogSoftmax {
  float largest;
  double log_total;  ///< of Σ e^(logit - largest), or of the number of +inf

  [[nodiscard]] __device__ float operator()(float logit) const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (logit == -kInfinity || (largest == kInfinity && logit < largest)) return -kInfinity;
    const double relative = logit == largest ? 0. : double{logit} - double{largest};
    return static_cast<float>(relative - log_total);
  }
};

/// Writes the `count` ≤ min(vocab, kMaxTopTokens) most likely tokens, best first. `row` has the
/// logits before the bans. Contains barriers.
__device__ inline void write_most_likely(RowTiles row, std::uint32_t count,
                                         const LogSoftmax& log_prob, SelectShared& shared,
                                         TokenId* tokens, float* logprobs) {
  const std::uint32_t low = bound_of_largest(row, count, kMinusInfKey, shared);
  std::uint32_t size = gather(row, {.key = low}, row.largest_key(), shared);
  if (size > kSelectCapacity) {
    const Cut cut = find_prefix(row, {.by_mass = false, .count = count, .mass = 0}, low,
                                row.largest_key(), shared);
    size = gather(row, cut, row.largest_key(), shared);
  }
  sort_list(shared, static_cast<int>(size));
  for (auto i = static_cast<int>(threadIdx.x); i < static_cast<int>(count); i += kSelectThreads) {
    tokens[i] = list_id(shared, i);
    logprobs[i] = log_prob(logit_of(list_key(shared, i)));
  }
}

}  // namespace nanovllm::cuda
