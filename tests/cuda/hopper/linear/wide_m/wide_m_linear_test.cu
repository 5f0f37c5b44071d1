// Dense layers of some hundred rows: against float64, and rows against themselves among other rows.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"

namespace nanovllm::test {
namespace {

using cuda::ProductKind;

/// Operands of a product. Rows of x and y stand apart, NaN between and after them.
template <class T>
struct Wide {
  ProductKind kind;
  std::int64_t m, n, k;  ///< n columns of y
  bool accumulate;
  GpuMatrix<T> x, weight, norm, y, old;

  Wide(ProductKind kind_in, std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool add)
      : kind(kind_in),
        m(m_in),
        n(n_in),
        k(k_in),
        accumulate(add),
        x(GpuMatrix<T>::random(m, k, 1, {8, 0})),
        weight(GpuMatrix<T>::random(gated() ? 2 * n : n, k, 2, {}, -0.25, 0.25)),
        norm(GpuMatrix<T>::random(1, k, 3, {}, 0.25, 2)),
        y(m, n, {12, 0}),
        old(GpuMatrix<T>::random(m, n, 4, {}, -8, 8)) {
    for (std::int64_t i = 0; accumulate && i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) y(i, j) = old(i, j);
    y.upload();
  }

  [[nodiscard]] bool gated() const { return kind == ProductKind::gated; }
  [[nodiscard]] bool normed() const { return kind != ProductKind::plain; }

  [[nodiscard]] cuda::DenseLayer<T> layer(std::int64_t begin, std::int64_t end) {
    const auto rows = x.view().slice(begin, end);
    cuda::DenseLayer<T> out{.x = {rows.data, rows.extents, rows.strides},
                            .weight = {weight.view().data, weight.view().extents},
                            .y = y.view().slice(begin, end),
                            .accumulate = accumulate,
                            .gated = gated()};
    if (normed()) out.norm = {VectorView<const T>(norm.row(0).data, {k}), 1e-6f};
    return out;
  }

  /// Computes rows [begin, end).
  void run(std::int64_t begin, std::int64_t end, int variant, cuda::TensorMaps& maps,
           const Gpu& gpu) {
    REQUIRE(cuda::wide_m_linear(layer(begin, end), variant, maps, gpu.context));
    gpu.sync();
  }
  void fetch() {
    y.download();
    REQUIRE(y.surroundings_intact());
  }

  /// A sum of row i with row j of W, and a bound of its error: that of float32; with a norm six
  /// standard deviations of what the operands' rounding adds, each once and independently.
  std::pair<double, double> sum(std::int64_t i, std::int64_t j, double inverse) const {
    double total = 0, terms = 0, size = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double scale = normed() ? inverse * norm.value(0, c) : 1;
      const double term = x.value(i, c) * weight.value(j, c) * scale;
      total += term, terms += term * term, size += std::abs(term);
    }
    const double operands = normed() ? 6 * kUnit<T> / std::sqrt(3.) * std::sqrt(terms) : 0;
    return {total, operands + 8 * 0x1p-24 * std::sqrt(static_cast<double>(k) + 1.) * size};
  }

  /// The largest error of rows 0, `step`, 2 · `step`, …, as a part of its bound.
  double worst(std::int64_t step) const {
    Worst out;
    for (std::int64_t i = 0; i < m; i += step) {
      double squares = 0;
      for (std::int64_t c = 0; c < k; ++c) squares += x.value(i, c) * x.value(i, c);
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(k) + 1e-6);
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [g, g_error] = sum(i, j, inverse);
        double expected = g + (accumulate ? old.value(i, j) : 0), bound = g_error;
        if (gated()) {
          const auto [u, u_error] = sum(i, n + j, inverse);
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

template <class T>
void equals_float64(ProductKind kind, cuda::TensorMaps& maps, const Gpu& gpu) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{65, 132, 64},
                                {77, 264, 584},
                                {128, 72, 8},
                                {1, 40, 200},
                                {129, 64, 1024},
                                {200, 300, 2112},
                                {256, 256, 192}}) {
    for (const bool accumulate : {false, true}) {
      if (kind != ProductKind::plain && accumulate) continue;
      for (int variant = 0; variant < cuda::kWideMForms.size(kind); ++variant) {
        CAPTURE(static_cast<int>(kind), m, n, k, accumulate, variant);
        Wide<T> operands(kind, m, n, k, accumulate);
        operands.run(0, m, variant, maps, gpu);
        operands.fetch();
        CHECK(operands.worst(m > 100 ? 7 : 3) <= 1);
      }
    }
  }
}

}  // namespace

TEST_CASE("wide_m_linear equals float64", "[wide]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  equals_float64<bf16>(ProductKind::plain, maps, gpu);
  equals_float64<half>(ProductKind::plain, maps, gpu);
  equals_float64<bf16>(ProductKind::normed, maps, gpu);
  equals_float64<bf16>(ProductKind::gated, maps, gpu);
}

TEST_CASE("a row of wide_m_linear has the same bits among any others", "[wide]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const ProductKind kind : {ProductKind::plain, ProductKind::normed, ProductKind::gated}) {
    for (int variant = 0; variant < cuda::kWideMForms.size(kind); ++variant) {
      Wide<bf16> all(kind, 256, 200, 1544, kind == ProductKind::plain);
      all.run(0, 256, variant, maps, gpu);
      all.fetch();
      for (const std::int64_t rows : {1, 65, 130}) {
        CAPTURE(static_cast<int>(kind), variant, rows);
        Wide<bf16> some(kind, 256, 200, 1544, kind == ProductKind::plain);
        for (std::int64_t begin = 0; begin < 256; begin += rows)
          some.run(begin, std::min<std::int64_t>(begin + rows, 256), variant, maps, gpu);
        some.fetch();
        CHECK(some.y.same_bits(all.y));
      }
    }
  }
}

TEST_CASE("wide_m_linear refuses what does not fit", "[wide]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  const auto refuses = [&](Wide<bf16>&& operands, int variant) {
    return !cuda::wide_m_linear(operands.layer(0, 4), variant, maps, gpu.context);
  };
  CHECK(
      refuses({ProductKind::plain, 4, 16, 64, false}, cuda::kWideMForms.size(ProductKind::plain)));
  CHECK(refuses({ProductKind::plain, 4, 16, 64, false}, -1));
  CHECK(refuses({ProductKind::plain, 4, 18, 64, false}, 0));
  CHECK(refuses({ProductKind::plain, 4, 16, 60, false}, 0));
  Wide<bf16> normed(ProductKind::normed, 4, 16, 64, false);
  cuda::DenseLayer<bf16> layer = normed.layer(0, 4);
  layer.norm.weight = VectorView<const bf16>(normed.norm.row(0).data, {63});
  CHECK_THROWS_AS(cuda::wide_m_linear(layer, 0, maps, gpu.context), ShapeError);
}

}  // namespace nanovllm::test
