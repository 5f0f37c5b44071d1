#pragma once
/// Cases of `add_bias` and `bias_gelu`.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

template <class T, class B>
void add_bias_cases(B& backend) {
  for (const std::int64_t rows : {0, 1, 5}) {
    for (const std::int64_t width : {1, 7, 64, 100, 2304}) {
      INFO(rows << " rows of " << width);
      auto x = Array<B, T>::random(backend, rows * width, 1);
      auto bias = Array<B, T>::random(backend, width, 2);
      std::vector<double> sums;
      for (std::int64_t i = 0; i < rows * width; ++i)
        sums.push_back(rounded<T>(x[i] + bias[i % width]));
      backend.run(AddBiasArgs<T>{x.matrix(width), bias.vector()});
      x.download();
      for (std::int64_t i = 0; i < rows * width; ++i)
        REQUIRE(x[i] == sums[static_cast<std::size_t>(i)]);
    }
  }
  auto x = Array<B, T>::random(backend, 16, 1);
  CHECK_THROWS_AS(backend.run(AddBiasArgs<T>{x.matrix(8), VectorView<T>(x.data(), {7})}),
                  ShapeError);
}

/// In place and into another array; far from zero gelu is the value itself, or nothing.
template <class T, class B>
void bias_gelu_cases(B& backend) {
  constexpr double kRoot = 0.79788456080286535588;  // √(2/π)
  for (const std::int64_t rows : {0, 1, 5}) {
    for (const std::int64_t width : {1, 7, 64, 100, 3072}) {
      const double range = width == 100 ? 60 : 5;
      INFO(rows << " rows of " << width);
      auto x = Array<B, T>::random(backend, rows * width, 1, -range, range);
      auto bias = Array<B, T>::random(backend, width, 2);
      Array<B, T> out(backend, rows * width);
      Worst worst;
      backend.run(BiasGeluArgs<T>{x.matrix(width), bias.vector(), out.matrix(width)});
      out.download();
      for (std::int64_t i = 0; i < rows * width; ++i) {
        const double v = static_cast<float>(x[i] + bias[i % width]);
        const double u = kRoot * (v + 0.044715 * v * v * v);
        const double expected = v / (1 + std::exp(-2 * u));
        // The exponent is rounded four times before it is one.
        const double relative = 1.01 * kUnit<T> + (8 + 8 * std::abs(u)) * kFloatUnit;
        worst.add(out[i], expected, relative * std::abs(expected) + kTiny<T>);
      }
      REQUIRE(worst.ratio() <= 1);
      backend.run(BiasGeluArgs<T>{x.matrix(width), bias.vector(), x.matrix(width)});
      x.download();
      REQUIRE(same_bits(x.host, out.host));
    }
  }
  auto x = Array<B, T>::random(backend, 16, 1);
  const VectorView<T> bias(x.data(), {8}), small(x.data(), {7});
  const MatrixView<T> thin(x.data(), {2, 7});
  CHECK_THROWS_AS(backend.run(BiasGeluArgs<T>{x.matrix(8), small, x.matrix(8)}), ShapeError);
  CHECK_THROWS_AS(backend.run(BiasGeluArgs<T>{x.matrix(8), bias, thin}), ShapeError);
}

}  // namespace nanovllm::test::ops
