#pragma once
/// Products of 8-bit floats as torch computes them (tests/oracle/make_fp8_fixtures.py).

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/dtype.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/io/safetensors.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

namespace nanovllm::test {

/// x [m, k] and W [n, k], and what torch makes of them. Element (i, j) of the rounded x is
/// x_e4m3[i · k + j] · x_scale[i · groups + j / 128].
struct TorchFp8Products {
  std::int64_t m = 40, n = 208, k = 328, groups = 3;
  std::vector<bf16> x;
  std::vector<fp8_e4m3> x_e4m3, weight;
  std::vector<float> x_scale, weight_scale;
  std::vector<float> y_w8a8;   ///< [m, n], of the rounded x
  std::vector<float> y_w8a16;  ///< [m, n], of x

  TorchFp8Products() {
    const SafetensorsFile file("tests/fixtures/fp8/products.safetensors");
    read(file, "x", m, k, x);
    read(file, "x_e4m3", m, k, x_e4m3);
    read(file, "x_scale", m, groups, x_scale);
    read(file, "weight", n, k, weight);
    read(file, "weight_scale", 2, groups, weight_scale);
    read(file, "y_w8a8", m, n, y_w8a8);
    read(file, "y_w8a16", m, n, y_w8a16);
  }

  [[nodiscard]] Fp8Rows weight_rows() const {
    return {.data = weight.data(),
            .rows = n,
            .columns = k,
            .stride = k,
            .group_columns = 128,
            .scale = [this](std::int64_t i, std::int64_t j) { return weight_scale_at(i, j); }};
  }
  [[nodiscard]] float x_value(std::int64_t i, std::int64_t j, bool is_rounded) const {
    const auto at = static_cast<std::size_t>(i * k + j);
    if (!is_rounded) return x[at];
    return x_e4m3[at] * x_scale[static_cast<std::size_t>(i * groups + j / 128)];
  }
  /// The sum of the products' absolute values after y(i, j): errors of sums are parts of it.
  [[nodiscard]] double size(std::int64_t i, std::int64_t j, bool is_rounded) const {
    double out = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double w = double(float(weight[static_cast<std::size_t>(j * k + c)])) *
                       double(weight_scale_at(j, c));
      out += std::abs(double(x_value(i, c, is_rounded)) * w);
    }
    return out;
  }

 private:
  [[nodiscard]] float weight_scale_at(std::int64_t i, std::int64_t j) const {
    return weight_scale[static_cast<std::size_t>(i / 128 * groups + j / 128)];
  }

  template <class T>
  static void read(const SafetensorsFile& file, const std::string& name, std::int64_t rows,
                   std::int64_t columns, std::vector<T>& to) {
    CAPTURE(name);
    const TensorInfo* const tensor = file.find(name);
    REQUIRE(tensor != nullptr);
    REQUIRE(tensor->shape == std::vector<std::uint64_t>{static_cast<std::uint64_t>(rows),
                                                        static_cast<std::uint64_t>(columns)});
    const auto bytes = file.data(*tensor);
    to.resize(static_cast<std::size_t>(rows * columns));
    REQUIRE(bytes.size() == to.size() * sizeof(T));
    std::memcpy(static_cast<void*>(to.data()), bytes.data(), bytes.size());
  }
};

}  // namespace nanovllm::test
