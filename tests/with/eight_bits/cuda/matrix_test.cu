// Weights and activations in 8-bit floats on the device: the CPU's values, bit for bit.

#include "nanovllm/with/eight_bits/cuda/matrix.cuh"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "with/eight_bits/cuda/fp8_problem.cuh"

namespace nanovllm::test {
namespace {

/// Whether all values are those of `expected`, zeros stand after the columns, and rows [first, end),
/// which were set, have the scales of their blocks.
void check_same(const Fp8Content& got, const cpu::Fp8Matrix& expected, std::int64_t first,
                std::int64_t end) {
  std::vector<float> row(static_cast<std::size_t>(got.cols));
  for (std::int64_t i = 0; i < got.rows; ++i) {
    expected.copy_row(i, row.data());
    for (std::int64_t j = 0; j < got.cols; ++j) {
      const float x = got.stored(i, j) * got.scale(i, j), y = row[static_cast<std::size_t>(j)];
      if (x != y && !(std::isnan(x) && std::isnan(y)))
        FAIL(i << ", " << j << ": " << x << " instead of " << y);
      if (got.has_blocks && i >= first && i < end && got.block_scale(i, j) != got.scale(i, j) &&
          !std::isnan(x))
        FAIL(i << ", " << j << ": a block of another scale");
    }
    for (std::int64_t j = got.cols; j < got.stride; ++j) REQUIRE(got.stored(i, j) == 0.f);
  }
}

}  // namespace

TEST_CASE("a matrix in 8-bit floats on the device has the CPU's values") {
  if (!has_gpu()) return;
  const Gpu gpu;
  struct Case {
    std::int64_t rows, cols, first;
    Placement placement;
  };
  for (const Case& c : {Case{1, 1, 0, {}},
                        {300, 264, 0, {}},
                        {128, 128, 256, {}},
                        {130, 257, 7, {3, 1}},
                        {257, 520, 128, {8, 0}},
                        {64, 40, 1, {}}}) {
    CAPTURE(c.rows, c.cols, c.first);
    auto values = GpuMatrix<bf16>::random(c.rows, c.cols, 5, c.placement);
    values(c.rows / 2, c.cols / 2) = bf16(1000.f);
    for (std::int64_t j = 0; j < std::min<std::int64_t>(c.cols, 128); ++j)
      for (std::int64_t i = 128; i < std::min<std::int64_t>(c.rows, 256); ++i)
        values(i, j) = bf16(0.f);
    if (c.cols > 256) values(0, 256) = bf16(std::numeric_limits<float>::infinity());
    if (c.cols > 512) values(0, 512) = bf16(std::numeric_limits<float>::quiet_NaN());
    const MatrixView<const bf16> view(&values(0, 0), {c.rows, c.cols},
                                      {c.cols + c.placement.pad, 1});
    cuda::Fp8Matrix matrix(c.first + c.rows + 3, c.cols);
    cpu::Fp8Matrix expected(c.first + c.rows + 3, c.cols);
    matrix.set_rows(c.first, view, gpu.context);
    expected.set_rows(c.first, view);
    gpu.sync();
    const Fp8Content content(matrix);
    CHECK(content.has_blocks == (c.first % 128 == 0));
    // Rows that were never set are zeros.
    check_same(content, expected, c.first, c.first + c.rows);
  }
  cuda::Fp8Matrix matrix(4, 8);
  const std::vector<bf16> row(9, bf16(1.f));
  CHECK_THROWS_AS(matrix.set_rows(4, MatrixView<const bf16>(row.data(), {1, 8}), gpu.context),
                  ShapeError);
  CHECK_THROWS_AS(matrix.set_rows(0, MatrixView<const bf16>(row.data(), {1, 9}), gpu.context),
                  ShapeError);
}

TEST_CASE("rows of a checkpoint in 8-bit floats stay as they are on the device") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const std::int64_t block : {128, 64}) {
    for (const std::int64_t first : {0, 128, 5}) {
      const StoredRows rows(260, 300, block);
      cuda::Fp8Matrix matrix(first + 260, 300);
      cpu::Fp8Matrix expected(first + 260, 300);
      REQUIRE(matrix.set_rows(first, rows.view(), gpu.context));
      REQUIRE(expected.set_rows(first, rows.view()));
      gpu.sync();
      const Fp8Content content(matrix);
      CHECK(content.has_blocks == (block == 128 && first != 5));
      check_same(content, expected, first, first + 260);
    }
  }
  Fp8Rows odd = StoredRows(2, 300, 128).view();
  odd.group_columns = 100;
  cuda::Fp8Matrix matrix(2, 300);
  CHECK_FALSE(matrix.set_rows(0, odd, gpu.context));
}

TEST_CASE("activations are rounded to 8 bits by one rule, whatever their number") {
  if (!has_gpu()) return;
  const Gpu gpu;
  struct Case {
    std::int64_t m, k;
    Placement placement;
  };
  for (const bool has_norm : {false, true}) {
    for (const Case& c :
         {Case{1, 128, {}}, {3, 1024, {}}, {17, 264, {8, 0}}, {5, 77, {3, 1}}, {40, 2056, {}}}) {
      CAPTURE(c.m, c.k, has_norm);
      auto x = GpuMatrix<bf16>::random(c.m, c.k, 6, c.placement);
      for (std::int64_t j = 0; j < std::min<std::int64_t>(c.k, 128); ++j) x(0, j) = bf16(0.f);
      x.upload();
      auto weight = GpuMatrix<bf16>::random(1, c.k, 7, {}, 0.25, 2);
      const std::int64_t stride = align_up(c.k, 128), rows = align_up(c.m, 8);
      cuda::DeviceBuffer<fp8_e4m3> data(static_cast<std::size_t>(rows * stride));
      cuda::DeviceBuffer<float> scales(static_cast<std::size_t>(stride / 128 * rows));
      const auto view = x.view();
      cuda::quantise_rows(
          {view.data, view.extents, view.strides},
          {has_norm ? VectorView<const bf16>(weight.row(0).data, {c.k}) : VectorView<const bf16>{},
           1e-6f},
          {data.data(), scales.data(), stride, rows}, gpu.context);
      gpu.sync();
      const auto q = from_device(data.data(), data.size());
      const auto s = from_device(scales.data(), scales.size());
      std::int64_t differ = 0;
      for (std::int64_t i = 0; i < c.m; ++i) {
        double square = 0;
        for (std::int64_t j = 0; j < c.k; ++j) square += x.value(i, j) * x.value(i, j);
        const auto inverse = static_cast<float>(1 / std::sqrt(square / double(c.k) + 1e-6));
        std::vector<float> a(static_cast<std::size_t>(stride), 0.f);
        for (std::int64_t j = 0; j < c.k; ++j) {
          const auto v = static_cast<float>(x.value(i, j));
          a[std::size_t(j)] =
              has_norm ? float(bf16(float(bf16(v * inverse)) * float(weight.value(0, j)))) : v;
        }
        for (std::int64_t begin = 0; begin < stride; begin += 128) {
          float largest = 0;
          for (std::int64_t j = begin; j < begin + 128; ++j)
            largest = std::max(largest, std::abs(a[std::size_t(j)]));
          const float scale = largest > 0 ? largest / 448.f : 1.f;
          const float got_scale = s[std::size_t(begin / 128 * rows + i)];
          // The sum of squares has an order of its own: a value may be rounded the other way.
          if (!has_norm) REQUIRE(got_scale == scale);
          REQUIRE(std::abs(got_scale - scale) <= 0x1p-7f * scale);
          for (std::int64_t j = begin; j < begin + 128; ++j) {
            const float expected = fp8_e4m3(a[std::size_t(j)] / scale);
            const float got = q[std::size_t(i * stride + j)];
            if (got != expected) ++differ;
            REQUIRE(std::abs(got - expected) <= std::max(std::abs(expected) / 8, 0x1p-9f));
          }
        }
      }
      if (!has_norm) CHECK(differ == 0);
      CHECK(differ <= c.m * c.k / 50);
    }
  }
}

}  // namespace nanovllm::test
