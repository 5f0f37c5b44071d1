#include "nanovllm/cpu/linear/packed_matrix.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;
using cpu::PackedMatrix;

namespace {

/// A value that tells its place, exact in every type.
template <class T>
T mark(std::int64_t row, std::int64_t col) {
  return static_cast<T>(static_cast<float>((row * 37 + col * 5) % 251 + 1));
}

/// A source of `rows` rows from `first_row` on, with three foreign elements after each row.
template <class T>
struct Source {
  std::vector<T> data;
  MatrixView<const T> view;

  Source(std::int64_t first_row, std::int64_t rows, std::int64_t cols)
      : data(static_cast<std::size_t>(rows * (cols + 3)), static_cast<T>(-1.0f)),
        view(data.data(), {rows, cols}, {cols + 3, 1}) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        data[static_cast<std::size_t>(r * (cols + 3) + c)] = mark<T>(first_row + r, c);
      }
    }
  }
};

template <class T>
bool holds_marks(const PackedMatrix<T>& matrix) {
  std::vector<T> row(static_cast<std::size_t>(matrix.cols()) + 1);
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    row.back() = static_cast<T>(-2.0f);
    matrix.copy_row(r, row.data());
    for (std::int64_t c = 0; c < matrix.cols(); ++c) {
      if (float(row[static_cast<std::size_t>(c)]) != float(mark<T>(r, c))) return false;
    }
    if (float(row.back()) != -2.0f) return false;
  }
  return true;
}

}  // namespace

TEMPLATE_TEST_CASE("rows come back as they were set, at any size", "[packed_matrix]", float, bf16,
                   half) {
  for (std::int64_t rows : {0, 1, 15, 16, 31, 32, 33, 70}) {
    for (std::int64_t cols : {0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100}) {
      PackedMatrix<TestType> matrix(rows, cols);
      matrix.set_rows(0, Source<TestType>(0, rows, cols).view);
      REQUIRE(matrix.rows() == rows);
      REQUIRE(matrix.cols() == cols);
      REQUIRE(holds_marks(matrix));
    }
  }
}

TEMPLATE_TEST_CASE("rows may be set in pieces of any size and order", "[packed_matrix]", float,
                   bf16, half) {
  constexpr std::int64_t kRows = 150, kCols = 37;
  for (std::int64_t piece : {1, 7, 16, 33, 64}) {
    PackedMatrix<TestType> matrix(kRows, kCols);
    for (std::int64_t first = (kRows - 1) / piece * piece; first >= 0; first -= piece) {
      const std::int64_t count = std::min(piece, kRows - first);
      matrix.set_rows(first, Source<TestType>(first, count, kCols).view);
    }
    REQUIRE(holds_marks(matrix));
  }
}

TEMPLATE_TEST_CASE("elements lie where the kernels expect them, and padding is zero",
                   "[packed_matrix]", float, bf16, half) {
  constexpr std::int64_t kRows = 45, kCols = 35;
  constexpr int kPerWord = PackedMatrix<TestType>::kPerWord;
  PackedMatrix<TestType> matrix(kRows, kCols);
  matrix.set_rows(0, Source<TestType>(0, kRows, kCols).view);
  REQUIRE(matrix.num_panels() == 2);
  REQUIRE(matrix.num_words() == (kPerWord == 1 ? 35 : 18));
  REQUIRE(matrix.panel_size() == (kPerWord == 1 ? 48 : 64) * 32);
  REQUIRE(matrix.size_bytes() ==
          2 * matrix.panel_size() * static_cast<std::int64_t>(sizeof(TestType)));
  int num_wrong = 0;
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t col = 0; col < matrix.panel_size() / 32; ++col) {
      const TestType element =
          matrix.panel(row / 32)[(col / kPerWord * 32 + row % 32) * kPerWord + col % kPerWord];
      const bool inside = row < kRows && col < kCols;
      num_wrong += float(element) != (inside ? float(mark<TestType>(row, col)) : 0.0f);
    }
  }
  REQUIRE(num_wrong == 0);
}

TEST_CASE("rows that do not fit are refused", "[packed_matrix]") {
  PackedMatrix<float> matrix(4, 8);
  const Source<float> two(0, 2, 8), narrow(0, 2, 7);
  REQUIRE_THROWS_AS(matrix.set_rows(3, two.view), ShapeError);
  REQUIRE_THROWS_AS(matrix.set_rows(-1, two.view), ShapeError);
  REQUIRE_THROWS_AS(matrix.set_rows(0, narrow.view), ShapeError);
  REQUIRE_THROWS_AS(PackedMatrix<float>(-1, 8), ShapeError);
  REQUIRE_NOTHROW(matrix.set_rows(2, two.view));
}
