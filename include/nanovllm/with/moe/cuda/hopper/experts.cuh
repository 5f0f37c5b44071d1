#pragma once
/// Launcher of kernel.cuh, which has the formulas.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/hopper/kernel.cuh"
#include "nanovllm/with/moe/cuda/hopper/tuning.hpp"
#include "nanovllm/with/moe/cuda/workspace.cuh"

namespace nanovllm::cuda {

/// Enqueues a grouped product of tiles of `kWideExpertTokens` pairs. Allocates nothing on the
/// device and does not synchronise; legal during capture.
template <bool kGated, class W>
void wide_expert_product(GroupedOperands<bf16, W> p, std::int64_t experts, std::int64_t max_tiles,
                         TensorMaps& maps, const Context& context) {
  using Block = detail::WideExpertsBlock<kGated, W>;
  check<ShapeError>(ExpertWorkspace::kMaxPairs * p.x_stride / 8 < (std::int64_t{1} << 32),
                    "expert_mlp: rows of ", p.x_stride, " elements are too long");
  static_assert(Block::kTokens == kWideExpertTokens);
  const std::int64_t rows = kGated ? 2 * std::int64_t{p.n} : std::int64_t{p.n};
  const std::int64_t stride = experts > 1 ? p.expert_stride : rows * p.weight_stride;
  constexpr int kBoxColumns = kTmaRowBytes / static_cast<int>(sizeof(W));
  const CUtensorMap map = maps.get<W, 3>(p.weight, {p.k, rows, experts}, {p.weight_stride, stride},
                                         {kBoxColumns, Block::kBoxRows, 1});
  p.row_blocks = ceil_div(p.n, std::int32_t{Block::kColumns});
  launch(detail::wide_experts_kernel<kGated, W>,
         {.grid = static_cast<unsigned>(
              std::min<std::int64_t>(max_tiles * p.row_blocks, context.num_sms)),
          .block = Block::kThreads,
          .shared_bytes = static_cast<std::size_t>(Block::kSharedBytes)},
         context, map, p);
}

}  // namespace nanovllm::cuda
