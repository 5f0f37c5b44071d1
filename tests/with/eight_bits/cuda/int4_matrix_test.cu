// 4-bit integers on the GPU: what goes in comes out, and what is quantised is near.

#include "nanovllm/with/eight_bits/cuda/int4_matrix.cuh"

#include <cmath>
#include <cstdint>
#include <limits>

#include "with/eight_bits/cuda/int4_problem.cuh"

namespace nanovllm::test {

TEST_CASE("stored integers of 4 bits are kept as they are", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  struct Case {
    std::int64_t rows, cols;
    bool has_offsets;
    std::int64_t group_columns = 128, phase = 0;
  };
  for (const Case& c : {Case{64, 256, false}, Case{16, 8, false}, Case{208, 1000, true},
                        Case{100, 72, true}, Case{72, 640, false, 1 << 20},
                        Case{48, 512, true, 256, 128}, Case{80, 256, false, 256, 0}}) {
    CAPTURE(c.rows, c.cols, c.has_offsets, c.group_columns, c.phase);
    const StoredInt4 stored(c.rows, c.cols, c.has_offsets, 3, c.group_columns, c.phase);
    cuda::Int4GroupMatrix matrix(c.rows, c.cols);
    // In two pieces, the second first; without offsets what was there before has none either.
    REQUIRE(matrix.set_rows(0, stored.view(), gpu.context));
    GpuMatrix<bf16> out(c.rows, c.cols, {3, 1});
    matrix.unpack(0, out.view(), gpu.context);
    gpu.sync();
    out.download();
    REQUIRE(out.surroundings_intact());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < c.rows; ++i) {
      for (std::int64_t j = 0; j < c.cols; ++j) {
        const IntRows::Group group = stored.group(i, j);
        const float expected = std::fmaf(group.scale, stored.code(i, j), group.offset);
        wrong += out.value(i, j) != static_cast<float>(bf16(expected)) ? 1 : 0;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows come to their places, with and without offsets", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const StoredInt4 first(48, 384, false, 4), second(80, 384, true, 5);
  cuda::Int4GroupMatrix matrix(128, 384);
  const std::int64_t before = matrix.size_bytes();
  CHECK(before == 2 * 2 * cuda::kInt4UnitBytes);
  REQUIRE(matrix.set_rows(0, first.view(), gpu.context));
  CHECK(matrix.size_bytes() == before);
  REQUIRE(matrix.set_rows(48, second.view(), gpu.context));
  CHECK(matrix.size_bytes() == before + 2 * 2 * 4 * cuda::kInt4UnitFloats);
  GpuMatrix<bf16> out(64, 384);
  matrix.unpack(64, out.view(), gpu.context);
  gpu.sync();
  out.download();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    for (std::int64_t j = 0; j < 384; ++j) {
      const IntRows::Group group = second.group(i + 16, j);
      const float expected = std::fmaf(group.scale, second.code(i + 16, j), group.offset);
      wrong += out.value(i, j) != static_cast<float>(bf16(expected)) ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("what is not of this form is refused", "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::Int4GroupMatrix matrix(64, 256);
  const StoredInt4 narrow(64, 256, false, 1, 64), shifted(64, 256, false, 1, 128, 64);
  CHECK_FALSE(matrix.set_rows(0, narrow.view(), gpu.context));
  CHECK_FALSE(matrix.set_rows(0, shifted.view(), gpu.context));
  const StoredInt4 fitting(64, 256, false, 1);
  IntRows wide = fitting.view();
  wide.bits = 8;
  CHECK_FALSE(matrix.set_rows(0, wide, gpu.context));
  CHECK_THROWS_AS(matrix.set_rows(8, fitting.view(), gpu.context), ShapeError);
  CHECK_THROWS_AS(matrix.set_rows(16, fitting.view(), gpu.context), ShapeError);
  CHECK_THROWS_AS(cuda::Int4GroupMatrix(-1, 4), ShapeError);
}

TEST_CASE("quantised weights are within half a step, but for what the best scale cuts off",
          "[int4]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const std::int64_t rows = 112, cols = 1000;
  GpuMatrix<bf16> weights = GpuMatrix<bf16>::random(rows, cols, 11);
  weights(3, 200) = bf16(std::numeric_limits<float>::quiet_NaN());
  weights(4, 999) = bf16(std::numeric_limits<float>::infinity());
  for (std::int64_t j = 0; j < 128; ++j) {
    weights(5, j) = bf16(0.f);
    weights(6, j) = bf16(j % 2 == 0 ? 3e38f : -3e38f);
    weights(7, j) = bf16(static_cast<float>(j % 16 - 8) * 0.25f);  // one scale has them exactly
  }
  std::vector<bf16> on_host(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      on_host[static_cast<std::size_t>(i * cols + j)] = weights(i, j);
  cuda::Int4GroupMatrix matrix(rows, cols);
  matrix.set_rows(0, MatrixView<const bf16>(on_host.data(), {rows, cols}), gpu.context);
  GpuMatrix<bf16> out(rows, cols);
  matrix.unpack(0, out.view(), gpu.context);
  gpu.sync();
  out.download();
  double error = 0, square = 0;
  for (std::int64_t i = 8; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      const double miss = out.value(i, j) - weights.value(i, j);
      error += miss * miss, square += weights.value(i, j) * weights.value(i, j);
      REQUIRE(std::abs(miss) < 2. / 5 / 2 + 2. / 8);
    }
  }
  // Uniform numbers in 16 steps: an error of step / sqrt(12) to a deviation of 16 steps / sqrt(12).
  CHECK(std::sqrt(error / square) < 0.08);
  CHECK(std::sqrt(error / square) > 0.05);
  CHECK(std::isnan(out.value(3, 128)));
  CHECK(std::isnan(out.value(3, 255)));
  CHECK(std::isfinite(out.value(3, 127)));
  CHECK(std::isfinite(out.value(3, 256)));
  CHECK(std::isnan(out.value(4, 999)));
  CHECK(out.value(5, 77) == 0);
  CHECK(out.value(6, 0) > 2e38);
  CHECK(out.value(6, 1) < -2e38);
  for (std::int64_t j = 0; j < 128; ++j) CHECK(out.value(7, j) == weights.value(7, j));
}

}  // namespace nanovllm::test
