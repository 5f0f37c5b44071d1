#pragma once
/// Matrices of 4-bit integers whose codes, scales and offsets the tests know.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"

namespace nanovllm::test {

/// Rows as a checkpoint has them: every code occurs, groups of `group_columns`, which begin at
/// `phase` of one.
class StoredInt4 {
 public:
  StoredInt4(std::int64_t rows, std::int64_t cols, bool has_offsets, std::uint64_t seed,
             std::int64_t group_columns = 128, std::int64_t phase = 0)
      : rows_(rows), cols_(cols), has_offsets_(has_offsets), seed_(seed) {
    rows_view_ = {.rows = rows,
                  .columns = cols,
                  .bits = 4,
                  .group_columns = group_columns,
                  .phase = phase,
                  .has_offsets = has_offsets};
    rows_view_.read = [this](std::int64_t row, std::int8_t* codes) {
      for (std::int64_t j = 0; j < cols_; ++j) codes[j] = code(row, j);
    };
    rows_view_.group = [this](std::int64_t row, std::int64_t column) { return group(row, column); };
  }
  StoredInt4(const StoredInt4&) = delete;
  StoredInt4& operator=(const StoredInt4&) = delete;

  [[nodiscard]] const IntRows& view() const { return rows_view_; }
  [[nodiscard]] std::int8_t code(std::int64_t row, std::int64_t column) const {
    return static_cast<std::int8_t>(static_cast<int>(word(row, column, 0) % 16) - 8);
  }
  [[nodiscard]] IntRows::Group group(std::int64_t row, std::int64_t column) const {
    const std::int64_t g = (column + rows_view_.phase) / rows_view_.group_columns;
    const auto unit = [&](std::uint32_t which) {
      return static_cast<float>(to_unit_interval(word(row, g, which)));
    };
    const float scale = .002f + .01f * unit(1);
    return {scale, has_offsets_ ? scale * (16 * unit(2) - 8) : 0.f};
  }
  /// In float64.
  [[nodiscard]] double value(std::int64_t row, std::int64_t column) const {
    const IntRows::Group of = group(row, column);
    return double{of.scale} * code(row, column) + double{of.offset};
  }

 private:
  [[nodiscard]] std::uint32_t word(std::int64_t row, std::int64_t column,
                                   std::uint32_t which) const {
    return philox4x32(
        seed_, {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column), which, 7})[0];
  }

  std::int64_t rows_, cols_;
  bool has_offsets_;
  std::uint64_t seed_;
  IntRows rows_view_;
};

}  // namespace nanovllm::test
