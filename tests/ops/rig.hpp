#pragma once
/// What the op cases share: operands that live on the host and in a backend.
///
/// A case is a function template on the backend `B` and the element type `T`. It makes its operands
/// in the backend's own buffers and matrices, calls the op, downloads the result and compares it
/// with the formula of the op's contract in float64. Thus all backends answer to the same cases.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/core/tensor_view.hpp"
#include "nanovllm/ops/backend.hpp"

namespace nanovllm::test::ops {

/// Unit roundoff of an element type, and of the float32 arithmetic of all backends.
template <class T>
inline constexpr double kUnit = std::is_same_v<T, float>  ? 0x1p-24
                                : std::is_same_v<T, half> ? 0x1p-11
                                                          : 0x1p-8;
inline constexpr double kFloatUnit = 0x1p-24;

/// What one rounding to T may add where T has no relative precision left.
template <class T>
inline constexpr double kTiny = std::is_same_v<T, half> ? 0x1p-24 : 1e-30;

/// Rounds a double to `T` by way of float, as the contracts' rounding points do.
template <class T>
double rounded(double x) {
  return static_cast<float>(T(static_cast<float>(x)));
}

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

/// A row-major array on the host and in a backend. Every byte is 0xff, a NaN, until it is filled.
template <class B, class T>
class Array {
 public:
  Array(B& backend, std::int64_t size)
      : host(static_cast<std::size_t>(size)), backend_(&backend), buffer_(size) {
    if (size > 0) std::memset(static_cast<void*>(host.data()), 0xff, host.size() * sizeof(T));
    upload();
  }
  Array(B& backend, std::vector<T> values)
      : host(std::move(values)),
        backend_(&backend),
        buffer_(static_cast<std::int64_t>(host.size())) {
    upload();
  }
  /// Uniform in [low, high), a function of `seed` alone.
  static Array random(B& backend, std::int64_t size, std::uint64_t seed, double low = -2,
                      double high = 2) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < size; ++i) {
      const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i / 4), 0, 0, 11});
      const double u = to_unit_interval(words[static_cast<std::size_t>(i % 4)]);
      values.push_back(T(static_cast<float>(low + (high - low) * u)));
    }
    return Array(backend, std::move(values));
  }

  [[nodiscard]] T* data() { return buffer_.data(); }
  [[nodiscard]] double operator[](std::int64_t i) const {
    return static_cast<double>(static_cast<float>(host[static_cast<std::size_t>(i)]));
  }
  [[nodiscard]] VectorView<T> vector() {
    return {data(), {static_cast<std::int64_t>(host.size())}};
  }
  [[nodiscard]] MatrixView<T> matrix(std::int64_t cols) {
    return {data(), {static_cast<std::int64_t>(host.size()) / cols, cols}};
  }
  /// [n, heads, head_dim].
  [[nodiscard]] TensorView<T, 3> heads(std::int64_t num_heads, std::int64_t head_dim) {
    const auto n = static_cast<std::int64_t>(host.size()) / (num_heads * head_dim);
    return {data(), {n, num_heads, head_dim}};
  }

  void upload() {
    if (!host.empty()) backend_->upload(host.data(), data(), host.size());
  }
  void download() {
    if (!host.empty()) {
      backend_->download(static_cast<const T*>(data()), host.data(), host.size());
    }
  }

  std::vector<T> host;

 private:
  B* backend_;
  typename B::template Buffer<T> buffer_;
};

/// A weight matrix of random elements, and those elements.
template <class B, class T>
struct Weight {
  std::vector<T> host;
  typename B::template Matrix<T> matrix;

  Weight(B& backend, std::int64_t rows, std::int64_t cols, std::uint64_t seed)
      : host(Array<B, T>::random(backend, rows * cols, seed).host), matrix(rows, cols) {
    backend.set_rows(matrix, 0, MatrixView<const T>(host.data(), {rows, cols}));
  }
  [[nodiscard]] double operator()(std::int64_t i, std::int64_t j) const {
    return static_cast<float>(host[static_cast<std::size_t>(i * matrix.cols() + j)]);
  }
};

/// Whether two arrays are equal as memory.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace nanovllm::test::ops
