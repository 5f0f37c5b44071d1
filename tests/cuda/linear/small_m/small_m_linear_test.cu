#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/linear/small_m/small_m_linear.cuh"

namespace nanovllm::test {
namespace {

/// Operands of a fused product. Rows of x are 8 elements apart, NaN between and after them.
struct Fused {
  std::int64_t m, n, k;  ///< n columns of y
  bool has_norm, gated, accumulate;
  GpuMatrix<bf16> x, weight, norm, y;
  std::vector<double> old;

  Fused(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool norm_in, bool gated_in,
        bool add = false)
      : m(m_in),
        n(n_in),
        k(k_in),
        has_norm(norm_in),
        gated(gated_in),
        accumulate(add),
        x(GpuMatrix<bf16>::random(m, k, 1, {8, 0})),
        weight(GpuMatrix<bf16>::random(gated ? 2 * n : n, k, 2, {}, -0.25, 0.25)),
        norm(GpuMatrix<bf16>::random(1, k, 3, {}, 0.25, 2)),
        y(add ? GpuMatrix<bf16>::random(m, n, 4, {3, 1}) : GpuMatrix<bf16>(m, n, {3, 1})) {
    for (std::int64_t i = 0; i < m * n; ++i) old.push_back(add ? y.value(i / n, i % n) : 0);
  }

  [[nodiscard]] bool enqueue(std::int64_t begin, std::int64_t end, int tiles, const Gpu& gpu) {
    const auto rows = x.view().slice(begin, end);
    return cuda::small_m_linear(
        cuda::DenseLayer<bf16>{.x = {rows.data, rows.extents, rows.strides},
                               .norm = {has_norm ? VectorView<const bf16>(norm.row(0).data, {k})
                                                 : VectorView<const bf16>{},
                                        1e-6f},
                               .weight = {weight.view().data, weight.view().extents},
                               .y = y.view().slice(begin, end),
                               .accumulate = accumulate,
                               .gated = gated},
        tiles, gpu.context);
  }
  void run(std::int64_t begin, std::int64_t end, int tiles, const Gpu& gpu) {
    REQUIRE(enqueue(begin, end, tiles, gpu));
    gpu.sync();
  }

  std::vector<bf16> result() {
    y.download();
    REQUIRE(y.surroundings_intact());
    std::vector<bf16> out;
    for (std::int64_t i = 0; i < m * n; ++i) out.push_back(y(i / n, i % n));
    return out;
  }

  /// A sum of a row with row j of W, and six standard deviations of its error: with a norm each
  /// operand is rounded once to bf16, independently of the others.
  std::pair<double, double> sum(std::int64_t i, std::int64_t j) const {
    double square = 0, total = 0, terms = 0, size = 0;
    for (std::int64_t c = 0; c < k; ++c) square += x.value(i, c) * x.value(i, c);
    const double inverse = has_norm ? 1 / std::sqrt(square / double(k) + 1e-6) : 1;
    for (std::int64_t c = 0; c < k; ++c) {
      const double scale = has_norm ? inverse * norm.value(0, c) : 1;
      const double term = x.value(i, c) * weight.value(j, c) * scale;
      total += term, terms += term * term, size += std::abs(term);
    }
    const double operands = has_norm ? 6 * kUnit<bf16> / std::sqrt(3.) * std::sqrt(terms) : 0;
    return {total, operands + 8 * 0x1p-24 * std::sqrt(k + 1.) * size};
  }

  /// The largest error, as a part of its bound.
  double worst() {
    const std::vector<bf16> got = result();
    Worst out;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [g, g_error] = sum(i, j);
        double expected = g + old[i * n + j], bound = g_error;
        if (gated) {
          const auto [u, u_error] = sum(i, n + j);
          const double silu = g / (1 + std::exp(-g));  // whose slope is at most 1.1
          expected = silu * u;
          bound = 1.1 * g_error * (std::abs(u) + u_error) + std::abs(silu) * u_error;
        }
        bound += 1.5 * kUnit<bf16> * std::abs(expected) + 1e-6;
        out.add(double(float(got[i * n + j])), expected, bound);
      }
    }
    return out.ratio();
  }
};

void check(const Gpu& gpu, Fused operands, int tiles) {
  CAPTURE(operands.m, operands.n, operands.k, operands.has_norm, operands.gated,
          operands.accumulate, tiles);
  operands.run(0, operands.m, tiles, gpu);
  CHECK(operands.worst() <= 1);
}

}  // namespace

TEST_CASE("small_m_linear with a norm ahead equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const int m : {1, 3, 8, 9, 16}) {
    for (const int k : {8, 264, 1024, 1544, 4104}) {
      check(gpu, Fused(m, 77, k, true, false), 4);
      check(gpu, Fused(m, 77, k, true, false, true), 6);
    }
    check(gpu, Fused(m, 77, 2048, false, false, true), 1);
    check(gpu, Fused(m, 77, 3080, false, false), 1);
    check(gpu, Fused(m, 100, 1024, true, false), 6);
    check(gpu, Fused(m, 100, 1024, false, false), 4);
  }
}

TEST_CASE("small_m_linear with SwiGLU after equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const int m : {1, 2, 8, 11, 16}) {
    for (const int k : {8, 264, 1024, 2056}) check(gpu, Fused(m, 53, k, true, true), 6);
    check(gpu, Fused(m, 50, 1544, true, true), 4);
    check(gpu, Fused(m, 50, 1024, false, true), 6);
  }
}

TEST_CASE("fused products of few rows have the same bits for any tiles and other rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const bool norm : {false, true}) {
    for (const bool gated : {false, true}) {
      Fused all(16, 75, 1544, norm, gated);
      all.run(0, 16, 4, gpu);
      const std::vector<bf16> expected = all.result();
      for (const int tiles : cuda::kSmallMTiles) {
        if (tiles < cuda::kMinSmallMFusedTiles && (norm || gated)) continue;
        for (const int rows : {1, 3, 8, 11, 16}) {
          CAPTURE(norm, gated, tiles, rows);
          for (int begin = 0; begin < 16; begin += rows)
            all.run(begin, std::min(begin + rows, 16), tiles, gpu);
          const std::vector<bf16> got = all.result();
          CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(bf16)) == 0);
        }
      }
    }
  }
}

TEST_CASE("fused products of few rows refuse what does not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  CHECK_FALSE(Fused(4, 16, 32, true, true).enqueue(0, 4, 3, gpu));
  CHECK_FALSE(Fused(4, 16, 32, true, false).enqueue(0, 4, 2, gpu));
  CHECK_FALSE(Fused(4, 16, 36, true, false).enqueue(0, 4, 4, gpu));
  CHECK_FALSE(Fused(4, 16, 32, false, true, true).enqueue(0, 4, 4, gpu));
  for (const bool gated : {false, true}) {
    CAPTURE(gated);
    Fused more(17, 16, 32, false, gated);
    more.y.download();
    const std::vector<bf16> before = more.result();
    CHECK_FALSE(more.enqueue(0, 17, 4, gpu));
    gpu.sync();
    const std::vector<bf16> after = more.result();
    CHECK(std::memcmp(after.data(), before.data(), before.size() * sizeof(bf16)) == 0);
    CHECK(more.enqueue(0, 16, 4, gpu));
    gpu.sync();
  }
}

}  // namespace nanovllm::test
