#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"

namespace nanovllm::test {

TEST_CASE("DenseEngine runs what it has timed, and leaves the rest to the parts") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  constexpr std::int64_t kWidth = 200, kIn = 512, kMost = 256;
  auto x = GpuMatrix<bf16>::random(kMost, kIn, 1);
  auto scale = GpuMatrix<bf16>::random(1, kIn, 2, {}, 0.25, 2);
  const auto values = GpuMatrix<bf16>::random(2 * kWidth, kIn, 3, {}, -0.25, 0.25);
  std::vector<bf16> host;
  for (std::int64_t i = 0; i < 2 * kWidth * kIn; ++i)
    host.push_back(bf16(static_cast<float>(values.value(i / kIn, i % kIn))));
  cuda::DeviceMatrix<bf16> weight(2 * kWidth, kIn);
  weight.set_rows(0, MatrixView<const bf16>(host.data(), {2 * kWidth, kIn}));
  const InputNorm<bf16> norm{VectorView<const bf16>(scale.row(0).data, {kIn}), 1e-6f};
  cuda::DenseEngine<cuda::DeviceArchitectures> engine;
  const auto layer = [&](std::int64_t rows, bool gated, GpuMatrix<bf16>& y, bool normed = true) {
    return cuda::DenseLayer<bf16>{.x = {x.view().data, {rows, kIn}},
                                  .norm = normed ? norm : InputNorm<bf16>{},
                                  .weight = weight.view(),
                                  .y = y.view(),
                                  .gated = gated};
  };
  GpuMatrix<bf16> none(4, kWidth);
  REQUIRE_FALSE(engine.run_fused(layer(4, true, none), gpu.context));
  const cuda::DeviceMatrix<bf16>* const weights[] = {&weight};
  // Parts that take longer than any kernel of the layer.
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 24);
  const auto slow = [&](const auto&) {
    cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 24, gpu.context);
  };
  cuda::DenseTuner tuner(engine, gpu.context);
  tuner.tune_gated(weights, norm, kMost, slow);
  tuner.tune_gated(weights, {}, kMost, slow);
  // Heads that no kernel takes together with the product.
  constexpr KvHeads kHeads{.num_kv_heads = 2, .head_dim = 40};
  tuner.tune_qkv(weights, norm, kHeads, kMost, slow);
  struct Way {
    bool gated, normed;
  };
  for (const auto& [gated, normed] : {Way{false, true}, Way{true, true}, Way{true, false}}) {
    for (const std::int64_t rows : {1, 7, 16, 17, 33, 64, 65, 130, 256}) {
      CAPTURE(gated, normed, rows);
      GpuMatrix<bf16> y(rows, gated ? kWidth : 2 * kWidth);
      const bool has_kernel = normed || rows <= cuda::kMaxMidMRows;
      REQUIRE(engine.run_fused(layer(rows, gated, y, normed), gpu.context) == has_kernel);
      if (!has_kernel) continue;
      gpu.sync();
      y.download();
      Worst worst;
      for (std::int64_t i = 0; i < rows; ++i) {
        double squares = 0;
        for (std::int64_t c = 0; c < kIn; ++c) squares += x.value(i, c) * x.value(i, c);
        const double inverse = 1 / std::sqrt(squares / double(kIn) + 1e-6);
        const auto product = [&](std::int64_t j) {
          double sum = 0;
          for (std::int64_t c = 0; c < kIn; ++c)
            sum += x.value(i, c) * (normed ? scale.value(0, c) * inverse : 1) * values.value(j, c);
          return sum;
        };
        for (std::int64_t j = 0; j < (gated ? kWidth : 2 * kWidth); ++j) {
          // Six standard deviations of a sum's error: those of its terms are of 0.18 · 2^-9 / √3.
          constexpr double kOfSum = 0.03;
          const double g = product(j);
          double expected = g, bound = kOfSum;
          if (gated) {
            const double u = product(kWidth + j), silu = g / (1 + std::exp(-g));
            expected = silu * u;
            bound = kOfSum * (1.1 * (std::abs(u) + kOfSum) + std::abs(silu));
          }
          worst.add(y.value(i, j), expected, bound + 1.5 * kUnit<bf16> * std::abs(expected));
        }
      }
      CHECK(worst.ratio() <= 1);
    }
  }
}

}  // namespace nanovllm::test
