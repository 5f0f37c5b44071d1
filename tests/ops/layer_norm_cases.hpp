#pragma once
/// Cases of `layer_norm` and `add_layer_norm`.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Rows of [low, high) and the vectors that go with them; `rows` may be 0.
template <class B, class T>
struct LayerNormOperands {
  LayerNormOperands(B& backend, std::int64_t rows_in, std::int64_t width_in, double low,
                    double high)
      : rows(rows_in),
        width(width_in),
        x(Array<B, T>::random(backend, rows_in * width_in, 1, low, high)),
        weight(Array<B, T>::random(backend, width_in, 2)),
        bias(Array<B, T>::random(backend, width_in, 3)),
        out(backend, rows_in * width_in) {}

  /// The largest error of `out` over its bound, where `from` is what was normed.
  ///
  /// Float32 sums of chains of at most 160 elements put an error of `mean_error` into every
  /// x - mean, relative ones of 200 units into the variance, and T rounds once.
  double worst(const Array<B, T>& from, const Array<B, T>& got) const {
    Worst out_of_bound;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t begin = i * width;
      double mean = 0, variance = 0, largest = 0;
      for (std::int64_t j = 0; j < width; ++j) {
        mean += from[begin + j] / static_cast<double>(width);
        largest = std::max(largest, std::abs(from[begin + j]));
      }
      for (std::int64_t j = 0; j < width; ++j)
        variance +=
            (from[begin + j] - mean) * (from[begin + j] - mean) / static_cast<double>(width);
      const double inverse = 1 / std::sqrt(variance + double{1e-5f});
      const double mean_error = 160 * kFloatUnit * largest;
      for (std::int64_t j = 0; j < width; ++j) {
        const double term = (from[begin + j] - mean) * inverse * weight[j];
        const double expected = term + bias[j];
        const double slope = inverse * std::abs(weight[j]);
        out_of_bound.add(got[begin + j], expected,
                         1.01 * kUnit<T> * std::abs(expected) + kTiny<T> + mean_error * slope +
                             200 * kFloatUnit * std::abs(term) +
                             4 * kFloatUnit * std::abs(bias[j]));
      }
    }
    return out_of_bound.ratio();
  }

  std::int64_t rows, width;
  Array<B, T> x, weight, bias, out;
};

inline constexpr std::int64_t kLayerNormWidths[] = {1,   7,    64,   100,  192,
                                                    768, 1023, 1600, 4099, 9000};

template <class T, class B>
void layer_norm_cases(B& backend) {
  for (const std::int64_t rows : {0, 1, 5}) {
    for (const std::int64_t width : kLayerNormWidths) {
      INFO(rows << " rows of " << width);
      LayerNormOperands<B, T> o(backend, rows, width, -2, 2);
      backend.run(LayerNormArgs<T>{o.x.matrix(width), o.weight.vector(), o.bias.vector(), 1e-5f,
                                   o.out.matrix(width)});
      o.out.download();
      REQUIRE(o.worst(o.x, o.out) <= 1);
    }
  }
  // A mean that is large against the deviations: squares minus the squared mean would be noise.
  LayerNormOperands<B, T> far(backend, 3, 768, 96, 100);
  backend.run(LayerNormArgs<T>{far.x.matrix(768), far.weight.vector(), far.bias.vector(), 1e-5f,
                               far.out.matrix(768)});
  far.out.download();
  REQUIRE(far.worst(far.x, far.out) <= 1);

  LayerNormOperands<B, T> o(backend, 2, 8, -2, 2);
  const auto x = o.x.matrix(8), out = o.out.matrix(8);
  const VectorView<T> vector(o.weight.data(), {8}), small(o.weight.data(), {7});
  const MatrixView<T> thin(o.out.data(), {2, 7});
  CHECK_THROWS_AS(backend.run(LayerNormArgs<T>{x, small, vector, 1e-5f, out}), ShapeError);
  CHECK_THROWS_AS(backend.run(LayerNormArgs<T>{x, vector, small, 1e-5f, out}), ShapeError);
  CHECK_THROWS_AS(backend.run(LayerNormArgs<T>{x, vector, vector, 1e-5f, thin}), ShapeError);
}

/// `out` is `x`, as in the model's forward pass. With and without a bias of x.
template <class T, class B>
void add_layer_norm_cases(B& backend) {
  for (const std::int64_t rows : {0, 1, 4, 5}) {
    for (const std::int64_t width : kLayerNormWidths) {
      const bool biased = rows != 4;
      INFO(rows << " rows of " << width);
      LayerNormOperands<B, T> o(backend, rows, width, -2, 2);
      auto residual = Array<B, T>::random(backend, rows * width, 4);
      auto x_bias = Array<B, T>::random(backend, width, 5);
      std::vector<double> sums;  // in the order of float32's two sums
      for (std::int64_t i = 0; i < rows * width; ++i) {
        const auto summand = static_cast<float>(o.x[i] + (biased ? x_bias[i % width] : 0));
        sums.push_back(rounded<T>(summand + residual[i]));
      }
      backend.run(AddLayerNormArgs<T>{.x = o.x.matrix(width),
                                      .x_bias = biased ? x_bias.vector() : VectorView<T>(),
                                      .residual = residual.matrix(width),
                                      .weight = o.weight.vector(),
                                      .bias = o.bias.vector(),
                                      .eps = 1e-5f,
                                      .out = o.x.matrix(width)});
      o.x.download(), residual.download();
      for (std::int64_t i = 0; i < rows * width; ++i)
        REQUIRE(residual[i] == sums[static_cast<std::size_t>(i)]);
      REQUIRE(o.worst(residual, o.x) <= 1);
    }
  }
  LayerNormOperands<B, T> o(backend, 2, 8, -2, 2);
  const auto x = o.x.matrix(8), out = o.out.matrix(8);
  const VectorView<T> vector(o.weight.data(), {8}), small(o.weight.data(), {7});
  const MatrixView<T> thin(o.out.data(), {2, 7});
  CHECK_THROWS_AS(backend.run(AddLayerNormArgs<T>{x, {}, thin, vector, vector, 1e-5f, out}),
                  ShapeError);
  CHECK_THROWS_AS(backend.run(AddLayerNormArgs<T>{x, {}, out, vector, small, 1e-5f, out}),
                  ShapeError);
  CHECK_THROWS_AS(backend.run(AddLayerNormArgs<T>{x, small, out, vector, vector, 1e-5f, out}),
                  ShapeError);
}

}  // namespace nanovllm::test::ops
