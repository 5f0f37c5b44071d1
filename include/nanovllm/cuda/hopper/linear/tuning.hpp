#pragma once
/// What `small_m_project_qkv` takes. For the host; nothing here needs CUDA.

#include <cstdint>

#include "nanovllm/cuda/linear/small_m/tuning.hpp"
#include "nanovllm/cuda/linear/tuning.hpp"

namespace nanovllm::cuda {

/// Most rows of x. With 16, what its threads hold for the heads costs the products more than a
/// kernel of the heads takes.
inline constexpr std::int64_t kMaxSmallMHeadRows = 8;
static_assert(kMaxSmallMHeadRows <= kMaxFusedHeadRows);

/// Whether start-up should try it: by large weights it gains nothing.
[[nodiscard]] constexpr bool suits_small_m_heads(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m <= kMaxSmallMHeadRows && suits_small_m(m, n, k);
}

}  // namespace nanovllm::cuda
