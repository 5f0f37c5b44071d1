#pragma once
/// Sums over ranks through the memory of peers: plain, and with a residual and RMSNorm after them.
///
///   all_reduce            x = Σ over ranks of x
///   all_reduce_add_norm   residual = round(Σ over ranks of x + residual)
///                         out      = round(residual · rsqrt(mean(residual²) + eps)) · weight
///
/// The sum is float32 in rank order, rounded once. What comes after it has the bits of
/// `add_rms_norm` on that sum, whose parts it is made of.
///
/// x, residual and out [n, width], weight [width]. A block takes units: rows where there is a norm,
/// kSumThreads vectors where there is none. A unit waits only for the same unit of other ranks.
/// Blocks start in ascending order, and all ranks have the same number of blocks, if their devices
/// have the same number of multiprocessors. So a sum makes progress if each device has room for
/// only some of its blocks, beside kernels of others. With a norm a block sends all of its rows
/// before it waits, and an idle device has room for all blocks. Kernels of several ranks on one
/// device need room beside each other, which `Launch::max_blocks` gives them.
///
/// The next kernel starts when those ahead of this one are done, and stands by while this one
/// waits for other ranks. Of several such sums in a stream at most two are on the device at a time.
///
/// Bytes over links: see exchange.cuh. In the device's memory what arrives is written, read and
/// cleared, and the rest is that of `add_rms_norm`.
/// Measured: peer_sum_bench, cuda_tp2_h200.json, a sum with norm over two GPUs 8.5 us by NCCL to
/// 3.4 (1 row), 29.6 to 9.7 (256); a step of 8B 3.13 to 2.59 ms (cuda_tp2_overlap.json).

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/head_row.cuh"
#include "nanovllm/cuda/tile/row_vectors.cuh"
#include "nanovllm/cuda/tile/vec.cuh"
#include "nanovllm/with/peers/exchange.cuh"
#include "nanovllm/with/peers/peer_view.cuh"

namespace nanovllm::peer {

/// Vectors of a unit of a plain sum.
inline constexpr int kSumThreads = 256;
/// Vectors of a row whose norm is in the kernel of the sum: a thread each.
inline constexpr int kMaxRowVectors = 1024;

template <class T>
struct SumProblem {
  View view;
  MatrixView<T> x;
  cuda::RowVectors vectors;
};

template <class T>
struct AddNormProblem {
  View view;
  MatrixView<const T> x;
  MatrixView<T> residual;
  VectorView<const T> weight;
  float eps;
  MatrixView<T> out;
  float inverse_width;
};

template <class T, int kMost, Shots kShots, bool kWhole>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const __grid_constant__ SumProblem<T> problem) {
  const View& view = problem.view;
  const std::uint32_t num_units = ceil_div(problem.vectors.total, std::uint32_t{kSumThreads});
  uint4 own{};
  T* x = nullptr;
  int count = 0;
  bool exists = false;
  const auto load = [&](std::uint32_t unit) {
    const std::uint32_t index = unit * kSumThreads + threadIdx.x;
    exists = index < problem.vectors.total;
    if (!exists) return;
    const auto place = problem.vectors.template place<cuda::kVecSize<T>>(index);
    x = problem.x.data + place.row * problem.x.strides[0] + place.column;
    count = place.count;
    own = cuda::load_first<kWhole>(x, count);
  };
  cuda::grid_dependency_wait();
  cuda::grid_dependency_launch();
  load(blockIdx.x);  // ahead of the number, so that both are on their way together
  const Call call = begin_call(view);
  Patience patience(view);
  for (std::uint32_t unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const Exchange<T, kMost, kShots> exchange(view, call, unit, unit * kSumThreads + threadIdx.x);
    if (exists && !call.has_ended) exchange.send(own);
    if (unit == blockIdx.x && count_call(view, call)) patience.end();
    if (exists) cuda::store_first<kWhole>(x, count, exchange.receive(own, patience));
    if (unit + gridDim.x < num_units) load(unit + gridDim.x);
  }
}

template <class T, int kMost, Shots kShots>
__global__ void __launch_bounds__(kMaxRowVectors, 1)
    add_norm_kernel(const __grid_constant__ AddNormProblem<T> problem) {
  __shared__ float scratch[kMaxRowVectors];
  const View& view = problem.view;
  const auto width = static_cast<int>(problem.x.extent(1));
  const auto num_rows = static_cast<std::uint32_t>(problem.x.extent(0));
  const int column = static_cast<int>(threadIdx.x) * cuda::kVecSize<T>;
  const int num_vectors = width / cuda::kVecSize<T>;
  const bool exists = column < width;
  uint4 x{}, residual{}, weight{};
  const auto load = [&](std::uint32_t row) {
    if (!exists) return;
    x = cuda::load_vector(problem.x.at(row, column));
    residual = cuda::load_vector(problem.residual.at(row, column));
  };
  if (exists) weight = cuda::load_vector<cuda::Load::constant>(problem.weight.data + column);
  cuda::grid_dependency_wait();
  cuda::grid_dependency_launch();
  load(blockIdx.x);  // ahead of the number, so that both are on their way together
  const Call call = begin_call(view);
  Patience patience(view);
  const auto exchange_of = [&](std::uint32_t row) {
    return Exchange<T, kMost, kShots>(view, call, row,
                                      row * static_cast<unsigned>(num_vectors) + threadIdx.x);
  };
  for (std::uint32_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (!exists || call.has_ended) break;
    if (row != blockIdx.x) x = cuda::load_vector(problem.x.at(row, column));
    exchange_of(row).send(x);
  }
  if (count_call(view, call)) patience.end();
  for (std::uint32_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    if (gridDim.x < num_rows) {                // what the loop above read is of the last row
      if (row != blockIdx.x) __syncthreads();  // all are done with the scratch
      load(row);
    }
    if (exists) {
      x = exchange_of(row).receive(x, patience);
      x = cuda::add_vectors<T>(x, residual);
      cuda::store_vector(problem.residual.at(row, column), x);
    }
    const float squares[1] = {cuda::detail::vector_squares<T>(x)};
    const float sum = cuda::detail::sum_row<1>(squares, num_vectors, scratch);
    const float inverse = cuda::inverse_rms(sum, problem.inverse_width, problem.eps);
    if (exists) {
      cuda::store_vector(problem.out.at(row, column),
                         cuda::detail::norm_vector<T>(x, inverse, weight));
    }
  }
}

/// Blocks of `threads` that a device has room for: 64 registers a thread.
[[nodiscard]] inline unsigned resident_blocks(unsigned threads, const cuda::Context& context) {
  return static_cast<unsigned>(context.num_sms) * std::max(1u, 1024 / threads);
}

/// Calls `body.operator()<kMost, kShots>()` for a group of `size` ranks.
template <class Body>
void with_shots(int size, Shots shots, const Body& body) {
  with_most_ranks(size, [&]<int kMost>() {
    if (shots == Shots::one) {
      body.template operator()<kMost, Shots::one>();
    } else {
      body.template operator()<kMost, Shots::two>();
    }
  });
}

/// 16-byte vectors that a plain sum of x takes of a slot. Rows without gaps count as one row.
template <class T>
[[nodiscard]] std::int64_t num_vectors(const MatrixView<T>& x) {
  const bool is_dense = x.strides[0] == x.extent(1) || x.extent(0) <= 1;
  if (is_dense) return ceil_div(x.size(), std::int64_t{cuda::kVecSize<T>});
  return x.extent(0) * ceil_div(x.extent(1), std::int64_t{cuda::kVecSize<T>});
}

/// See the head of this file. `num_vectors(x)` must fit in a slot.
template <Element T>
void all_reduce(const View& view, const Launch& how, MatrixView<T> x,
                const cuda::Context& context) {
  if (x.empty()) return;
  if (x.strides[0] == x.extent(1) || x.extent(0) <= 1) x = {x.data, {1, x.size()}};
  const auto vectors = cuda::RowVectors::of<T>("all_reduce", x.extent(0), x.extent(1));
  const unsigned units = ceil_div(vectors.total, std::uint32_t{kSumThreads});
  const SumProblem<T> problem{view, x, vectors};
  with_shots(view.size, how.shots, [&]<int kMost, Shots kShots>() {
    const cuda::LaunchConfig config{.grid = std::min(units, how.max_blocks), .block = kSumThreads};
    if (cuda::has_whole_rows(x)) {
      cuda::launch(sum_kernel<T, kMost, kShots, true>, config, context, problem);
    } else {
      cuda::launch(sum_kernel<T, kMost, kShots, false>, config, context, problem);
    }
  });
}

/// Whether `all_reduce_add_norm` takes such operands: whole vectors of 16 bytes, at most
/// kMaxRowVectors of them a row, and rows that `add_rms_norm` does not treat as heads.
template <Element T>
[[nodiscard]] bool fits_norm(const MatrixView<T>& x, const MatrixView<T>& residual,
                             const VectorView<const T>& weight, const MatrixView<T>& out) {
  return x.extent(1) > cuda::kMaxHeadRow &&
         x.extent(1) <= std::int64_t{kMaxRowVectors} * cuda::kVecSize<T> &&
         cuda::has_whole_rows(x) && cuda::has_whole_rows(residual) &&
         cuda::has_whole_rows(weight) && cuda::has_whole_rows(out);
}

/// See the head of this file. The operands must fit (`fits_norm`), and all rows in a slot. `out`
/// may be `x`.
template <Element T>
void all_reduce_add_norm(const View& view, const Launch& how, MatrixView<T> x,
                         MatrixView<T> residual, VectorView<const T> weight, float eps,
                         MatrixView<T> out, const cuda::Context& context) {
  if (x.empty()) return;
  const auto vectors = static_cast<unsigned>(x.extent(1)) / cuda::kVecSize<T>;
  const auto rows = static_cast<unsigned>(x.extent(0));
  const AddNormProblem<T> problem{
      view, x, residual, weight, eps, out, 1.f / static_cast<float>(x.extent(1))};
  const unsigned threads = 32 * ceil_div(vectors, 32u);
  const unsigned blocks = std::min({rows, how.max_blocks, resident_blocks(threads, context)});
  with_shots(view.size, how.shots, [&]<int kMost, Shots kShots>() {
    cuda::launch(add_norm_kernel<T, kMost, kShots>, {.grid = blocks, .block = threads}, context,
                 problem);
  });
}

}  // namespace nanovllm::peer
