#pragma once
/// Cases of `linear`: y = x · Wᵀ and y += x · Wᵀ, to the element type and to float32.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

/// One product of every size of `in` and `out`; the old y is there to be added or overwritten.
template <class T, class Out, class B>
void linear_case(B& backend, std::int64_t n, std::int64_t in, std::int64_t out, bool accumulate) {
  INFO(n << " x " << in << " -> " << out << (accumulate ? ", added" : ""));
  auto x = Array<B, T>::random(backend, n * in, 1);
  Weight<B, T> weight(backend, out, in, 2);
  auto y = Array<B, Out>::random(backend, n * out, 3);
  const std::vector<Out> before = y.host;
  backend.run(LinearArgs<T, typename B::template Matrix<T>, Out>{x.matrix(in), &weight.matrix,
                                                                 y.matrix(out), accumulate});
  y.download();
  Worst worst;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < out; ++o) {
      double product = 0, size = 0;
      for (std::int64_t j = 0; j < in; ++j) {
        const double term = x[i * in + j] * weight(o, j);
        product += term, size += std::abs(term);
      }
      const double old =
          accumulate ? static_cast<float>(before[static_cast<std::size_t>(i * out + o)]) : 0.f;
      const double expected = product + old;
      double bound = 1.01 * kUnit<Out> * std::abs(expected) + kTiny<Out> +
                     kFloatUnit * static_cast<double>(in + 1) * (size + std::abs(old));
      // cuBLASLt rounds the product to 16 bits before it adds an old y, and then the sum.
      if (accumulate) bound += 1.01 * kUnit<Out> * std::abs(product);
      worst.add(y[i * out + o], expected, bound);
    }
  }
  REQUIRE(worst.ratio() <= 1);
}

template <class T, class B>
void linear_cases(B& backend) {
  for (bool accumulate : {false, true}) {
    for (std::int64_t n : {1, 3, 17}) {
      linear_case<T, T>(backend, n, 64, 96, accumulate);
      linear_case<T, T>(backend, n, 1024, 129, accumulate);
      linear_case<T, T>(backend, n, 33, 7, accumulate);
      linear_case<T, float>(backend, n, 256, 200, accumulate);
    }
    linear_case<T, T>(backend, 150, 128, 256, accumulate);
  }
}

}  // namespace nanovllm::test::ops
