#pragma once
/// Weights in 8-bit floats with a scale for each block of 128 rows and columns.

#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm {

/// Rows of a matrix as a checkpoint has them: element (i, j) is data[i · stride + j] · scale(i, j).
struct Fp8Rows {
  const fp8_e4m3* data = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;
  std::int64_t group_columns = 1;  ///< columns that share a scale
  std::int64_t phase = 0;          ///< columns of the first group that lie ahead of column 0
  std::function<float(std::int64_t row, std::int64_t column)> scale{};

  /// Whether the scale of a row is the same in columns [0, group), in [group, 2 · group), …
  [[nodiscard]] bool has_one_scale_in_each(std::int64_t group) const {
    return phase + columns <= group_columns || (phase % group == 0 && group_columns % group == 0);
  }
};

/// The matrices of the layers in e4m3 with scales, the vocabulary's and all vectors in `T`. What a
/// checkpoint has in e4m3 is kept as it is, if its scales are those of rows, of the matrix, or of
/// blocks of a multiple of 128 columns; other matrices are quantised while they are loaded. A
/// backend's `Fp8Matrix` says how it computes with them.
/// Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.
template <Element T>
struct Fp8Weights {
  using Element = T;
  template <class Backend, MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == MatrixRole::dense, typename Backend::Fp8Matrix,
                                    typename Backend::template Matrix<T>>;
  static constexpr std::string_view kName = "float8_e4m3 in blocks of 128 x 128";
  static constexpr int kBits = 8;
};

using Fp8Block128 = Fp8Weights<bf16>;

}  // namespace nanovllm
