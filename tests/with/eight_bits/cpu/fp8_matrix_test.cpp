#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/thread_pool.hpp"
#include "with/eight_bits/fp8_products.hpp"

using namespace nanovllm;

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

template <class T>
std::vector<T> noise(std::int64_t count, std::uint64_t seed, float scale = 1.f) {
  std::vector<T> out(size(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    out[i] = T(static_cast<float>(2 * to_unit_interval(words[0]) - 1) * scale);
  }
  return out;
}

template <class T>
std::vector<T> values_of(const cpu::Fp8Matrix& matrix) {
  std::vector<T> out(size(matrix.rows() * matrix.cols()));
  for (std::int64_t i = 0; i < matrix.rows(); ++i)
    matrix.copy_row(i, out.data() + i * matrix.cols());
  return out;
}

template <class T, class Out>
void check_linear(std::int64_t n, std::int64_t rows, std::int64_t cols, bool accumulate) {
  CAPTURE(n, rows, cols, accumulate);
  cpu::ThreadPool pool(3);
  cpu::Context context{.pool = &pool};
  cpu::Fp8Matrix matrix(rows, cols);
  const std::vector<bf16> weights = noise<bf16>(rows * cols, 1);
  matrix.set_rows(0, MatrixView<const bf16>(weights.data(), {rows, cols}));
  cpu::PackedMatrix<T> wide(rows, cols);
  const std::vector<T> values = values_of<T>(matrix);
  wide.set_rows(0, MatrixView<const T>(values.data(), {rows, cols}));
  const std::vector<T> x = noise<T>(n * (cols + 3), 2);
  const MatrixView<const T> x_view(x.data(), {n, cols}, {cols + 3, 1});
  std::vector<Out> got = noise<Out>(n * (rows + 2), 3), expected = got;
  const auto view = [&](std::vector<Out>& y) {
    return MatrixView<Out>(y.data(), {n, rows}, {rows + 2, 1});
  };
  run_op(LinearArgs<T, cpu::Fp8Matrix, Out>{x_view, &matrix, view(got), accumulate}, context);
  run_op(LinearArgs<T, cpu::PackedMatrix<T>, Out>{x_view, &wide, view(expected), accumulate},
         context);
  CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(Out)) == 0);
}

}  // namespace

TEST_CASE("linear with 8-bit floats has the bits of the matrix of their values", "[fp8]") {
  for (const std::int64_t n : {1, 2, 5, 40}) {
    for (const auto& [rows, cols] :
         {std::pair{1, 1}, {31, 127}, {32, 128}, {33, 129}, {200, 300}, {160, 513}}) {
      for (const bool accumulate : {false, true}) {
        check_linear<float, float>(n, rows, cols, accumulate);
        check_linear<bf16, bf16>(n, rows, cols, accumulate);
        check_linear<bf16, float>(n, rows, cols, accumulate);
      }
    }
  }
}

TEST_CASE("rows are quantised in blocks of 128 x 128 that begin with the first row", "[fp8]") {
  const std::int64_t rows = 300, cols = 260, first = 7;
  cpu::Fp8Matrix matrix(rows + first, cols);
  std::vector<float> values = noise<float>(rows * cols, 4);
  for (std::int64_t j = 0; j < cols; ++j) values[size(200 * cols + j)] *= 100.f;  // block 1
  for (std::int64_t i = 128; i < 256; ++i)
    for (std::int64_t j = 128; j < 256; ++j) values[size(i * cols + j)] = 0.f;
  matrix.set_rows(first, MatrixView<const float>(values.data(), {rows, cols}));
  const std::vector<float> got = values_of<float>(matrix);
  for (std::int64_t i = 0; i < first * cols; ++i) REQUIRE(got[size(i)] == 0.f);
  std::vector<float> largest(3 * 3, 0.f);
  const auto of_block = [&](std::int64_t i, std::int64_t j) -> float& {
    return largest[size(i / 128 * 3 + j / 128)];
  };
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      of_block(i, j) = std::max(of_block(i, j), std::abs(values[size(i * cols + j)]));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      const float x = values[size(i * cols + j)], y = got[size((first + i) * cols + j)];
      // Half a unit of the last of 3 bits, or of the smallest number there is.
      const float bound =
          std::max(std::abs(x) * 0x1p-4f, of_block(i, j) / 448 * 0x1p-10f) * 1.0001f;
      if (!(std::abs(x - y) <= bound)) FAIL(i << ", " << j << ": " << y << " instead of " << x);
    }
  }
  values[3] = std::numeric_limits<float>::infinity();
  matrix.set_rows(0, MatrixView<const float>(values.data(), {1, cols}));
  const std::vector<float> odd = values_of<float>(matrix);
  CHECK(std::isnan(odd[0]));
  CHECK(std::isnan(odd[127]));
  CHECK_FALSE(std::isnan(odd[128]));
}

TEST_CASE("stored rows are kept as they are, where their scales fit", "[fp8]") {
  const std::int64_t rows = 5, cols = 300;
  std::vector<fp8_e4m3> stored;
  for (const float x : noise<float>(rows * (cols + 9), 5, 400.f)) stored.emplace_back(x);
  const auto scale = [](std::int64_t row, std::int64_t column, std::int64_t group) {
    return 0.01f * static_cast<float>(1 + row + 10 * (column / group));
  };
  const auto rows_with = [&](std::int64_t group, std::int64_t phase) {
    return Fp8Rows{
        .data = stored.data(),
        .rows = rows,
        .columns = cols,
        .stride = cols + 9,
        .group_columns = group,
        .phase = phase,
        .scale = [=](std::int64_t i, std::int64_t j) { return scale(i, j + phase, group); }};
  };
  for (const auto& [group, phase] :
       {std::pair{128, 0}, {128, 128}, {256, 128}, {1000, 700}, {300, 0}}) {
    cpu::Fp8Matrix matrix(rows + 2, cols);
    REQUIRE(matrix.set_rows(1, rows_with(group, phase)));
    const std::vector<float> got = values_of<float>(matrix);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        REQUIRE(got[size((1 + i) * cols + j)] ==
                static_cast<float>(stored[size(i * (cols + 9) + j)]) * scale(i, j + phase, group));
  }
  cpu::Fp8Matrix matrix(rows, cols);
  CHECK_FALSE(matrix.set_rows(0, rows_with(128, 64)));
  CHECK_FALSE(matrix.set_rows(0, rows_with(100, 0)));
  CHECK_THROWS_AS(matrix.set_rows(1, rows_with(128, 0)), ShapeError);
}

TEST_CASE("values are rounded to 8 bits as torch rounds them", "[fp8]") {
  const test::TorchFp8Products torch;
  // A matrix that takes one row at a time has blocks of a row and 128 columns, as activations do.
  cpu::Fp8Matrix rounded(torch.m, torch.k);
  for (std::int64_t i = 0; i < torch.m; ++i)
    rounded.set_rows(i, MatrixView<const bf16>(torch.x.data() + i * torch.k, {1, torch.k}));
  const std::vector<float> got = values_of<float>(rounded);
  for (std::int64_t i = 0; i < torch.m; ++i) {
    for (std::int64_t j = 0; j < torch.k; ++j) {
      CAPTURE(i, j);
      const float scale = torch.x_scale[size(i * torch.groups + j / 128)];
      const fp8_e4m3 stored(float(torch.x[size(i * torch.k + j)]) / scale);
      REQUIRE(stored.bits == torch.x_e4m3[size(i * torch.k + j)].bits);
      REQUIRE(got[size(i * torch.k + j)] == torch.x_value(i, j, true));
    }
  }
}

TEST_CASE("products of 8-bit floats are those of torch", "[fp8]") {
  const test::TorchFp8Products torch;
  cpu::Fp8Matrix weight(torch.n, torch.k);
  REQUIRE(weight.set_rows(0, torch.weight_rows()));
  cpu::Context context;
  for (const bool is_rounded : {false, true}) {
    std::vector<float> x, y(size(torch.m * torch.n));
    for (std::int64_t i = 0; i < torch.m * torch.k; ++i)
      x.push_back(torch.x_value(i / torch.k, i % torch.k, is_rounded));
    run_op(
        LinearArgs<float, cpu::Fp8Matrix, float>{
            {x.data(), {torch.m, torch.k}}, &weight, {y.data(), {torch.m, torch.n}}},
        context);
    const std::vector<float>& expected = is_rounded ? torch.y_w8a8 : torch.y_w8a16;
    // Each side's sum in float32 is off by k · 2^-24 of its terms at the most, each term by three
    // roundings.
    const double part = 2 * double(torch.k + 3) * 0x1p-24;
    for (std::int64_t i = 0; i < torch.m; ++i) {
      for (std::int64_t j = 0; j < torch.n; ++j) {
        CAPTURE(i, j, is_rounded);
        const std::size_t at = size(i * torch.n + j);
        REQUIRE(std::abs(double(y[at]) - double(expected[at])) <=
                part * torch.size(i, j, is_rounded));
      }
    }
  }
}
