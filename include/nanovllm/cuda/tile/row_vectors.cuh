#pragma once
/// How the elementwise kernels share out a matrix: vectors of 16 bytes, counted through all rows.

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/runtime/launch.cuh"
#include "nanovllm/cuda/tile/alignment.cuh"
#include "nanovllm/cuda/tile/vec.cuh"

namespace nanovllm::cuda {

/// The vectors of `rows` rows of `width` elements. The last vector of a row may be partial.
struct RowVectors {
  std::uint32_t width = 0;    ///< elements a row
  std::uint32_t per_row = 0;  ///< vectors a row
  std::uint32_t total = 0;    ///< vectors

  struct Place {
    std::uint32_t row;
    std::uint32_t column;  ///< of the vector's first element
    int count;             ///< elements from there to the end of the row
  };

  /// Where vector `index` < total lies; `kSize` elements a vector.
  template <int kSize>
  [[nodiscard]] __device__ __forceinline__ Place place(std::uint32_t index) const {
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

/// A thread for each vector. (Two or four a thread were measured: no faster with many rows, slower
/// with few.)
inline LaunchConfig elementwise_grid(const RowVectors& vectors) {
  return {.grid = ceil_div(vectors.total, std::uint32_t{kElementwiseThreads}),
          .block = kElementwiseThreads};
}

}  // namespace nanovllm::cuda
