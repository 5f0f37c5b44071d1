#pragma once
/// What the tests of the elementwise CPU ops share.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/cpu/context.hpp"

namespace nanovllm::test {

/// Every instruction set of this machine that kernels are compiled for.
inline std::vector<cpu::Isa> available_isas() {
  std::vector<cpu::Isa> out;
  for (int isa = static_cast<int>(cpu::kLeastIsa); isa <= static_cast<int>(cpu::best_isa()); ++isa)
    out.push_back(static_cast<cpu::Isa>(isa));
  return out;
}

/// Unit roundoff of an element type.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float>  ? 0x1p-24
                                : std::is_same_v<T, half> ? 0x1p-11
                                                          : 0x1p-8;

/// A dense matrix with `pad` poisoned elements after each row, so that strides matter and writes
/// past a row show.
template <class T>
class TestMatrix {
 public:
  TestMatrix(std::int64_t rows, std::int64_t cols, std::int64_t pad = 3)
      : rows_(rows),
        cols_(cols),
        stride_(cols + pad),
        data_(static_cast<std::size_t>(rows * stride_), poison()) {}

  static TestMatrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                           double low = -2, double high = 2) {
    TestMatrix out(rows, cols);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto word = philox4x32(
            seed, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j), 0, 0})[0];
        out(i, j) = T(static_cast<float>(low + (high - low) * to_unit_interval(word)));
      }
    }
    return out;
  }

  T& operator()(std::int64_t i, std::int64_t j) {
    return data_[static_cast<std::size_t>(i * stride_ + j)];
  }
  double value(std::int64_t i, std::int64_t j) const {
    return static_cast<float>(data_[static_cast<std::size_t>(i * stride_ + j)]);
  }
  MatrixView<T> view() { return {data_.data(), {rows_, cols_}, {stride_, 1}}; }
  VectorView<const T> row_view(std::int64_t i) { return {&(*this)(i, 0), {cols_}}; }
  TensorView<T, 3> heads(std::int64_t head_dim) {
    return {data_.data(), {rows_, cols_ / head_dim, head_dim}, {stride_, head_dim, 1}};
  }

  /// Whether the padding still holds the poison.
  bool padding_untouched() const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = cols_; j < stride_; ++j) {
        if (!std::isnan(value(i, j))) return false;
      }
    }
    return true;
  }
  bool same_bits(const TestMatrix& other) const {
    return std::memcmp(data_.data(), other.data_.data(), data_.size() * sizeof(T)) == 0;
  }

 private:
  static T poison() { return T(std::numeric_limits<float>::quiet_NaN()); }
  std::int64_t rows_, cols_, stride_;
  std::vector<T> data_;
};

/// Rounds a double to `T` by way of float, as the contracts' rounding points do.
template <class T>
double rounded(double x) {
  return static_cast<float>(T(static_cast<float>(x)));
}

}  // namespace nanovllm::test
