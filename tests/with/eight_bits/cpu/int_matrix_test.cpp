#include "nanovllm/with/eight_bits/cpu/int_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/core/fp8.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/context.hpp"
#include "nanovllm/cpu/isa.hpp"
#include "nanovllm/cpu/thread_pool.hpp"
#include "nanovllm/with/eight_bits/weights.hpp"

using namespace nanovllm;
using cpu::Int4Matrix;
using cpu::Int8Matrix;
using cpu::Isa;

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::vector<float> noise(std::int64_t count, std::uint64_t seed, float scale = 1.f) {
  std::vector<float> out(size(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto words = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    out[i] = static_cast<float>(2 * to_unit_interval(words[0]) - 1) * scale;
  }
  return out;
}

template <class Matrix>
std::vector<float> row_of(const Matrix& matrix, std::int64_t row) {
  std::vector<float> out(size(matrix.cols()));
  matrix.copy_row(row, out.data());
  return out;
}

/// Row 0 of a matrix of one row.
template <class Matrix>
std::vector<float> rounded(const std::vector<float>& row) {
  const auto cols = static_cast<std::int64_t>(row.size());
  Matrix matrix(1, cols);
  matrix.set_rows(0, MatrixView<const float>(row.data(), {1, cols}));
  return row_of(matrix, 0);
}

/// Rows whose code in (i, j) is `code(i, j)`, in groups of `group_columns`.
template <class Code, class Group>
IntRows stored_rows(std::int64_t rows, std::int64_t cols, int bits, std::int64_t group_columns,
                    std::int64_t phase, const Code& code, const Group& group) {
  return {.rows = rows,
          .columns = cols,
          .bits = bits,
          .group_columns = group_columns,
          .phase = phase,
          .has_offsets = true,
          .read =
              [=](std::int64_t i, std::int8_t* codes) {
                for (std::int64_t j = 0; j < cols; ++j)
                  codes[j] = static_cast<std::int8_t>(code(i, j));
              },
          .group = group};
}

}  // namespace

TEST_CASE("8 bits: codes and scales are exactly as stated", "[quantized]") {
  std::vector<float> row(64, 0.f);
  row[0] = -254.f;  // a scale of 2, which is a half
  row[1] = 253.f;   // 126.5, to even
  row[2] = 1.f;     // 0.5, to even
  row[3] = 3.f;
  row[31] = 99.9f;
  row[32] = 1.f;  // a scale above 1 / 127: 0x1.024p-7
  row[33] = 0.5f;
  const std::vector<float> got = rounded<Int8Matrix>(row);
  CHECK(got[0] == -254.f);
  CHECK(got[1] == 252.f);
  CHECK(got[2] == 0.f);
  CHECK(got[3] == 4.f);
  CHECK(got[31] == 100.f);
  CHECK(got[32] == 127 * 0x1.024p-7f);
  CHECK(got[33] == 63 * 0x1.024p-7f);
  for (std::size_t i = 34; i < 64; ++i) CHECK(got[i] == 0.f);
}

TEST_CASE("4 bits: codes and scales are exactly as stated", "[quantized]") {
  // The largest is at -8 · scale, whatever its sign, where that has no error.
  for (const float sign : {1.f, -1.f}) {
    std::vector<float> row(32);
    for (std::size_t i = 0; i < 32; ++i) row[i] = sign * 0.5f * (static_cast<float>(i % 16) - 8);
    CHECK(rounded<Int4Matrix>(row) == row);
  }
  // 31 elements at 6.5 eighths of the largest gain more by 6.9 of 8.5 than the largest loses.
  std::vector<float> row(32, 6.5f);
  row[5] = 8.f;
  const std::vector<float> got = rounded<Int4Matrix>(row);
  const float scale = half(8.f / -8.5f);
  for (std::size_t i = 0; i < 32; ++i) CHECK(got[i] == scale * (i == 5 ? -8.f : -7.f));
}

TEST_CASE("elements are off by half a scale at most, by less than stated in 4 bits",
          "[quantized]") {
  const std::int64_t rows = 40, cols = 300;
  const std::vector<float> values = noise(rows * cols, 1, 0.1f);
  Int8Matrix eight(rows + 3, cols);
  Int4Matrix four(rows + 3, cols);
  eight.set_rows(2, MatrixView<const float>(values.data(), {rows, cols}));
  four.set_rows(2, MatrixView<const float>(values.data(), {rows, cols}));
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::vector<float> in_eight = row_of(eight, 2 + i), in_four = row_of(four, 2 + i);
    for (std::int64_t begin = 0; begin < cols; begin += 32) {
      double largest = 0, error = 0, plain = 0;
      for (std::int64_t j = begin; j < std::min(begin + 32, cols); ++j)
        largest = std::max(largest, std::abs(double{values[size(i * cols + j)]}));
      for (std::int64_t j = begin; j < std::min(begin + 32, cols); ++j) {
        const double x = values[size(i * cols + j)];
        REQUIRE(std::abs(in_eight[size(j)] - x) <= largest / 254 * (1 + 0x1p-10));
        // Scales are at most a seventh of the largest, and what is beyond 7 of them is cut.
        REQUIRE(std::abs(in_four[size(j)] - x) <= largest * 2 / 9 * (1 + 0x1p-10));
        error += (in_four[size(j)] - x) * (in_four[size(j)] - x);
        const double nearest = std::nearbyint(x / (largest / 7)) * (largest / 7) - x;
        plain += nearest * nearest;
        squares += x * x;
      }
      sum += error;
      REQUIRE(error <= plain * 1.3);  // the scale of -7 without the cut is among the nine
    }
  }
  CHECK(std::sqrt(sum / squares) < 0.08);  // 0.0968 by max / 7 for normal numbers
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, rows + 2}) {
    CHECK(row_of(eight, row) == std::vector<float>(size(cols)));
    CHECK(row_of(four, row) == std::vector<float>(size(cols)));
  }
}

TEST_CASE("rows are quantised alike on every instruction set", "[quantized]") {
  std::vector<float> row = noise(1000, 2);
  for (std::size_t i = 0; i < 320; ++i) row[i] *= 1e-6f * static_cast<float>(i / 32);
  for (std::size_t i = 320; i < 352; ++i) row[i] *= 1e-30f;
  for (std::size_t i = 352; i < 384; ++i) row[i] *= 1e9f;
  row[400] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int8_t> first[2];
  std::vector<half> first_scales[2];
  for (const Isa isa : test::available_isas()) {
    for (const bool in_eight : {false, true}) {
      std::vector<std::int8_t> codes(1024);
      std::vector<half> scales(32);
      const auto quantise = in_eight ? NANOVLLM_PICK(isa, quantise_to_8_bits<float>)
                                     : NANOVLLM_PICK(isa, quantise_to_4_bits<float>);
      quantise(row.data(), 1000, codes.data(), scales.data());
      if (first[in_eight].empty()) first[in_eight] = codes, first_scales[in_eight] = scales;
      CHECK(first[in_eight] == codes);
      CHECK(std::memcmp(first_scales[in_eight].data(), scales.data(), 64) == 0);
    }
  }
}

TEST_CASE("several threads quantise as one does", "[quantized]") {
  const std::int64_t rows = 45, cols = 100;
  const std::vector<float> values = noise(rows * cols, 8);
  cpu::ThreadPool pool(3);
  const cpu::Context context{.pool = &pool};
  const auto check_matrix = [&]<class Matrix>(Matrix one, Matrix many) {
    one.set_rows(3, MatrixView<const float>(values.data(), {rows, cols}));
    many.set_rows(3, MatrixView<const float>(values.data(), {rows, cols}), context);
    for (std::int64_t i = 0; i < one.rows(); ++i) REQUIRE(row_of(one, i) == row_of(many, i));
  };
  check_matrix(Int8Matrix(rows + 4, cols), Int8Matrix(rows + 4, cols));
  check_matrix(Int4Matrix(rows + 4, cols), Int4Matrix(rows + 4, cols));
}

TEST_CASE("all elements of a type are quantised as their values are", "[quantized]") {
  const std::int64_t cols = 77;
  std::vector<float> wide;
  std::vector<bf16> narrow;
  for (const float x : noise(cols, 3)) wide.push_back(narrow.emplace_back(x));
  Int8Matrix from_narrow(1, cols);
  from_narrow.set_rows(0, MatrixView<const bf16>(narrow.data(), {1, cols}));
  CHECK(row_of(from_narrow, 0) == rounded<Int8Matrix>(wide));
}

TEST_CASE("a group that is not finite, or beyond what a half can scale, is NaN", "[quantized]") {
  const auto check_nan = [](const std::vector<float>& row) {
    for (const auto& got : {rounded<Int8Matrix>(row), rounded<Int4Matrix>(row)})
      for (std::size_t i = 0; i < row.size(); ++i) REQUIRE(std::isnan(got[i]) == (i / 32 == 1));
  };
  for (const float odd :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), 1e10f, -1e10f}) {
    std::vector<float> row = noise(100, 4);
    row[40] = odd;
    check_nan(row);
  }
}

TEST_CASE("groups of very small elements keep half of the smallest scale", "[quantized]") {
  const float tiny = 0x1p-24f;  // the smallest half
  std::vector<float> row(32, 0.f);
  row[3] = 100.25f * tiny;
  row[4] = -3.f * tiny;
  row[5] = 0.4f * tiny;
  const std::vector<float> got = rounded<Int8Matrix>(row);
  CHECK(got[3] == 100 * tiny);
  CHECK(got[4] == -3 * tiny);
  CHECK(got[5] == 0.f);
  CHECK(rounded<Int4Matrix>(std::vector<float>(32, 0.3f * tiny)) == std::vector<float>(32));
}

TEST_CASE("stored codes, scales and zero points are kept as they are", "[quantized]") {
  const std::int64_t rows = 37, cols = 130;
  const auto code = [](std::int64_t i, std::int64_t j) { return (i * 5 + j * 3) % 16 - 8; };
  for (const auto& [group, phase] : {std::pair{32, 0}, {64, 32}, {128, 0}, {500, 300}}) {
    CAPTURE(group, phase);
    // scale · (q - zero), as AWQ and GPTQ have it, with scales that are halves.
    const auto scale = [=, group = group, phase = phase](std::int64_t i, std::int64_t j) {
      return float(half(0.0137f + 0.001f * static_cast<float>((i + (j + phase) / group) % 9)));
    };
    const auto zero = [=, group = group, phase = phase](std::int64_t i, std::int64_t j) {
      return static_cast<float>((3 * i + (j + phase) / group) % 16);
    };
    const auto of_group = [=](std::int64_t i, std::int64_t j) {
      return IntRows::Group{scale(i, j), scale(i, j) * (8.f - zero(i, j))};
    };
    const auto check_matrix = [&](auto matrix) {
      REQUIRE(matrix.set_rows(1, stored_rows(rows, cols, 4, group, phase, code, of_group)));
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::vector<float> got = row_of(matrix, 1 + i);
        for (std::int64_t j = 0; j < cols; ++j) {
          const auto q = static_cast<float>(code(i, j) + 8);
          REQUIRE(got[size(j)] == scale(i, j) * (q - zero(i, j)));
        }
      }
      CHECK(row_of(matrix, 0) == std::vector<float>(size(cols)));
    };
    check_matrix(Int4Matrix(rows + 2, cols));
    check_matrix(Int8Matrix(rows + 2, cols));
  }
}

TEST_CASE("several threads keep stored rows as one does, and pass on what these throw",
          "[quantized]") {
  const std::int64_t rows = 150, cols = 96;
  cpu::ThreadPool pool(3);
  const cpu::Context context{.pool = &pool};
  // Of a copy rows are read in ascending order.
  const auto read = [last = std::int64_t{-1}](std::int64_t i, std::int8_t* codes) mutable {
    if (i <= last) throw LoadError("not ascending");
    last = i;
    for (std::int64_t j = 0; j < cols; ++j) codes[j] = static_cast<std::int8_t>((i * j) % 16 - 8);
  };
  IntRows stored{.rows = rows,
                 .columns = cols,
                 .bits = 4,
                 .group_columns = 32,
                 .rows_at_once = 7,
                 .read = read,
                 .group = [](std::int64_t i, std::int64_t j) {
                   return IntRows::Group{1.f + static_cast<float>(i + j), 0.f};
                 }};
  const auto check_matrix = [&]<class Matrix>(Matrix one, Matrix many) {
    REQUIRE(one.set_rows(1, stored));
    REQUIRE(many.set_rows(1, stored, context));
    for (std::int64_t i = 0; i < rows; ++i) {
      REQUIRE(row_of(one, 1 + i) == row_of(many, 1 + i));
      for (std::int64_t j = 0; j < cols; ++j)
        REQUIRE(row_of(one, 1 + i)[size(j)] ==
                static_cast<float>(((i * j) % 16 - 8) * (1 + i + j / 32 * 32)));
    }
    IntRows faulty = stored;
    faulty.group = [](std::int64_t i, std::int64_t) -> IntRows::Group {
      throw LoadError(i < 75 ? "of the first half" : "of the second half");
    };
    CHECK_THROWS_AS(many.set_rows(1, faulty, context), LoadError);
    faulty = stored;
    faulty.read = [](std::int64_t, std::int8_t*) { throw LoadError("no codes"); };
    CHECK_THROWS_WITH(many.set_rows(1, faulty, context), "no codes");
    faulty.group = [](std::int64_t i, std::int64_t) {
      return IntRows::Group{i == 140 ? 1e9f : 1.f, 0.f};
    };
    CHECK_FALSE(many.set_rows(1, faulty, context));
  };
  check_matrix(Int4Matrix(rows + 1, cols), Int4Matrix(rows + 1, cols));
  check_matrix(Int8Matrix(rows + 1, cols), Int8Matrix(rows + 1, cols));
}

TEST_CASE("stored rows that a matrix cannot keep are left to be quantised", "[quantized]") {
  const auto code = [](std::int64_t, std::int64_t) { return 1; };
  const auto group = [](std::int64_t, std::int64_t) { return IntRows::Group{1.f, 0.f}; };
  Int4Matrix four(5, 100);
  Int8Matrix eight(5, 100);
  CHECK_FALSE(four.set_rows(0, stored_rows(5, 100, 8, 32, 0, code, group)));
  CHECK(eight.set_rows(0, stored_rows(5, 100, 8, 32, 0, code, group)));
  CHECK_FALSE(four.set_rows(0, stored_rows(5, 100, 4, 16, 0, code, group)));
  CHECK_FALSE(four.set_rows(0, stored_rows(5, 100, 4, 64, 16, code, group)));
  CHECK(row_of(four, 0) == std::vector<float>(100));
  CHECK_THROWS_WITH(four.set_rows(3, stored_rows(5, 100, 4, 32, 0, code, group)),
                    "IntMatrix: 5 rows of 100 at row 3 do not fit a matrix [5, 100]");
  const std::vector<float> row(99);
  CHECK_THROWS_WITH(four.set_rows(0, MatrixView<const float>(row.data(), {1, 99})),
                    "IntMatrix: 1 rows of 99 at row 0 do not fit a matrix [5, 100]");
  CHECK_THROWS_WITH(Int8Matrix(-1, 3), "IntMatrix: extents must be >= 0, got [-1, 3]");
}

TEST_CASE("a group of one value has a scale of 0 and an offset", "[quantized]") {
  const auto code = [](std::int64_t, std::int64_t j) { return j % 8; };
  Int4Matrix matrix(1, 64);
  REQUIRE(matrix.set_rows(0, stored_rows(1, 64, 4, 32, 0, code, [](std::int64_t, std::int64_t j) {
                            return j < 32 ? IntRows::Group{0.f, -0.375f} : IntRows::Group{0.f, 0.f};
                          })));
  std::vector<float> expected(64, 0.f);
  std::fill_n(expected.begin(), 32, -0.375f);
  CHECK(row_of(matrix, 0) == expected);
}

TEST_CASE("8.5 and 4.5 bits an element, and half a bit for shifts", "[quantized]") {
  CHECK(Int8Matrix(64, 1024).size_bytes() * 8 == 64 * 1024 * 17 / 2);
  Int4Matrix four(64, 1024);
  CHECK(four.size_bytes() * 8 == 64 * 1024 * 9 / 2);
  CHECK(four.shifts(0) == nullptr);
  const auto code = [](std::int64_t, std::int64_t) { return 1; };
  const auto group = [](std::int64_t, std::int64_t) { return IntRows::Group{1.f, 1.f}; };
  REQUIRE(four.set_rows(0, stored_rows(1, 1024, 4, 32, 0, code, group)));
  CHECK(four.size_bytes() * 8 == 64 * 1024 * 5);
  CHECK(Int8Matrix(33, 33).size_bytes() == 2 * 2 * 1088);  // whole panels and groups
  CHECK(Int8Matrix(0, 33).size_bytes() == 0);
  CHECK(Int8Matrix(33, 0).size_bytes() == 0);
}

TEST_CASE("stored rows whose scales or offsets no half is near are not kept", "[quantized]") {
  std::int8_t code = 1;
  const auto rows_of = [&](IntRows::Group odd) {
    return IntRows{.rows = 2,
                   .columns = 64,
                   .bits = 4,
                   .group_columns = 32,
                   .has_offsets = true,
                   .read = [&](std::int64_t, std::int8_t* codes) { std::fill_n(codes, 64, code); },
                   .group =
                       [odd](std::int64_t i, std::int64_t j) {
                         return i == 1 && j >= 32 ? odd : IntRows::Group{0.5f, 0.25f};
                       }};
  };
  Int4Matrix matrix(2, 64);
  CHECK(matrix.set_rows(0, rows_of({0.5f, -0.25f})));
  const std::vector<float> before = row_of(matrix, 1);
  CHECK(before[0] == 0.75f);
  CHECK(before[40] == 0.25f);
  code = 2;
  // An offset of 800,000 scales; scales beyond the largest half and below the smallest.
  for (const IntRows::Group odd : {IntRows::Group{6e-8f, -0.05f}, IntRows::Group{1e6f, 0.f},
                                   IntRows::Group{1e-9f, 0.f}, IntRows::Group{0.f, 1e6f}}) {
    CHECK_FALSE(matrix.set_rows(0, rows_of(odd)));
    CHECK(row_of(matrix, 1) == before);
  }
  // Rows that are quantised have no offsets, whatever was there.
  const std::vector<float> values(64, 1.f);
  matrix.set_rows(1, MatrixView<const float>(values.data(), {1, 64}));
  Int4Matrix fresh(2, 64);
  fresh.set_rows(1, MatrixView<const float>(values.data(), {1, 64}));
  CHECK(row_of(matrix, 1) == row_of(fresh, 1));
}
