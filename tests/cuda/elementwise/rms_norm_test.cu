#include "nanovllm/cuda/elementwise/rms_norm.cuh"

#include "cuda/gpu_matrix.cuh"

namespace nanovllm::test {

namespace {

constexpr float kEps = 1e-6f;

/// Narrow rows with lanes of their own and without, rows of a warp, of a block, and wider ones.
constexpr std::int64_t kWidths[] = {1,    2,    63,   64,   65,   127,   128,   129,
                                    511,  512,  513,  1000, 1023, 1024,  1032,  2560,
                                    4096, 4097, 5120, 8192, 8200, 16384, 16392, 20001};

/// The contract in float64. The bound: the sum's relative error is that of its longest chain, at
/// most 64 here, and there are two roundings to T.
template <class T>
void compare(Worst& worst, GpuMatrix<T>& out, std::int64_t i, const std::vector<double>& x,
             GpuMatrix<T>& weight) {
  double sum = 0;
  for (double v : x) sum += v * v;
  const double inverse = 1 / std::sqrt(sum / static_cast<double>(x.size()) + double{kEps});
  for (std::size_t j = 0; j < x.size(); ++j) {
    const auto column = static_cast<std::int64_t>(j);
    const double expected = x[j] * inverse * weight.value(0, column);
    // Below half's normal range a rounding errs by a constant.
    const double tiny =
        std::is_same_v<T, half> ? 0x1p-24 * (1 + std::abs(weight.value(0, column))) : 1e-30;
    const double bound = (2.01 * kUnit<T> + 80 * 0x1p-24) * std::abs(expected) + tiny;
    worst.add(out.value(i, column), expected, bound);
  }
}

template <class T>
std::vector<double> row_of(const GpuMatrix<T>& x, std::int64_t i, std::int64_t width) {
  std::vector<double> out;
  for (std::int64_t j = 0; j < width; ++j) out.push_back(x.value(i, j));
  return out;
}

template <class T>
void run(GpuMatrix<T>& x, GpuMatrix<T>& weight, GpuMatrix<T>& out, Gpu& gpu) {
  cuda::rms_norm(RmsNormArgs<T>{x.view(), weight.row(0), kEps, out.view()}, gpu.context);
  gpu.sync();
  out.download();
}

}  // namespace

TEMPLATE_TEST_CASE("rms_norm is the formula at every width, and the same bits wherever it lies",
                   "[rms_norm]", float, bf16, half) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  for (std::int64_t width : kWidths) {
    for (std::int64_t rows : {0, 1, 3, 9}) {
      INFO(rows << " x " << width);
      auto weight = GpuMatrix<T>::random(1, width, 2);
      auto x = GpuMatrix<T>::random(rows, width, 1);
      GpuMatrix<T> dense(rows, width);
      run(x, weight, dense, gpu);
      Worst worst;
      for (std::int64_t i = 0; i < rows; ++i) compare(worst, dense, i, row_of(x, i, width), weight);
      REQUIRE(worst.ratio() <= 1);
      for (const Placement& placement : kPlacements) {
        auto same_x = GpuMatrix<T>::random(rows, width, 1, placement);
        GpuMatrix<T> out(rows, width, placement);
        run(same_x, weight, out, gpu);
        REQUIRE(out.same_bits(dense));
        REQUIRE(out.surroundings_intact());
      }
    }
  }
}

TEMPLATE_TEST_CASE("add_rms_norm updates the residual and norms its rounded value, also in place",
                   "[rms_norm]", float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  for (std::int64_t width : kWidths) {
    for (const Placement& placement : kPlacements) {
      const std::int64_t rows = 5;
      INFO(width << ", pad " << placement.pad << ", shift " << placement.shift);
      auto weight = GpuMatrix<T>::random(1, width, 5);
      auto x = GpuMatrix<T>::random(rows, width, 3, placement);
      auto residual = GpuMatrix<T>::random(rows, width, 4, placement);
      auto before = GpuMatrix<T>::random(rows, width, 4), normed = GpuMatrix<T>(rows, width);
      auto x_before = GpuMatrix<T>::random(rows, width, 3);
      cuda::add_rms_norm(
          AddRmsNormArgs<T>{x.view(), residual.view(), weight.row(0), kEps, x.view()}, gpu.context);
      gpu.sync();
      x.download(), residual.download();
      Worst worst;
      bool sums_right = true;
      for (std::int64_t i = 0; i < rows; ++i) {
        std::vector<double> row;
        for (std::int64_t j = 0; j < width; ++j) {
          row.push_back(rounded<T>(x_before.value(i, j) + before.value(i, j)));
          sums_right = sums_right && residual.value(i, j) == row.back();
        }
        compare(worst, x, i, row, weight);
      }
      REQUIRE(sums_right);
      REQUIRE(worst.ratio() <= 1);
      REQUIRE((x.surroundings_intact() && residual.surroundings_intact()));
      run(residual, weight, normed, gpu);  // the norm of the new residual has the same bits
      REQUIRE(x.same_bits(normed));
    }
  }
}

TEST_CASE("a row's norm depends neither on the other rows nor on chance", "[rms_norm]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int64_t width : {128, 1000, 1024, 4096, 8192, 16392}) {
    const std::int64_t rows = width <= 1024 ? 2500 : 700;  // more than fit at once
    auto weight = GpuMatrix<bf16>::random(1, width, 2);
    auto x = GpuMatrix<bf16>::random(rows, width, 1);
    GpuMatrix<bf16> out(rows, width), again(rows, width), alone(1, width);
    run(x, weight, out, gpu);
    for (int repeat = 0; repeat < 5; ++repeat) {
      run(x, weight, again, gpu);
      REQUIRE(again.same_bits(out));
    }
    for (std::int64_t i : {0, 1, 350, 698, 699}) {
      cuda::rms_norm(RmsNormArgs<bf16>{x.view().slice(i, i + 1), weight.row(0), kEps, alone.view()},
                     gpu.context);
      gpu.sync();
      alone.download();
      REQUIRE(alone.same_rows(out, 0, 1, i));
    }
  }
}

TEST_CASE("rms_norm in bfloat16 rounds before the product with the weight", "[rms_norm]") {
  if (!has_gpu()) return;
  Gpu gpu;
  GpuMatrix<bf16> x(1, 2), weight(1, 2), out(1, 2);
  x(0, 0) = bf16(1.f), x(0, 1) = weight(0, 0) = weight(0, 1) = bf16(1.0078125f);
  x.upload(), weight.upload();
  cuda::rms_norm(RmsNormArgs<bf16>{x.view(), weight.row(0), 0.f, out.view()}, gpu.context);
  gpu.sync();
  out.download();
  const double inverse = 1 / std::sqrt((1 + 1.0078125 * 1.0078125) / 2);
  for (std::int64_t j = 0; j < 2; ++j)
    CHECK(out.value(0, j) == rounded<bf16>(rounded<bf16>(x.value(0, j) * inverse) * 1.0078125));
}

TEST_CASE("norms refuse operands that do not fit", "[rms_norm]") {
  if (!has_gpu()) return;
  Gpu gpu;
  GpuMatrix<float> x(2, 4), weight(1, 5), out(2, 4);
  CHECK_THROWS_AS(
      cuda::rms_norm(RmsNormArgs<float>{x.view(), weight.row(0), 0.f, out.view()}, gpu.context),
      ShapeError);
}

}  // namespace nanovllm::test
