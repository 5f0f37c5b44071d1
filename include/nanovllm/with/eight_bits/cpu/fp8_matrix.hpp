#pragma once
/// The CPU's matrix of 8-bit floats, and `linear` with it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/math.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cpu/aligned_buffer.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/linear/linear.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::cpu {

/// An owned matrix [rows, cols] of e4m3, row-major, with a float for each row and 128 columns:
/// element (i, j) is stored · scale.
class Fp8Matrix {
 public:
  using StoredRows = Fp8Rows;  ///< of a checkpoint, that it keeps

  static constexpr std::int64_t kBlock = 128;  ///< rows and columns that are quantised together
  static constexpr std::int64_t kRowGroup = kBlock;
  static constexpr bool kAnyFirstRow = true;  ///< a tensor may begin anywhere

  Fp8Matrix() = default;

  /// All zeros. Throws ShapeError for a negative extent.
  Fp8Matrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    check<ShapeError>(rows >= 0 && cols >= 0, "Fp8Matrix: extents must be >= 0, got [", rows, ", ",
                      cols, "]");
    data_ = AlignedBuffer<fp8_e4m3>(rows * cols);
    scales_ = AlignedBuffer<float>(rows * num_groups());
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] std::int64_t size_bytes() const {
    return data_.size_bytes() + scales_.size_bytes();
  }

  /// Quantises rows to rows [first_row, first_row + rows.extent(0)), in blocks that begin with the
  /// first of them: a block's scale is its largest |x| / 448, NaN if there is one without a number.
  /// Throws ShapeError when the rows do not fit.
  template <Element T>
  void set_rows(std::int64_t first_row, MatrixView<const T> rows) {
    check_rows(first_row, rows.extent(0), rows.extent(1));
    for (std::int64_t row = 0; row < rows.extent(0); row += kBlock) {
      const std::int64_t end_row = std::min(row + kBlock, rows.extent(0));
      for (std::int64_t column = 0; column < cols_; column += kBlock)
        set_block(first_row, rows, row, end_row, column, std::min(column + kBlock, cols_));
    }
  }

  /// Keeps rows as they are stored. False, with nothing done, where their scales change within 128
  /// of these columns. Throws ShapeError when the rows do not fit.
  bool set_rows(std::int64_t first_row, const Fp8Rows& rows) {
    check_rows(first_row, rows.rows, rows.columns);
    if (!rows.has_one_scale_in_each(kBlock)) return false;
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      std::copy_n(rows.data + i * rows.stride, cols_, data_.data() + (first_row + i) * cols_);
      for (std::int64_t g = 0; g < num_groups(); ++g)
        scale_of(first_row + i, g) = rows.scale(i, g * kBlock);
    }
    return true;
  }

  /// Copies row `row`, in [0, rows()), to out[0, cols()).
  template <Element Out>
  void copy_row(std::int64_t row, Out* out) const {
    const fp8_e4m3* const from = data_.data() + row * cols_;
    for (std::int64_t column = 0; column < cols_; column += kBlock) {
      const float scale = scales_.data()[row * num_groups() + column / kBlock];
      const std::int64_t end = std::min(column + kBlock, cols_);
      for (std::int64_t j = column; j < end; ++j) out[j] = Out(static_cast<float>(from[j]) * scale);
    }
  }

 private:
  [[nodiscard]] std::int64_t num_groups() const { return ceil_div(cols_, kBlock); }
  [[nodiscard]] float& scale_of(std::int64_t row, std::int64_t group) {
    return scales_.data()[row * num_groups() + group];
  }

  void check_rows(std::int64_t first_row, std::int64_t rows, std::int64_t columns) const {
    check<ShapeError>(first_row >= 0 && first_row + rows <= rows_ && columns == cols_,
                      "Fp8Matrix: ", rows, " rows of ", columns, " at row ", first_row,
                      " do not fit a matrix [", rows_, ", ", cols_, "]");
  }

  template <class T>
  void set_block(std::int64_t first_row, MatrixView<const T> rows, std::int64_t row,
                 std::int64_t end_row, std::int64_t column, std::int64_t end_column) {
    float largest = 0.f;
    for (std::int64_t i = row; i < end_row; ++i) {
      for (std::int64_t j = column; j < end_column; ++j) {
        const float x = std::abs(static_cast<float>(*rows.at(i, j)));
        if (x > largest || std::isnan(x)) largest = x;  // NaN stays
      }
    }
    const bool is_finite = largest <= std::numeric_limits<float>::max();
    const float scale = !is_finite      ? std::numeric_limits<float>::quiet_NaN()
                        : largest > 0.f ? largest / fp8_e4m3::kMax
                                        : 1.f;
    for (std::int64_t i = row; i < end_row; ++i) {
      fp8_e4m3* const to = data_.data() + (first_row + i) * cols_;
      for (std::int64_t j = column; j < end_column; ++j)
        to[j] = fp8_e4m3(static_cast<float>(*rows.at(i, j)) / scale);
      scale_of(first_row + i, column / kBlock) = scale;
    }
  }

  std::int64_t rows_ = 0, cols_ = 0;
  AlignedBuffer<fp8_e4m3> data_;
  AlignedBuffer<float> scales_;
};

namespace detail {

/// Rows [first, first + rows) of `weight` in the order of the kernels, in memory of this thread.
template <class T>
const PackedMatrix<T>& unpacked_panel(const Fp8Matrix& weight, std::int64_t first,
                                      std::int64_t rows) {
  thread_local PackedMatrix<T> panel;
  const std::int64_t cols = weight.cols();
  if (panel.rows() != rows || panel.cols() != cols) panel = PackedMatrix<T>(rows, cols);
  T* const values = scratch<Fp8Matrix, T>(rows * cols);
  for (std::int64_t i = 0; i < rows; ++i) weight.copy_row(first + i, values + i * cols);
  panel.set_rows(0, MatrixView<const T>(values, {rows, cols}));
  return panel;
}

}  // namespace detail

/// Contract: ops/linear.hpp. Each thread dequantises 32 rows of the weight at a time, and rounds
/// them to T: bit for bit the result of a `PackedMatrix<T>` of those values.
template <Element T, Element Out>
void linear(const LinearArgs<T, Fp8Matrix, Out>& args, const Context& context) {
  check<ShapeError>(args.weight != nullptr, "linear: no weight given");
  validate(args);
  constexpr std::int64_t kRows = PackedMatrix<T>::kPanelRows;
  const Fp8Matrix& weight = *args.weight;
  const Context alone{.isa = context.isa};
  detail::share(
      context, ceil_div(weight.rows(), kRows), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t first = begin * kRows; first < std::min(end * kRows, weight.rows());
             first += kRows) {
          const std::int64_t rows = std::min(kRows, weight.rows() - first);
          const PackedMatrix<T>& panel = detail::unpacked_panel<T>(weight, first, rows);
          const MatrixView<Out> y(args.y.at(0, first), {args.y.extent(0), rows}, args.y.strides);
          linear(LinearArgs<T, PackedMatrix<T>, Out>{args.x, &panel, y, args.accumulate}, alone);
        }
      });
}

template <Element T, Element Out>
void run_op(const LinearArgs<T, Fp8Matrix, Out>& args, Context& context) {
  linear(args, context);
}

}  // namespace nanovllm::cpu
