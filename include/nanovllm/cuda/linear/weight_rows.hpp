#pragma once
/// What the rows of a weight are to each other, for kernels whose blocks take rows that belong
/// together.

#include <cstdint>

namespace nanovllm::cuda {

enum class WeightRows : std::uint8_t {
  plain,
  gated,  ///< gates, then ups: a block has as many of both
  heads,  ///< of q, k and v: a block has as many of a head's first half as of its second
};

}  // namespace nanovllm::cuda
