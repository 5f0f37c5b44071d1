#pragma once
/// The blocks that `wide_m_linear` is compiled for. For the host; nothing here needs CUDA.

#include <cstdint>

namespace nanovllm::cuda {

/// How a block of `wide_m_linear` and its cluster are cut.
struct WideMBlock {
  int groups = 2;   ///< of 64 rows of x, a warpgroup each
  int rows = 64;    ///< of W; half of them gates and half ups in a gated product
  int share_x = 1;  ///< blocks of a cluster that have the same rows of x
  int share_w = 1;  ///< blocks of a cluster that have the same rows of W
  int split = 1;    ///< blocks of a cluster that share K

  [[nodiscard]] constexpr int cluster() const { return share_x * share_w * split; }
  bool operator==(const WideMBlock&) const = default;
};

}  // namespace nanovllm::cuda
