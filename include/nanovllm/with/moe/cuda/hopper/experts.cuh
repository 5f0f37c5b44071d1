#pragma once
/// Launcher of kernel.cuh, which has the formulas.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/ptx/tensor_maps.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/with/moe/cuda/grouped.cuh"
#include "nanovllm/with/moe/cuda/hopper/kernel.cuh"
#include "nanovllm/with/moe/cuda/workspace.cuh"

namespace nanovllm::cuda {

/// Pairs of a token and a slot in a tile of the kernel.
inline constexpr int kWideExpertTokens = 128;

/// Whether the experts of `pairs` pairs have half a tile on average.
[[nodiscard]] constexpr bool suits_wide_experts(std::int64_t pairs, std::int64_t experts) {
  return pairs >= experts * (kWideExpertTokens / 2);
}

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

/// The kernel of architecture A for products of bfloat16 by experts in bfloat16 or 8-bit floats:
/// none, but where this is specialised.
template <class A>
struct ExpertProductOf {
  /// Pairs in a tile, 0 where it has none for so many pairs of a token and a slot.
  [[nodiscard]] static constexpr int tile_rows(std::int64_t /*pairs*/, std::int64_t /*experts*/) {
    return 0;
  }
  /// (operands, experts, most tiles, tensor maps, context): false, with nothing enqueued, where
  /// `tile_rows` is 0.
  template <bool kGated, class W>
  [[nodiscard]] static bool run(const GroupedOperands<bf16, W>&, std::int64_t, std::int64_t,
                                TensorMaps&, const Context&) {
    return false;
  }
};

template <>
struct ExpertProductOf<Hopper> {
  [[nodiscard]] static constexpr int tile_rows(std::int64_t pairs, std::int64_t experts) {
    return suits_wide_experts(pairs, experts) ? kWideExpertTokens : 0;
  }
  template <bool kGated, class W>
  [[nodiscard]] static bool run(const GroupedOperands<bf16, W>& operands, std::int64_t experts,
                                std::int64_t max_tiles, TensorMaps& maps, const Context& context) {
    wide_expert_product<kGated>(operands, experts, max_tiles, maps, context);
    return true;
  }
};

}  // namespace nanovllm::cuda
