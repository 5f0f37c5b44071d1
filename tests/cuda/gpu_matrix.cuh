#pragma once
/// What the tests of the row-wise CUDA ops share.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/gpu_test.cuh"

namespace nanovllm::test {

/// The largest |x - expected| / bound; above 1 is a failure, and NaN counts as infinite.
class Worst {
 public:
  void add(double x, double expected, double bound) {
    const double error = std::abs(x - expected);
    const double ratio = error == 0 ? 0. : error / bound;
    if (!(ratio <= ratio_))
      ratio_ = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
  }
  [[nodiscard]] double ratio() const { return ratio_; }

 private:
  double ratio_ = 0;
};

/// How a matrix lies in memory: `pad` elements of poison after each row, and `shift` of them in
/// front of the first, which is then not 16-byte aligned.
struct Placement {
  std::int64_t pad = 0;
  std::int64_t shift = 0;
};

/// Dense and aligned; aligned rows apart; neither aligned.
inline constexpr Placement kPlacements[] = {{0, 0}, {16, 0}, {3, 1}};

/// A matrix on the host and on the device, poisoned until it is filled.
template <class T>
class GpuMatrix {
 public:
  GpuMatrix(std::int64_t rows, std::int64_t cols, Placement placement = {})
      : rows_(rows),
        cols_(cols),
        stride_(cols + placement.pad),
        shift_(placement.shift),
        array_(static_cast<std::size_t>(rows * stride_ + shift_)) {}

  static GpuMatrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                          Placement placement = {}, double low = -2, double high = 2) {
    GpuMatrix out(rows, cols, placement);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const auto word =
            philox4x32(seed, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j / 4), 0,
                              0})[static_cast<std::size_t>(j % 4)];
        out(i, j) = T(static_cast<float>(low + (high - low) * to_unit_interval(word)));
      }
    }
    out.upload();
    return out;
  }

  T& operator()(std::int64_t i, std::int64_t j) { return array_.host[index(i, j)]; }
  double value(std::int64_t i, std::int64_t j) const {
    return static_cast<float>(array_.host[index(i, j)]);
  }
  MatrixView<T> view() { return {array_.data() + shift_, {rows_, cols_}, {stride_, 1}}; }
  VectorView<T> row(std::int64_t i) { return {view().at(i), {cols_}}; }
  TensorView<T, 3> heads(std::int64_t head_dim) {
    return {array_.data() + shift_,
            {rows_, head_dim == 0 ? 0 : cols_ / head_dim, head_dim},
            {stride_, head_dim, 1}};
  }
  void upload() { array_.upload(); }
  void download() { array_.download(); }

  /// After `download`: whether the poison between and around the rows is still there.
  bool surroundings_intact() {
    const auto is_poison = [](const T& x) {
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, &x, sizeof(T));
      for (unsigned char byte : bytes) {
        if (byte != 0xff) return false;
      }
      return true;
    };
    for (std::int64_t i = 0; i < shift_; ++i) {
      if (!is_poison(array_.host[static_cast<std::size_t>(i)])) return false;
    }
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = cols_; j < stride_; ++j) {
        if (!is_poison((*this)(i, j))) return false;
      }
    }
    return array_.guards_intact();
  }

  /// Whether rows [first, first + count) have the bits of other's rows from `other_first`.
  bool same_rows(const GpuMatrix& other, std::int64_t first, std::int64_t count,
                 std::int64_t other_first) const {
    for (std::int64_t i = 0; i < count; ++i) {
      if (cols_ > 0 && std::memcmp(&array_.host[index(first + i, 0)],
                                   &other.array_.host[other.index(other_first + i, 0)],
                                   static_cast<std::size_t>(cols_) * sizeof(T)) != 0)
        return false;
    }
    return true;
  }
  bool same_bits(const GpuMatrix& other) const { return same_rows(other, 0, rows_, 0); }

 private:
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(shift_ + i * stride_ + j);
  }
  std::int64_t rows_, cols_, stride_, shift_;
  GpuArray<T> array_;
};

}  // namespace nanovllm::test
