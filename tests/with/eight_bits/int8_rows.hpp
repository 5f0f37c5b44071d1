#pragma once
/// A format of weights that the library does not have: matrices of layers in eight bits, with a
/// scale a row.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "nanovllm/core/error.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/ops/linear.hpp"
#include "nanovllm/ops/weight_format.hpp"

namespace nanovllm::test {

/// W[i, j] ≈ scale[i] · stored[i, j], scale[i] = the largest |W[i, j]| / 127.
class Int8Matrix {
 public:
  static constexpr std::int64_t kRowGroup = 8;  // only to test that the loader keeps to it

  Int8Matrix(std::int64_t rows, std::int64_t cols)
      : rows_(rows),
        cols_(cols),
        data_(static_cast<std::size_t>(rows * cols)),
        scales_(static_cast<std::size_t>(rows)) {}

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] const std::int8_t* row(std::int64_t i) const { return data_.data() + i * cols_; }
  [[nodiscard]] float scale(std::int64_t i) const { return scales_[static_cast<std::size_t>(i)]; }

  void set_rows(std::int64_t first_row, MatrixView<const float> rows) {
    check(first_row % kRowGroup == 0, "rows begin at ", first_row);
    for (std::int64_t i = 0; i < rows.extent(0); ++i) {
      float largest = 0.f;
      for (std::int64_t j = 0; j < cols_; ++j)
        largest = std::max(largest, std::abs(*rows.at(i, j)));
      const float scale = largest > 0.f ? largest / 127.f : 1.f;
      scales_[static_cast<std::size_t>(first_row + i)] = scale;
      std::int8_t* const to = data_.data() + (first_row + i) * cols_;
      for (std::int64_t j = 0; j < cols_; ++j)
        to[j] = static_cast<std::int8_t>(std::lrint(*rows.at(i, j) / scale));
    }
  }

 private:
  std::int64_t rows_, cols_;
  std::vector<std::int8_t> data_;
  std::vector<float> scales_;
};

struct Int8Rows {
  using Element = float;
  template <class Backend, MatrixRole kRole>
  using Matrix = std::conditional_t<kRole == MatrixRole::dense, Int8Matrix,
                                    typename Backend::template Matrix<float>>;
  static constexpr std::string_view kName = "int8 with a scale a row";
  static constexpr int kBits = 8;
};

/// `linear` for them: weights are turned into floats, sums are in the order of the columns.
template <class T, class Out>
void run_op(const LinearArgs<T, Int8Matrix, Out>& args, cpu::Context& context) {
  validate(args);
  const Int8Matrix& weight = *args.weight;
  context.pool->parallel_for(weight.rows(), 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t n = 0; n < args.x.extent(0); ++n) {
        float sum = 0.f;
        for (std::int64_t j = 0; j < weight.cols(); ++j)
          sum += static_cast<float>(*args.x.at(n, j)) *
                 (static_cast<float>(weight.row(i)[j]) * weight.scale(i));
        Out* const y = args.y.at(n, i);
        *y = Out(args.accumulate ? static_cast<float>(*y) + sum : sum);
      }
    }
  });
}

}  // namespace nanovllm::test
