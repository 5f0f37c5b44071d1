#pragma once
/// `all_gather_columns` through the memory of peers.
///
///   whole[i, rank · width + j] = part of rank [i, j]
///
/// part [n, width] and whole [n, size · width] of any stride. Values arrive as they are, but for
/// NaNs whose bits look like a word that has not arrived: they are other NaNs. See peer_view.cuh
/// for how words travel, and sum.cuh for units and blocks, which are the same here.
///
/// Bytes over links: (size - 1) · n · width · sizeof(T) out and in.
/// Measured: peer_sum_bench, cuda_tp2_h200.json, logits over two GPUs 11.2 us by NCCL to 3.3 (1
/// row), 127 to 68 (64), 429 to 272 (256).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/peers/exchange.cuh"
#include "nanovllm/with/peers/peer_view.cuh"
#include "nanovllm/with/peers/sum.cuh"

namespace nanovllm::peer {

/// Vectors of a unit.
inline constexpr int kGatherThreads = 256;

template <class T>
struct GatherProblem {
  View view;
  MatrixView<const T> part;
  MatrixView<T> whole;
  cuda::RowVectors vectors;  ///< of `part`
};

template <class T, int kMost, bool kWhole>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const __grid_constant__ GatherProblem<T> problem) {
  const View& view = problem.view;
  cuda::grid_dependency_wait();
  cuda::grid_dependency_launch();
  const Call call = begin_call(view);
  Patience patience(view);
  const std::int64_t width = problem.part.extent(1);
  const std::uint32_t num_units = ceil_div(problem.vectors.total, std::uint32_t{kGatherThreads});
  for (std::uint32_t unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const std::uint32_t index = unit * kGatherThreads + threadIdx.x;
    const bool exists = index < problem.vectors.total;
    const auto place = problem.vectors.template place<cuda::kVecSize<T>>(exists ? index : 0);
    T* const to = problem.whole.at(place.row, place.column);
    const Exchange<T, kMost, Shots::one> exchange(view, call, unit, index);
    uint4 own{};
    if (exists) {
      own = cuda::load_first<kWhole>(problem.part.at(place.row, place.column), place.count);
      if (!call.has_ended) exchange.send(own);
    }
    if (unit == blockIdx.x && count_call(view, call)) patience.end();
    if (!exists) continue;
    exchange.receive_each(sendable(own), patience, [&](int rank, uint4 vector) {
      cuda::store_first<kWhole>(to + rank * width, place.count, vector);
    });
  }
}

/// See the head of this file. The vectors of 16 bytes of `part`, each row rounded up to whole ones,
/// must fit in a slot.
template <Element T>
void all_gather_columns(const View& view, MatrixView<const T> part, MatrixView<T> whole,
                        const cuda::Context& context, unsigned max_blocks = Launch{}.max_blocks) {
  if (part.empty()) return;
  const auto vectors =
      cuda::RowVectors::of<T>("all_gather_columns", part.extent(0), part.extent(1));
  const GatherProblem<T> problem{view, part, whole, vectors};
  const unsigned grid =
      std::min(ceil_div(vectors.total, std::uint32_t{kGatherThreads}), max_blocks);
  with_most_ranks(view.size, [&]<int kMost>() {
    const cuda::LaunchConfig config{.grid = grid, .block = kGatherThreads};
    if (cuda::has_whole_rows(part) && cuda::has_whole_rows(whole)) {
      cuda::launch(gather_kernel<T, kMost, true>, config, context, problem);
    } else {
      cuda::launch(gather_kernel<T, kMost, false>, config, context, problem);
    }
  });
}

}  // namespace nanovllm::peer
