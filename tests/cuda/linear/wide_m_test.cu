// Dense layers of some hundred rows: against float64, and rows against themselves among other rows.

#include <cmath>
#include <cstdint>
#include <iterator>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/linear/wide_m/wide_m_linear.cuh"

namespace nanovllm::test {
namespace {

/// Operands of a product. Rows of x and y stand apart, NaN between and behind them.
template <class T>
struct Wide {
  std::int64_t m, n, k;  ///< n columns of y
  bool gated, accumulate;
  GpuMatrix<T> x, weight, y;
  GpuMatrix<T> old;

  Wide(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool gated_in, bool add)
      : m(m_in),
        n(n_in),
        k(k_in),
        gated(gated_in),
        accumulate(add),
        x(GpuMatrix<T>::random(m, k, 1, {8, 0})),
        weight(GpuMatrix<T>::random(gated ? 2 * n : n, k, 2, {}, -0.25, 0.25)),
        y(m, n, {12, 0}),
        old(GpuMatrix<T>::random(m, n, 4, {}, -8, 8)) {}

  /// Rows [begin, end), from what y was at first.
  void run(std::int64_t begin, std::int64_t end, int variant, cuda::TensorMaps& maps,
           const Gpu& gpu) {
    for (std::int64_t i = begin; accumulate && i < end; ++i)
      for (std::int64_t j = 0; j < n; ++j) y(i, j) = old(i, j);
    if (accumulate) y.upload();
    const auto rows = x.view().slice(begin, end);
    const MatrixView<const T> xs(rows.data, rows.extents, rows.strides);
    const MatrixView<const T> w(weight.view().data, weight.view().extents);
    const auto out = y.view().slice(begin, end);
    if (gated) {
      REQUIRE(cuda::wide_m_gated_linear_takes(xs, w, out, gpu.context));
      cuda::wide_m_gated_linear(xs, w, out, variant, maps, gpu.context);
    } else {
      REQUIRE(cuda::wide_m_linear_takes(xs, w, out, gpu.context));
      cuda::wide_m_linear(xs, w, out, accumulate, variant, maps, gpu.context);
    }
    gpu.sync();
    y.download();
    REQUIRE(y.surroundings_intact());
  }

  /// The sum of row i with row j of W, and a bound of its float32 error.
  std::pair<double, double> sum(std::int64_t i, std::int64_t j) const {
    double total = 0, size = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double term = x.value(i, c) * weight.value(j, c);
      total += term, size += std::abs(term);
    }
    return {total, 8 * 0x1p-24 * std::sqrt(static_cast<double>(k) + 1.) * size};
  }

  /// The largest error of rows 0, `step`, 2 · `step`, …, as a part of its bound.
  double worst(std::int64_t step) const {
    Worst out;
    for (std::int64_t i = 0; i < m; i += step) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [g, g_error] = sum(i, j);
        double expected = g + (accumulate ? old.value(i, j) : 0), bound = g_error;
        if (gated) {
          const auto [u, u_error] = sum(i, n + j);
          const double silu = g / (1 + std::exp(-g));  // whose slope is at most 1.1
          expected = silu * u;
          bound = 1.1 * g_error * (std::abs(u) + u_error) + std::abs(silu) * u_error;
        }
        out.add(y.value(i, j), expected, bound + 1.01 * kUnit<T> * std::abs(expected) + 1e-6);
      }
    }
    return out.ratio();
  }
};

constexpr int variants(bool gated) {
  return static_cast<int>(gated ? std::size(cuda::kWideMGatedBlocks)
                                : std::size(cuda::kWideMBlocks));
}

}  // namespace

TEMPLATE_TEST_CASE("wide_m products equal float64", "[wide]", bf16, half) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const bool gated : {false, true}) {
    for (int variant = 0; variant < variants(gated); ++variant) {
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{65, 132, 64},
                                    {77, 264, 584},
                                    {128, 72, 8},
                                    {1, 40, 200},
                                    {129, 64, 1024},
                                    {200, 300, 2112},
                                    {256, 256, 192}}) {
        for (const bool accumulate : {false, true}) {
          if (gated && accumulate) continue;
          CAPTURE(m, n, k, gated, accumulate, variant);
          Wide<TestType> operands(m, n, k, gated, accumulate);
          operands.run(0, m, variant, maps, gpu);
          CHECK(operands.worst(m > 100 ? 7 : 3) <= 1);
        }
      }
    }
  }
}

TEST_CASE("a row of a wide_m product has the same bits among any others", "[wide]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const bool gated : {false, true}) {
    for (int variant = 0; variant < variants(gated); ++variant) {
      Wide<bf16> all(256, 200, 1544, gated, !gated);
      all.run(0, 256, variant, maps, gpu);
      const GpuMatrix<bf16>& expected = all.y;
      for (const std::int64_t rows : {1, 65, 130}) {
        CAPTURE(gated, variant, rows);
        Wide<bf16> some(256, 200, 1544, gated, !gated);
        for (std::int64_t begin = 0; begin < 256; begin += rows)
          some.run(begin, std::min<std::int64_t>(begin + rows, 256), variant, maps, gpu);
        CHECK(some.y.same_bits(expected));
      }
    }
  }
}

TEST_CASE("wide_m products refuse what does not fit", "[wide]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  Wide<bf16> operands(4, 16, 64, false, false);
  CHECK_THROWS_AS(operands.run(0, 4, variants(false), maps, gpu), ConfigError);
  CHECK_THROWS_AS(operands.run(0, 4, -1, maps, gpu), ConfigError);
  const bf16* const p = operands.x.view().data;
  const MatrixView<const bf16> x(p, {4, 64}), w(p, {18, 64});
  const MatrixView<bf16> y(operands.y.view().data, {4, 18});
  CHECK_FALSE(cuda::wide_m_linear_takes(x, w, y, gpu.context));  // 18 columns
  const MatrixView<const bf16> odd(p, {4, 60}), w_odd(p, {16, 60});
  CHECK_FALSE(cuda::wide_m_linear_takes(odd, w_odd, operands.y.view(), gpu.context));
}

}  // namespace nanovllm::test
