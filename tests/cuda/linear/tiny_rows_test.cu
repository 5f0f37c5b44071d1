// Products with a norm ahead, of rows whose mean square is about as large as eps, far smaller or 0:
// elsewhere in the tests eps is lost in the sum.

#include <cmath>
#include <cstdint>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/hopper/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"

namespace nanovllm::test {
namespace {

using cuda::ProductKind;

constexpr float kEps = 1e-4f;

/// Rows in turn of about the size of √eps, of a hundredth of it, and of zeros.
struct TinyRows {
  static constexpr std::int64_t kIn = 320, kOut = 24;
  std::int64_t m;
  bool gated;
  GpuMatrix<bf16> x, weight, norm, y;

  TinyRows(std::int64_t rows, ProductKind kind)
      : m(rows),
        gated(kind == ProductKind::gated),
        x(GpuMatrix<bf16>::random(m, kIn, 1)),
        weight(GpuMatrix<bf16>::random(gated ? 2 * kOut : kOut, kIn, 2, {}, -0.25, 0.25)),
        norm(GpuMatrix<bf16>::random(1, kIn, 3, {}, 0.25, 2)),
        y(m, kOut) {
    for (std::int64_t i = 0; i < m; ++i) {
      const float size = i % 3 == 0 ? 1e-2f : i % 3 == 1 ? 1e-4f : 0.f;
      for (std::int64_t c = 0; c < kIn; ++c)
        x(i, c) = bf16(size * static_cast<float>(x.value(i, c)));
    }
    x.upload();
  }

  [[nodiscard]] cuda::DenseLayer<bf16> layer() {
    return {.x = {x.view().data, x.view().extents},
            .norm = {{norm.row(0).data, {kIn}}, kEps},
            .weight = {weight.view().data, weight.view().extents},
            .y = y.view(),
            .gated = gated};
  }

  /// The largest error, as a part of six standard deviations of what rounding adds.
  double worst(const Gpu& gpu) {
    gpu.sync();
    y.download();
    REQUIRE(y.surroundings_intact());
    Worst out;
    for (std::int64_t i = 0; i < m; ++i) {
      double squares = 0;
      for (std::int64_t c = 0; c < kIn; ++c) squares += x.value(i, c) * x.value(i, c);
      const double inverse = 1 / std::sqrt(squares / double(kIn) + double(kEps));
      double error = 0;
      const auto product = [&](std::int64_t j) {
        double sum = 0, terms = 0;
        for (std::int64_t c = 0; c < kIn; ++c) {
          const double term = x.value(i, c) * norm.value(0, c) * inverse * weight.value(j, c);
          sum += term, terms += term * term;
        }
        error = 6 * kUnit<bf16> / std::sqrt(3.) * std::sqrt(terms);
        return sum;
      };
      for (std::int64_t j = 0; j < kOut; ++j) {
        double expected = product(j), bound = error;
        if (gated) {
          const double silu = expected / (1 + std::exp(-expected)), gate_error = error;
          const double up = product(kOut + j);
          bound = 1.1 * gate_error * (std::abs(up) + error) + std::abs(silu) * error;
          expected = silu * up;
        }
        out.add(y.value(i, j), expected, bound + 1.5 * kUnit<bf16> * std::abs(expected) + 1e-12);
      }
    }
    return out.ratio();
  }
};

}  // namespace

TEST_CASE("norms of tiny rows ahead of products of few rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const cuda::Context& context = gpu.context;
  for (const ProductKind kind : {ProductKind::normed, ProductKind::gated}) {
    for (const std::int64_t m : {3, 14}) {
      TinyRows p(m, kind);
      CAPTURE(p.gated, m);
      REQUIRE(cuda::small_m_linear(p.layer(), 4, context));
      CHECK(p.worst(gpu) <= 1);
    }
  }
}

TEST_CASE("norms of tiny rows ahead of products of some tens and hundred rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const ProductKind kind : {ProductKind::normed, ProductKind::gated}) {
    for (int form = 0; form < cuda::kMidMForms.size(kind); ++form) {
      TinyRows p(40, kind);
      CAPTURE(p.gated, form);
      REQUIRE(cuda::mid_m_linear(p.layer(), form, maps, gpu.context));
      CHECK(p.worst(gpu) <= 1);
    }
    for (int form = 0; form < cuda::kWideMForms.size(kind); ++form) {
      TinyRows p(70, kind);
      CAPTURE(p.gated, form);
      REQUIRE(cuda::wide_m_linear(p.layer(), form, maps, gpu.context));
      CHECK(p.worst(gpu) <= 1);
    }
  }
}

}  // namespace nanovllm::test
