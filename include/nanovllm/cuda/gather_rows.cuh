#pragma once
/// `gather_rows` on CUDA: out[i, :] = x[rows[i], :], bit by bit. Contract: ops/gather_rows.hpp.
///
/// x [n, width] and out [m, width] of any stride; 16 bytes at a time where addresses and strides
/// are multiples of that, else element by element. `rows` is device memory and is not checked.
/// Bytes moved: 2 · m · width · sizeof(T).

#include <cuda_runtime.h>

#include <cstdint>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/row_vectors.cuh"
#include "nanovllm/cuda/vec.cuh"
#include "nanovllm/ops/gather_rows.hpp"

namespace nanovllm::cuda {

struct GatherRowsTraits {
  static constexpr int kVectors = 2;  ///< vectors a thread, for large inputs
};

template <class T, int kVectors, bool kWhole>
__global__ void __launch_bounds__(kElementwiseThreads)
    gather_rows_kernel(GatherRowsArgs<T> args, RowVectors vectors) {
  grid_dependency_wait();
  grid_dependency_launch();
  const std::uint32_t first = blockIdx.x * (kElementwiseThreads * kVectors) + threadIdx.x;
  std::int32_t sources[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t index = min(first + i * kElementwiseThreads, vectors.total - 1);
    sources[i] = args.rows.data[index / vectors.per_row];
  }
  uint4 values[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t index = first + i * kElementwiseThreads;
    if (index >= vectors.total) break;
    const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
    values[i] = load_first<kWhole>(args.x.at(sources[i], column), count);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t index = first + i * kElementwiseThreads;
    if (index >= vectors.total) break;
    const auto [row, column, count] = vectors.place<kVecSize<T>>(index);
    store_first<kWhole>(args.out.at(row, column), count, values[i]);
  }
}

/// See the head of this file. Throws ShapeError when the operands do not fit together.
template <Element T>
void gather_rows(const GatherRowsArgs<T>& args, const Context& context) {
  validate(args);
  if (args.out.empty()) return;
  const auto vectors = RowVectors::of<T>("gather_rows", args.out.extent(0), args.out.extent(1));
  const bool whole = has_whole_rows(args.x) && has_whole_rows(args.out);
  with_row_vectors<GatherRowsTraits::kVectors>(
      vectors.total, whole, context, [&]<int kVectors, bool kWhole>(const LaunchConfig& config) {
        launch(gather_rows_kernel<T, kVectors, kWhole>, config, context, args, vectors);
      });
}

}  // namespace nanovllm::cuda
