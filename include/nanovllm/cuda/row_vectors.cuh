#pragma once
/// How the elementwise kernels share out a matrix: vectors of 16 bytes, counted through all rows.

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cuda/context.cuh"
#include "nanovllm/cuda/launch.cuh"
#include "nanovllm/cuda/vec.cuh"

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
    nanovllm::check<ShapeError>(width <= kMost && (per_row == 0 || rows <= kMost / per_row), op,
                                ": at most ", kMost, " vectors of 16 bytes can be counted, got ",
                                rows, " rows of ", width, " elements");
    return {static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(per_row),
            static_cast<std::uint32_t>(rows * per_row)};
  }
};

/// Whether the rows along the last dimension are whole vectors: 16-byte aligned, all of them, and a
/// multiple of 16 bytes long.
template <class T, int kRank>
[[nodiscard]] bool has_whole_rows(const TensorView<T, kRank>& view) {
  bool whole = is_vector_aligned(view.data) && view.extents[kRank - 1] * sizeof(T) % 16 == 0;
  for (int i = 0; i + 1 < kRank; ++i) {
    whole = whole && (view.extents[i] <= 1 || view.strides[i] * sizeof(T) % 16 == 0);
  }
  return whole;
}

/// Threads of a block of the elementwise kernels.
inline constexpr int kElementwiseThreads = 256;

/// A thread for each vector: with a loop over several in each, less would be in flight at the start
/// and the last blocks would end later.
inline LaunchConfig elementwise_grid(const RowVectors& vectors) {
  return {.grid = ceil_div(vectors.total, std::uint32_t{kElementwiseThreads}),
          .block = kElementwiseThreads};
}

/// Calls `launch_with` with template arguments (kVectors, kWhole): the number of vectors for each
/// thread, kMany for large inputs, so that enough bytes are in flight, and 1 for small ones, so
/// that they spread over the multiprocessors; and whether all vectors are whole and aligned.
template <int kMany, class LaunchWith>
void with_row_vectors(std::uint32_t total, bool whole, const Context& context,
                      LaunchWith launch_with) {
  const auto grid = [&](int vectors) {
    return LaunchConfig{.grid = ceil_div(total, static_cast<std::uint32_t>(kElementwiseThreads) *
                                                    static_cast<std::uint32_t>(vectors)),
                        .block = kElementwiseThreads};
  };
  const auto one_wave = static_cast<std::uint32_t>(context.num_sms) * 2048;
  if (!whole) {
    launch_with.template operator()<1, false>(grid(1));
  } else if (total <= one_wave) {
    launch_with.template operator()<1, true>(grid(1));
  } else {
    launch_with.template operator()<kMany, true>(grid(kMany));
  }
}

}  // namespace nanovllm::cuda
