#pragma once
/// Cases of `rms_norm` and `add_rms_norm`.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// Compares one normed row. Two roundings to T, and float32 sums of chains of at most 64.
template <class T>
void compare_norm(Worst& worst, const std::vector<double>& x, const std::vector<double>& weight,
                  const std::vector<double>& out) {
  double sum = 0;
  for (double v : x) sum += v * v;
  const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.size()) + double{1e-6f});
  for (std::size_t j = 0; j < x.size(); ++j) {
    const double expected = x[j] * inverse * weight[j];
    worst.add(out[j], expected,
              (2.01 * kUnit<T> + 80 * kFloatUnit) * std::abs(expected) +
                  kTiny<T> * (1 + std::abs(weight[j])));
  }
}

/// Elements [begin, begin + count) as doubles.
template <class B, class T>
std::vector<double> values(const Array<B, T>& x, std::int64_t begin, std::int64_t count) {
  std::vector<double> out;
  for (std::int64_t i = begin; i < begin + count; ++i) out.push_back(x[i]);
  return out;
}

template <class T, class B>
void rms_norm_cases(B& backend) {
  for (std::int64_t width : {1, 64, 100, 128, 1024, 2049, 5120}) {
    INFO("width " << width);
    const std::int64_t rows = 5;
    auto x = Array<B, T>::random(backend, rows * width, 1);
    auto weight = Array<B, T>::random(backend, width, 2);
    Array<B, T> out(backend, rows * width);
    backend.run(RmsNormArgs<T>{x.matrix(width), weight.vector(), 1e-6f, out.matrix(width)});
    out.download();
    Worst worst;
    for (std::int64_t i = 0; i < rows; ++i) {
      compare_norm<T>(worst, values(x, i * width, width), values(weight, 0, width),
                      values(out, i * width, width));
    }
    REQUIRE(worst.ratio() <= 1);
  }
}

/// `out` is `x`, as in the model's forward pass.
template <class T, class B>
void add_rms_norm_cases(B& backend) {
  for (std::int64_t width : {1, 64, 100, 128, 1024, 2049, 5120}) {
    INFO("width " << width);
    const std::int64_t rows = 5;
    auto x = Array<B, T>::random(backend, rows * width, 3);
    auto residual = Array<B, T>::random(backend, rows * width, 4);
    auto weight = Array<B, T>::random(backend, width, 5);
    std::vector<double> sums;
    for (std::int64_t i = 0; i < rows * width; ++i) sums.push_back(rounded<T>(x[i] + residual[i]));
    backend.run(AddRmsNormArgs<T>{x.matrix(width), residual.matrix(width), weight.vector(), 1e-6f,
                                  x.matrix(width)});
    x.download(), residual.download();
    REQUIRE(values(residual, 0, rows * width) == sums);
    Worst worst;
    for (std::int64_t i = 0; i < rows; ++i) {
      compare_norm<T>(worst, values(residual, i * width, width), values(weight, 0, width),
                      values(x, i * width, width));
    }
    REQUIRE(worst.ratio() <= 1);
  }
}

}  // namespace nanovllm::test::ops
