#include "nanovllm/cuda/hopper/linear/mid_m/mid_m_linear.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"

namespace nanovllm::test {
namespace {

using cuda::ProductKind;

/// Operands of a layer. Rows of x are 8 elements apart, NaN between and after them; those of y
/// begin at odd elements, or `pairs`, at even ones.
struct Mid {
  std::int64_t m, n, k;  ///< n columns of y
  bool has_norm, gated, accumulate;
  GpuMatrix<bf16> x, weight, norm, y;
  std::vector<double> old;
  cuda::TensorMaps maps;

  Mid(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in, bool norm_in, bool gated_in,
      bool add = false, bool pairs = false)
      : m(m_in),
        n(n_in),
        k(k_in),
        has_norm(norm_in),
        gated(gated_in),
        accumulate(add),
        x(GpuMatrix<bf16>::random(m, k, 1, {8, 0})),
        weight(GpuMatrix<bf16>::random(gated ? 2 * n : n, k, 2, {}, -0.25, 0.25)),
        norm(GpuMatrix<bf16>::random(1, k, 3, {}, 0.25, 2)),
        y(add ? GpuMatrix<bf16>::random(m, n, 4, placement(pairs))
              : GpuMatrix<bf16>(m, n, placement(pairs))) {
    for (std::int64_t i = 0; i < m * n; ++i) old.push_back(add ? y.value(i / n, i % n) : 0);
  }

  /// Makes y what it was at first.
  void set_old() {
    for (std::int64_t i = 0; i < m * n; ++i)
      y(i / n, i % n) = bf16(static_cast<float>(old[static_cast<std::size_t>(i)]));
    y.upload();
  }

  Placement placement(bool pairs) const {
    return pairs ? Placement{8 - n % 8 + 8, 0} : Placement{3, 1};
  }

  [[nodiscard]] bool run(std::int64_t begin, std::int64_t end, int variant, const Gpu& gpu) {
    const auto rows = x.view().slice(begin, end);
    const cuda::DenseLayer<bf16> layer{
        .x = {rows.data, rows.extents, rows.strides},
        .norm = {has_norm ? VectorView<const bf16>(norm.row(0).data, {k})
                          : VectorView<const bf16>{},
                 1e-6f},
        .weight = {weight.view().data, weight.view().extents},
        .y = y.view().slice(begin, end),
        .accumulate = accumulate,
        .gated = gated};
    const bool taken = cuda::mid_m_linear(layer, variant, maps, gpu.context);
    gpu.sync();
    return taken;
  }

  std::vector<bf16> result() {
    y.download();
    REQUIRE(y.surroundings_intact());
    std::vector<bf16> out;
    for (std::int64_t i = 0; i < m * n; ++i) out.push_back(y(i / n, i % n));
    return out;
  }

  /// A sum of a row with row j of W, and six standard deviations of its error: with a norm each
  /// operand of x is rounded once to bf16, independently of the others.
  std::pair<double, double> sum(std::int64_t i, std::int64_t j, double inverse) const {
    double total = 0, terms = 0, size = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double scale = has_norm ? inverse * norm.value(0, c) : 1;
      const double term = x.value(i, c) * weight.value(j, c) * scale;
      total += term, terms += term * term, size += std::abs(term);
    }
    const double operands = has_norm ? 6 * kUnit<bf16> / std::sqrt(3.) * std::sqrt(terms) : 0;
    return {total, operands + 8 * 0x1p-24 * std::sqrt(static_cast<double>(k) + 1.) * size};
  }

  /// The largest error, as a part of its bound.
  double worst() {
    const std::vector<bf16> got = result();
    Worst out;
    for (std::int64_t i = 0; i < m; ++i) {
      double square = 0;
      for (std::int64_t c = 0; c < k; ++c) square += x.value(i, c) * x.value(i, c);
      const double inverse = 1 / std::sqrt(square / double(k) + 1e-6);
      for (std::int64_t j = 0; j < n; ++j) {
        const auto [g, g_error] = sum(i, j, inverse);
        double expected = g + old[i * n + j], bound = g_error;
        if (gated) {
          const auto [u, u_error] = sum(i, n + j, inverse);
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

ProductKind kind_of(bool has_norm, bool gated) {
  return gated ? ProductKind::gated : has_norm ? ProductKind::normed : ProductKind::plain;
}

/// Every form, but those whose stages this K does not fill, and that there are not without a norm.
void check(const Gpu& gpu, Mid operands) {
  const ProductKind kind = kind_of(operands.has_norm, operands.gated);
  for (int variant = 0; variant < cuda::kMidMForms.size(kind); ++variant) {
    CAPTURE(operands.m, operands.n, operands.k, operands.has_norm, operands.gated,
            operands.accumulate, variant);
    operands.set_old();
    const bool fits =
        (cuda::kMidMForms.at(kind, variant).panels == 1 || operands.k % cuda::kTmaColumns == 0) &&
        (!operands.gated || operands.has_norm || variant == cuda::kMidMUnnormedGated);
    REQUIRE(operands.run(0, operands.m, variant, gpu) == fits);
    if (fits) CHECK(operands.worst() <= 1);
  }
}

}  // namespace

TEST_CASE("mid_m_linear equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const bool norm : {false, true}) {
    for (const int m : {1, 7, 17, 32, 33, 64}) {
      check(gpu, Mid(m, 77, 72, norm, false));
      check(gpu, Mid(m, 130, 1024, norm, false, true));
      check(gpu, Mid(m, 76, 1544, norm, false, true, true));
      check(gpu, Mid(m, 101, 1600, norm, false, true, true));  // 25 panels: no whole stages
    }
    for (const std::int64_t k : {64, 128, 192}) check(gpu, Mid(9, 49, k, norm, false));
    check(gpu, Mid(40, 24, 6152, norm, false, !norm));
    check(gpu, Mid(64, 24, 6208, norm, false, !norm));
  }
}

TEST_CASE("mid_m_linear with SwiGLU equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const bool norm : {false, true}) {
    for (const int m : {1, 20, 32, 64}) {
      check(gpu, Mid(m, 53, 72, norm, true));
      check(gpu, Mid(m, 100, 1024, norm, true, false, true));
    }
    check(gpu, Mid(40, 50, 6152, norm, true));
    check(gpu, Mid(64, 97, 6208, norm, true));
  }
}

TEST_CASE("mid_m_linear gives a row the same bits whatever rows are beside it") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  struct Way {
    bool norm, gated;
  };
  for (const auto& [norm, gated] :
       {Way{false, false}, Way{true, false}, Way{true, true}, Way{false, true}}) {
    for (int variant = 0; variant < cuda::kMidMForms.size(kind_of(norm, gated)); ++variant) {
      if (gated && !norm && variant != cuda::kMidMUnnormedGated) continue;
      Mid all(64, 75, 1600, norm, gated);
      REQUIRE(all.run(0, 64, variant, gpu));
      const std::vector<bf16> expected = all.result();
      for (const int rows : {1, 5, 24, 40}) {
        CAPTURE(norm, gated, variant, rows);
        for (int begin = 0; begin < 64; begin += rows)
          REQUIRE(all.run(begin, std::min(begin + rows, 64), variant, gpu));
        const std::vector<bf16> got = all.result();
        CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(bf16)) == 0);
      }
    }
  }
}

TEST_CASE("mid_m_linear after itself gives the same bits alone, overlapping and in a graph") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  constexpr std::int64_t kRows = 45, kHidden = 1024, kHeads = 1536, kWidth = 2048;
  const auto matrix = [](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return GpuMatrix<bf16>::random(rows, cols, seed, {}, -0.05, 0.05);
  };
  auto qkv = matrix(kHeads, kHidden, 1), o = matrix(kHidden, kHeads, 2);
  auto gate_up = matrix(2 * kWidth, kHidden, 3), down = matrix(kHidden, kWidth, 4);
  auto norm = GpuMatrix<bf16>::random(1, kHidden, 5, {}, 0.25, 2);
  auto x = GpuMatrix<bf16>::random(kRows, kHidden, 6);
  GpuMatrix<bf16> heads(kRows, kHeads), act(kRows, kWidth), unnormed(kRows, kWidth);
  cuda::TensorMaps maps;
  const auto run = [&](const cuda::Context& context) {
    const auto layer = [&](GpuMatrix<bf16>& in, bool normed, GpuMatrix<bf16>& weight,
                           GpuMatrix<bf16>& out, bool add, bool gated, int variant) {
      const auto constant = [](const MatrixView<bf16>& view) {
        return MatrixView<const bf16>(view.data, view.extents, view.strides);
      };
      const VectorView<const bf16> scale(norm.row(0).data, {kHidden});
      REQUIRE(cuda::mid_m_linear(
          cuda::DenseLayer<bf16>{.x = constant(in.view()),
                                 .norm = {normed ? scale : VectorView<const bf16>{}, 1e-6f},
                                 .weight = constant(weight.view()),
                                 .y = out.view(),
                                 .accumulate = add,
                                 .gated = gated},
          variant, maps, context));
    };
    for (int i = 0; i < 24; ++i) {
      const auto variant = [i](ProductKind kind) { return i % cuda::kMidMForms.size(kind); };
      layer(x, true, qkv, heads, false, false, variant(ProductKind::normed));
      layer(heads, false, o, x, true, false, variant(ProductKind::plain));
      layer(x, true, gate_up, act, false, true, variant(ProductKind::gated));
      layer(x, false, gate_up, unnormed, false, true, cuda::kMidMUnnormedGated);
      layer(act, false, down, x, true, false, variant(ProductKind::plain));
    }
  };
  const auto elements = [&] {
    std::vector<bf16> out;
    for (std::int64_t i = 0; i < kRows * kHidden; ++i) out.push_back(x(i / kHidden, i % kHidden));
    for (std::int64_t i = 0; i < kRows * kWidth; ++i)
      out.push_back(unnormed(i / kWidth, i % kWidth));
    return out;
  };
  const std::vector<bf16> start = elements();
  const auto result = [&](const auto& enqueue) {
    for (std::int64_t i = 0; i < kRows * kHidden; ++i)
      x(i / kHidden, i % kHidden) = start[static_cast<std::size_t>(i)];
    x.upload();
    enqueue();
    gpu.sync();
    x.download();
    unnormed.download();
    return elements();
  };
  cuda::Context alone = gpu.context;
  alone.can_overlap = false;
  const std::vector<bf16> expected = result([&] { run(alone); });
  REQUIRE(std::isfinite(static_cast<float>(expected[0])));
  const auto graph = cuda::Graph::capture(gpu.context.stream, [&] { run(gpu.context); });
  for (int i = 0; i < 5; ++i) {
    for (const std::vector<bf16>& got :
         {result([&] { run(gpu.context); }), result([&] { graph.launch(gpu.context.stream); })})
      CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(bf16)) == 0);
  }
}

TEST_CASE("each form of mid_m_linear after poison", "[racecheck]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const auto& [norm, gated] : {std::pair{false, false}, std::pair{true, false},
                                    std::pair{true, true}, std::pair{false, true}}) {
    poison_shared_memory(gpu.context);
    check(gpu, Mid(9, 17, 512, norm, gated));
  }
}

TEST_CASE("mid_m_linear refuses what does not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  Mid four(4, 16, 64, true, true);
  CHECK_FALSE(four.run(0, 4, 99, gpu));
  CHECK_FALSE(Mid(65, 16, 64, false, false).run(0, 65, 0, gpu));
  CHECK_FALSE(Mid(4, 16, 36, false, false).run(0, 4, 0, gpu));
}

}  // namespace nanovllm::test
