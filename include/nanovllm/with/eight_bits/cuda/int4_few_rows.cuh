#pragma once
/// A dense layer of few rows of x by 4-bit integers: launcher of int4_few_rows_kernel.cuh, which
/// has the formulas, and from kFewestInt4MidRows on of int4_mid_m_kernel.cuh.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_few_rows_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_mid_m_kernel.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_planes.cuh"

namespace nanovllm::cuda {

/// Fewest rows of x whose planes come through the ring.
inline constexpr std::int64_t kFewestInt4MidRows = 9;

/// y = x · Wᵀ (+ y); no operand is empty.
struct Int4Layer {
  MatrixView<const bf16> x;  ///< [m, k]
  Int4View weight;           ///< [n, k]
  MatrixView<bf16> y;        ///< [m, n]
  bool accumulate = false;
  bool gated = false;  ///< y [m, n / 2] = silu(gates) · ups; of more than eight rows
};

namespace detail {

/// Groups of the block that has most of them.
[[nodiscard]] inline int int4_groups_of_block(const Int4View& weight) {
  return static_cast<int>(2 * ceil_div(weight.num_units(), std::int64_t{kInt4Cluster}));
}

/// Shared memory of a multiprocessor, less what its blocks take besides.
inline constexpr int kInt4SharedBytes = 224 * 1024;
inline constexpr int kInt4FewestStages = 4;

template <int kColumns>
[[nodiscard]] bool int4_few_rows_fits(const Int4View& weight) {
  return Int4FewRowsBlock<kColumns>::shared_bytes(int4_groups_of_block(weight)) +
             kInt4FewestStages * kInt4StageBytes <=
         kInt4SharedBytes;
}

template <int kColumns>
void launch_int4_few_rows(const Int4Layer& layer, const Int4Planes& planes,
                          const Context& context) {
  using Block = Int4FewRowsBlock<kColumns>;
  const int groups = int4_groups_of_block(layer.weight);
  const int fixed = Block::shared_bytes(groups);
  // As many blocks of a multiprocessor as have five stages each.
  int blocks = Block::kBlocksPerSm;
  while (blocks > 1 && fixed + 5 * kInt4StageBytes > kInt4SharedBytes / blocks) --blocks;
  const int stages =
      std::min((kInt4SharedBytes / blocks - fixed) / kInt4StageBytes, kInt4MostStages);
  const auto tiles = static_cast<int>(layer.weight.num_tiles());
  const int at_once = std::max(context.num_sms * blocks / kInt4Cluster, 1);
  const int clusters = ceil_div(tiles, ceil_div(tiles, at_once));
  launch(int4_few_rows_kernel<Block>,
         {.grid = static_cast<unsigned>(clusters * kInt4Cluster),
          .block = Block::kThreads,
          .shared_bytes = static_cast<std::size_t>(fixed + stages * kInt4StageBytes),
          .cluster = kInt4Cluster,
          .packs_clusters = true,
          .shared_percent = 100},
         context,
         Int4FewRowsProblem{.weight = layer.weight,
                            .x = layer.x.data,
                            .planes = planes,
                            .y = layer.y.data,
                            .x_stride = layer.x.strides[0],
                            .y_stride = layer.y.strides[0],
                            .num_tokens = static_cast<int>(layer.x.extent(0)),
                            .num_stages = stages,
                            .most_groups = groups,
                            .accumulate = layer.accumulate});
}

/// `planes` are made.
template <int kTokens, bool kGated>
void launch_int4_mid_m(const Int4Layer& layer, const Int4Planes& planes, const Context& context) {
  using Block = Int4MidMBlock<kTokens, kGated>;
  const auto tiles = static_cast<int>(layer.weight.num_tiles());
  const int items = ceil_div(tiles, Block::kTiles);
  constexpr int kBlocks = 2;  // of a multiprocessor: one leaves it half idle
  constexpr int kStages = std::min(
      (kInt4SharedBytes / kBlocks - Block::kFixedBytes) / Block::kStageBytes, Block::kMostStages);
  static_assert(kStages >= 2);
  const int at_once = std::max(context.num_sms * kBlocks / kInt4Cluster, 1);
  const int clusters = ceil_div(items, ceil_div(items, at_once));
  launch(
      int4_mid_m_kernel<Block>,
      {.grid = static_cast<unsigned>(clusters * kInt4Cluster),
       .block = Block::kThreads,
       .shared_bytes = static_cast<std::size_t>(Block::kFixedBytes + kStages * Block::kStageBytes),
       .cluster = kInt4Cluster,
       .packs_clusters = true,
       .shared_percent = 100},
      context,
      Int4MidMProblem{.weight = layer.weight,
                      .planes = planes,
                      .y = layer.y.data,
                      .y_stride = layer.y.strides[0],
                      .num_tokens = static_cast<int>(layer.x.extent(0)),
                      .num_items = items,
                      .num_stages = kStages,
                      .pair_tiles = kGated ? items : 1,
                      .item_tiles = kGated ? 1 : Block::kTiles,
                      .accumulate = layer.accumulate});
}

}  // namespace detail

/// Whether the device and the operands are for `int4_few_rows`.
[[nodiscard]] inline bool int4_few_rows_takes(const Int4Layer& layer, const Context& context) {
  return context.compute_capability == 90 && context.has_clusters && layer.weight.cols % 8 == 0 &&
         is_vector_aligned(layer.x.data) && layer.x.strides[0] % 8 == 0;
}

/// Enqueues the layer: four rows or eight, whose planes stay in shared memory if there is room, by
/// one launch, more of them by one for each 16 or 32. `planes` has room for the rows.
inline void int4_few_rows(const Int4Layer& layer, const detail::Int4Planes& planes,
                          const Context& context) {
  const std::int64_t rows = layer.x.extent(0), groups = 2 * layer.weight.num_units();
  const auto run = [&](auto columns, auto is_mid_m) {
    constexpr int kColumns = columns(), kTokens = kColumns / 2;
    if constexpr (kColumns > 8) {
      launch(detail::int4_planes_kernel<kTokens>,
             {.grid = dim3(static_cast<unsigned>(groups),
                           static_cast<unsigned>(ceil_div(rows, std::int64_t{8}))),
              .block = 128},
             context, layer.x, planes);
    }
    for (std::int64_t first = 0; first < rows; first += kTokens) {
      const std::int64_t end = std::min(first + kTokens, rows), blocks = first / kTokens * groups;
      Int4Layer part = layer;
      part.x = layer.x.slice(first, end), part.y = layer.y.slice(first, end);
      detail::Int4Planes of = planes;
      if constexpr (kColumns > 8) {
        of.planes += blocks * kColumns * kInt4Group;
        of.scales += blocks * kTokens, of.sums += blocks * kTokens;
      }
      if constexpr (!is_mid_m()) {
        detail::launch_int4_few_rows<kColumns>(part, of, context);
      } else if (layer.gated) {
        detail::launch_int4_mid_m<kTokens, true>(part, of, context);
      } else {
        detail::launch_int4_mid_m<kTokens, false>(part, of, context);
      }
    }
  };
  constexpr std::integral_constant<int, 8> kFour;
  constexpr std::integral_constant<int, 16> kEight;
  constexpr std::integral_constant<int, 32> kSixteen;
  constexpr std::integral_constant<int, 64> kThirtyTwo;
  // Blocks make planes of so many groups for themselves in less time than a kernel takes ahead.
  const bool few_groups = rows * detail::int4_groups_of_block(layer.weight) <= 32;
  const bool only_four = !detail::int4_few_rows_fits<16>(layer.weight);
  if ((rows == 1 || (rows <= 4 && (few_groups || only_four))) &&
      detail::int4_few_rows_fits<8>(layer.weight))
    return run(kFour, std::false_type{});
  if (rows < kFewestInt4MidRows && detail::int4_few_rows_fits<16>(layer.weight))
    return run(kEight, std::false_type{});
  if (rows <= 16) return run(kSixteen, std::true_type{});
  run(kThirtyTwo, std::true_type{});
}

}  // namespace nanovllm::cuda
