#pragma once
/// When experts have rows enough for Hopper's kernel. For the host; nothing here needs CUDA.

#include <cstdint>

namespace nanovllm::cuda {

/// Pairs of a token and a slot in a tile of the kernel.
inline constexpr int kWideExpertTokens = 128;

/// Whether the experts of `pairs` pairs have half a tile on average.
[[nodiscard]] constexpr bool suits_wide_experts(std::int64_t pairs, std::int64_t experts) {
  return pairs >= experts * (kWideExpertTokens / 2);
}

}  // namespace nanovllm::cuda
