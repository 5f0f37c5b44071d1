#pragma once
/// How the elementwise kernels share out a matrix: vectors of 16 bytes, counted through all rows, a
/// thread each.
/// Measured: elementwise_bench, cuda_elementwise.json, needed: by the ops of rowwise.cuh.

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/context.cuh"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// A vector's place, and how many elements of its row there are from its first one on.
struct VectorPlace {
  std::uint32_t row, column;
  int count;
};

/// The vectors of `rows` rows of `width` elements. The last vector of a row may be partial.
struct RowVectors {
  std::uint32_t width = 0;    ///< elements a row
  std::uint32_t per_row = 0;  ///< vectors a row
  std::uint32_t total = 0;    ///< vectors

  /// Where vector `index` < total lies; `kSize` elements a vector.
  template <int kSize>
  [[nodiscard]] __device__ __forceinline__ VectorPlace place(std::uint32_t index) const {
    const std::uint32_t row = index / per_row, column = (index - row * per_row) * kSize;
    return {row, column, static_cast<int>(width - column)};
  }

  /// Throws ShapeError when 31 bits cannot count the vectors (32 GiB of data).
  template <class T>
  static RowVectors of(const char* op, std::int64_t rows, std::int64_t width) {
    const std::int64_t per_row = ceil_div(width, kVecSize<T>);
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    check<ShapeError>(width <= kMost && (per_row == 0 || rows <= kMost / per_row), op, ": at most ",
                      kMost, " vectors of 16 bytes can be counted, got ", rows, " rows of ", width,
                      " elements");
    return {static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(per_row),
            static_cast<std::uint32_t>(rows * per_row)};
  }
};

/// Threads of a block of the elementwise kernels.
inline constexpr int kElementwiseThreads = 256;

/// A thread for each vector, which runs `op` on it. (Two or four vectors a thread were measured: no
/// faster with many rows, slower with few.)
template <class T, bool kWhole, class Op>
__global__ void __launch_bounds__(kElementwiseThreads)
    row_vectors_kernel(const Op op, const RowVectors vectors) {
  grid_dependency_launch();
  grid_dependency_wait();
  const std::uint32_t index = blockIdx.x * kElementwiseThreads + threadIdx.x;
  if (index < vectors.total) op.template run<kWhole>(vectors.place<kVecSize<T>>(index));
}

/// Runs `op` on every vector of `rows` rows of `width` elements of type T. It is a struct of
/// operands with `run<kWhole>(VectorPlace) const` on the device. `whole` promises that all rows are
/// whole vectors.
template <class T, class Op>
void for_each_vector(const char* name, std::int64_t rows, std::int64_t width, bool whole,
                     const Op& op, const Context& context) {
  const auto vectors = RowVectors::of<T>(name, rows, width);
  launch(whole ? row_vectors_kernel<T, true, Op> : row_vectors_kernel<T, false, Op>,
         {.grid = ceil_div(vectors.total, std::uint32_t{kElementwiseThreads}),
          .block = kElementwiseThreads},
         context, op, vectors);
}

}  // namespace nanovllm::cuda
