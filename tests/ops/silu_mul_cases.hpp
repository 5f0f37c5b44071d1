#pragma once
/// Cases of `silu_mul`.

#include "ops/rig.hpp"

namespace nanovllm::test::ops {

template <class T, class B>
void silu_mul_cases(B& backend) {
  for (std::int64_t width : {1, 7, 64, 3072}) {
    INFO("width " << width);
    const std::int64_t rows = 5;
    auto gate_up = Array<B, T>::random(backend, rows * 2 * width, 1, -10, 10);
    Array<B, T> out(backend, rows * width);
    backend.run(SiluMulArgs<T>{gate_up.matrix(2 * width), out.matrix(width)});
    out.download();
    Worst worst;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < width; ++j) {
        const double gate = gate_up[i * 2 * width + j], up = gate_up[i * 2 * width + width + j];
        const double expected = gate / (1 + std::exp(-gate)) * up;
        // Two roundings to T; the argument of the exponential is rounded before it is one.
        const double relative = 2.01 * kUnit<T> + (8 + 2 * std::abs(gate)) * kFloatUnit;
        worst.add(out[i * width + j], expected,
                  relative * std::abs(expected) + kTiny<T> * (1 + std::abs(up)));
      }
    }
    REQUIRE(worst.ratio() <= 1);
  }
}

}  // namespace nanovllm::test::ops
