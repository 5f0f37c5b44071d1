#include "nanovllm/with/eight_bits/cpu/linear.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"
#include "nanovllm/core/philox.hpp"
#include "nanovllm/cpu/linear/packed_matrix.hpp"
#include "nanovllm/cpu/thread_pool.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
#include "nanovllm/with/moe/ops.hpp"

using namespace nanovllm;
using cpu::ActivationGroup;
using cpu::Context;
using cpu::IntMatrix;
using cpu::Isa;

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

template <int kBits>
IntMatrix<kBits> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  IntMatrix<kBits> out(rows, cols);
  const std::vector<bf16> values = noise<bf16>(rows * cols, seed, 0.05f);
  out.set_rows(0, MatrixView<const bf16>(values.data(), {rows, cols}));
  return out;
}

/// A matrix of stored rows with offsets, as AWQ has them: groups of 64 columns.
IntMatrix<4> with_offsets(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  IntMatrix<4> out(rows, cols);
  const auto stored = noise<float>(rows * cols, seed, 7.9f);
  REQUIRE(out.set_rows(0, IntRows{.rows = rows,
                                  .columns = cols,
                                  .bits = 4,
                                  .group_columns = 64,
                                  .has_offsets = true,
                                  .read =
                                      [&](std::int64_t i, std::int8_t* codes) {
                                        for (std::int64_t j = 0; j < cols; ++j)
                                          codes[j] = static_cast<std::int8_t>(
                                              std::lrint(stored[size(i * cols + j)]));
                                      },
                                  .group =
                                      [](std::int64_t i, std::int64_t j) {
                                        const float scale =
                                            0.01f + 0.001f * static_cast<float>((i + j / 64) % 5);
                                        const auto zero = static_cast<float>((i * 7 + j / 64) % 16);
                                        return IntRows::Group{scale, scale * (8.f - zero)};
                                      }}));
  return out;
}

template <class Matrix>
std::vector<float> values_of(const Matrix& matrix) {
  std::vector<float> out(size(matrix.rows() * matrix.cols()));
  for (std::int64_t i = 0; i < matrix.rows(); ++i)
    matrix.copy_row(i, out.data() + i * matrix.cols());
  return out;
}

/// x · Wᵀ in float64 of the values as rounded, and how far a result may be from it.
struct Reference {
  double value = 0, size_of_sum = 0, rounding_of_x = 0;

  /// How far a result that is added to `old` may be from value + old.
  [[nodiscard]] double bound(std::int64_t cols, float old) const {
    // A group is scaled, shifted and added with four roundings; the sum is rounded once a group.
    const double terms = static_cast<double>(cols / 32 + 8);
    return rounding_of_x * 1.001 + 4 * terms * 0x1p-24 * (size_of_sum + std::abs(double{old}));
  }
};

/// All n · rows of them, as ops/linear and quantise.hpp have it.
template <class T, class Matrix>
std::vector<Reference> references(MatrixView<const T> x, const Matrix& matrix) {
  const std::int64_t n = x.extent(0), rows = matrix.rows(), cols = matrix.cols();
  const std::vector<float> w = values_of(matrix);
  std::vector<Reference> out(size(n * rows));
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t begin = 0; begin < cols; begin += 32) {
      const std::int64_t end = std::min(begin + 32, cols);
      double largest = 0;
      for (std::int64_t j = begin; j < end; ++j)
        largest = std::max(largest, std::abs(double{static_cast<float>(x.at(r)[j])}));
      for (std::int64_t c = 0; c < rows; ++c) {
        Reference& to = out[size(r * rows + c)];
        double size_of_w = 0;
        for (std::int64_t j = begin; j < end; ++j) {
          const double value = double{w[size(c * cols + j)]};
          const double product = double{static_cast<float>(x.at(r)[j])} * value;
          to.value += product;
          to.size_of_sum += std::abs(product);
          size_of_w += std::abs(value);
        }
        to.size_of_sum += largest / 254 * size_of_w;
        to.rounding_of_x += largest / 254 * size_of_w;  // half of a scale
      }
    }
  }
  return out;
}

/// Rows of x, the same for all that take them, and what they give.
template <class T, class Matrix>
struct Input {
  std::vector<T> values;
  MatrixView<const T> x;
  const Matrix& matrix;
  std::vector<Reference> expected;

  Input(std::int64_t n, const Matrix& of)
      : values(noise<T>(n * (of.cols() + 3), 2)),
        x(values.data(), {n, of.cols()}, {of.cols() + 3, 1}),
        matrix(of),
        expected(references(x, of)) {}
};

cpu::ThreadPool& pool_of_three() {
  static cpu::ThreadPool pool(3);
  return pool;
}

template <class Out, class T, class Matrix>
void check_products(const Input<T, Matrix>& input, bool accumulate) {
  const auto& [values, x, matrix, expected] = input;
  const std::int64_t n = x.extent(0), rows = matrix.rows(), cols = matrix.cols();
  CAPTURE(n, rows, cols, accumulate);
  const std::vector<Out> old = noise<Out>(n * (rows + 2), 3);
  const auto view = [n = n, rows](std::vector<Out>& y) {
    return MatrixView<Out>(y.data(), {n, rows}, {rows + 2, 1});
  };
  std::vector<Out> first;
  for (const Isa isa : test::available_isas()) {
    Context context{.pool = &pool_of_three(), .isa = isa};
    std::vector<Out> y = old;
    run_op(LinearArgs<T, Matrix, Out>{x, &matrix, view(y), accumulate}, context);
    if (first.empty()) first = y;
    INFO(cpu::name(isa));
    REQUIRE(std::memcmp(first.data(), y.data(), y.size() * sizeof(Out)) == 0);

    std::vector<Out> alone = old;  // each row by itself, by one thread
    for (std::int64_t r = 0; r < n; ++r) {
      linear(LinearArgs<T, Matrix, Out>{x.slice(r, r + 1), &matrix, view(alone).slice(r, r + 1),
                                        accumulate},
             Context{.isa = isa});
    }
    REQUIRE(std::memcmp(first.data(), alone.data(), y.size() * sizeof(Out)) == 0);
  }
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < rows; ++c) {
      const std::size_t at = size(r * (rows + 2) + c);
      const Reference& reference = expected[size(r * rows + c)];
      const float before = accumulate ? float(old[at]) : 0.f;
      const double value = reference.value + double{before}, bound = reference.bound(cols, before);
      const double rounding = sizeof(Out) == 2 ? 0x1p-8 * std::abs(value) : 0.;
      const double difference = std::abs(double{float(first[at])} - value);
      if (!(difference <= bound * (sizeof(Out) == 2 ? 1.01 : 1.) + rounding)) {
        FAIL(r << ", " << c << ": " << float(first[at]) << " instead of " << value << " +- "
               << bound);
      }
    }
  }
  // What lies between the rows is left alone.
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = rows; c < rows + 2; ++c)
      REQUIRE(float(first[size(r * (rows + 2) + c)]) == float(old[size(r * (rows + 2) + c)]));
}

template <class Matrix>
void check_types(std::int64_t n, const Matrix& matrix) {
  const Input<float, Matrix> floats(n, matrix);
  const Input<bf16, Matrix> shorts(n, matrix);
  for (const bool accumulate : {false, true}) {
    check_products<float>(floats, accumulate);
    check_products<bf16>(shorts, accumulate);
    check_products<float>(shorts, accumulate);
  }
}

}  // namespace

TEST_CASE("products by integers are near to float64, and the same on every instruction set",
          "[quantized]") {
  for (const auto& [rows, cols] :
       {std::pair{1, 1}, {31, 31}, {32, 32}, {33, 70}, {100, 300}, {64, 1024}}) {
    const IntMatrix<8> bytes = random_matrix<8>(rows, cols, 1);
    const IntMatrix<4> nibbles = random_matrix<4>(rows, cols, 1);
    const IntMatrix<4> shifted = with_offsets(rows, cols, 4);
    for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 40}) {
      if (n > 7 && cols == 1024) continue;
      check_types(n, bytes);
      check_types(n, nibbles);
      check_types(n, shifted);
    }
  }
}

TEST_CASE("products by integers of half precision", "[quantized]") {
  const IntMatrix<8> bytes = random_matrix<8>(40, 100, 1);
  const IntMatrix<4> nibbles = random_matrix<4>(40, 100, 1);
  check_products<half>(Input<half, IntMatrix<8>>(5, bytes), true);
  check_products<half>(Input<half, IntMatrix<4>>(5, nibbles), false);
}

TEST_CASE("more rows than a pass of scratch has, in any number of threads", "[quantized]") {
  const std::int64_t rows = 33, cols = 4096, n = 300;  // a pass has 224 rows
  const IntMatrix<8> matrix = random_matrix<8>(rows, cols, 1);
  const std::vector<float> x = noise<float>(n * cols, 2);
  std::vector<float> one(size(n * rows)), many = one;
  cpu::ThreadPool pool(3);
  linear(
      LinearArgs<float, IntMatrix<8>, float>{
          {x.data(), {n, cols}}, &matrix, {one.data(), {n, rows}}},
      Context{});
  linear(
      LinearArgs<float, IntMatrix<8>, float>{
          {x.data(), {n, cols}}, &matrix, {many.data(), {n, rows}}},
      Context{.pool = &pool});
  CHECK(one == many);
  for (const std::int64_t r : {0, 223, 224, 299}) {
    std::vector<float> alone(size(rows));
    linear(
        LinearArgs<float, IntMatrix<8>, float>{
            {x.data() + r * cols, {1, cols}}, &matrix, {alone.data(), {1, rows}}},
        Context{});
    CHECK(std::equal(alone.begin(), alone.end(), one.begin() + r * rows));
  }
}

TEST_CASE("the largest sums that there are do not overflow", "[quantized]") {
  const std::int64_t cols = 64;
  const auto of = [&](auto& matrix, int bits, int code, float x_sign) {
    REQUIRE(matrix.set_rows(0, IntRows{.rows = 32,
                                       .columns = cols,
                                       .bits = bits,
                                       .group_columns = 32,
                                       .read =
                                           [&](std::int64_t, std::int8_t* codes) {
                                             std::fill_n(codes, cols,
                                                         static_cast<std::int8_t>(code));
                                           },
                                       .group =
                                           [](std::int64_t, std::int64_t) {
                                             return IntRows::Group{1.f, 0.f};
                                           }}));
    const std::vector<float> x(size(cols), 127.f * x_sign);
    for (const Isa isa : test::available_isas()) {
      std::vector<float> y(32);
      linear(
          LinearArgs<float, std::remove_reference_t<decltype(matrix)>, float>{
              {x.data(), {1, cols}}, &matrix, {y.data(), {1, 32}}},
          Context{.isa = isa});
      INFO(cpu::name(isa));
      for (const float value : y)
        REQUIRE(value == 127.f * x_sign * static_cast<float>(code) * static_cast<float>(cols));
    }
  };
  for (const float sign : {1.f, -1.f}) {
    for (const int code : {-128, -127, 127}) {
      IntMatrix<8> matrix(32, cols);
      of(matrix, 8, code, sign);
    }
    for (const int code : {-8, 7}) {
      IntMatrix<4> matrix(32, cols);
      of(matrix, 4, code, sign);
    }
  }
}

TEST_CASE("activations are rounded to integers as stated", "[quantized]") {
  std::vector<float> x(70, 0.f);
  x[0] = -254.f;  // scale 2
  x[1] = 3.f;     // 1.5, to even
  x[2] = 5.f;     // 2.5, to even
  x[3] = 100.9f;
  x[40] = 0x1p-101f;  // too small: zero
  x[64] = 1.f;
  x[69] = -0.5f;
  for (const Isa isa : test::available_isas()) {
    INFO(cpu::name(isa));
    std::vector<ActivationGroup> groups(3);
    NANOVLLM_PICK(isa, quantise_activations<float>)(x.data(), 70, groups.data());
    CHECK(groups[0].scale == 2.f);
    CHECK(int{groups[0].codes[0]} == -127);
    CHECK(int{groups[0].codes[1]} == 2);
    CHECK(int{groups[0].codes[2]} == 2);
    CHECK(int{groups[0].codes[3]} == 50);
    CHECK(groups[0].sum == -127 + 2 + 2 + 50);
    CHECK(groups[1].scale == 0.f);
    CHECK(groups[1].sum == 0);
    CHECK(groups[2].scale == 1.f / 127.f);
    CHECK(int{groups[2].codes[0]} == 127);
    CHECK(int{groups[2].codes[5]} == -64);  // -63.5, to even
    CHECK(groups[2].sum == 63);
    for (int c = 6; c < 32; ++c) CHECK(int{groups[2].codes[c]} == 0);
  }
}

TEST_CASE("a row with an element that is not finite is NaN, and no other", "[quantized]") {
  const IntMatrix<8> matrix = random_matrix<8>(40, 100, 1);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = noise<float>(300, 2), y(120);
    x[150] = odd;
    for (const Isa isa : test::available_isas()) {
      linear(
          LinearArgs<float, IntMatrix<8>, float>{
              {x.data(), {3, 100}}, &matrix, {y.data(), {3, 40}}},
          Context{.isa = isa});
      for (std::size_t i = 0; i < y.size(); ++i) REQUIRE(std::isnan(y[i]) == (i / 40 == 1));
    }
  }
}

TEST_CASE("no weight, wrong shapes and no rows", "[quantized]") {
  const IntMatrix<4> matrix = random_matrix<4>(40, 100, 1);
  std::vector<float> x(100), y(40);
  using Args = LinearArgs<float, IntMatrix<4>, float>;
  CHECK_THROWS_WITH(linear(Args{{x.data(), {1, 100}}, nullptr, {y.data(), {1, 40}}}, Context{}),
                    "linear: no weight given");
  CHECK_THROWS_AS(linear(Args{{x.data(), {1, 99}}, &matrix, {y.data(), {1, 40}}}, Context{}),
                  ShapeError);
  CHECK_THROWS_AS(linear(Args{{x.data(), {1, 100}}, &matrix, {y.data(), {1, 39}}}, Context{}),
                  ShapeError);
  linear(Args{{x.data(), {0, 100}}, &matrix, {y.data(), {0, 40}}}, Context{});
  const IntMatrix<4> empty(0, 100);
  linear(Args{{x.data(), {1, 100}}, &empty, {y.data(), {1, 0}}}, Context{});
  CHECK(y == std::vector<float>(40));
}

TEST_CASE("experts with weights in integers: batched = alone, near to their values in floats",
          "[quantized]") {
  const std::int64_t n = 9, in = 70, width = 40, k = 2;
  std::vector<Expert<IntMatrix<4>>> experts;
  std::vector<Expert<cpu::PackedMatrix<float>>> of_values;
  const auto pack = [](const IntMatrix<4>& matrix) {
    cpu::PackedMatrix<float> out(matrix.rows(), matrix.cols());
    const std::vector<float> values = values_of(matrix);
    out.set_rows(0, MatrixView<const float>(values.data(), {matrix.rows(), matrix.cols()}));
    return out;
  };
  for (std::uint64_t e = 0; e < 3; ++e) {
    experts.push_back({random_matrix<4>(2 * width, in, 10 + e), random_matrix<4>(in, width, e)});
    of_values.push_back({pack(experts.back().gate_up), pack(experts.back().down)});
  }
  const std::vector<float> x = noise<float>(n * in, 3), weights(size(n * k), 0.5f);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.insert(ids.end(), {i % 3, (i + 1 + i / 3 % 2) % 3});
  cpu::ThreadPool pool(2);
  Context context{.pool = &pool};
  const auto run = [&]<class Matrix>(const std::vector<Expert<Matrix>>& of, std::int64_t first,
                                     std::int64_t count) {
    std::vector<float> out(size(count * in));
    run_op(ExpertMlpArgs<float, Matrix>{.x = {x.data() + first * in, {count, in}},
                                        .ids = {ids.data() + first * k, {count, k}},
                                        .weights = {weights.data() + first * k, {count, k}},
                                        .experts = of,
                                        .out = {out.data(), {count, in}}},
           context);
    return out;
  };
  const std::vector<float> together = run(experts, 0, n), expected = run(of_values, 0, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::vector<float> alone = run(experts, i, 1);
    CHECK(std::equal(alone.begin(), alone.end(), together.begin() + i * in));
  }
  double error = 0, squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{together[i]} - double{expected[i]}, 2);
    squares += std::pow(double{expected[i]}, 2);
  }
  CHECK(error > 0);
  CHECK(error < 4e-4 * squares);
}

TEST_CASE("embedding reads rows of a matrix of integers", "[quantized]") {
  const std::int64_t rows = 70, cols = 50;
  const IntMatrix<8> table = random_matrix<8>(rows, cols, 6);
  const std::vector<float> values = values_of(table);
  const std::vector<TokenId> tokens = {100, 169, 33, 170, 131};  // of a shard of [100, 170)
  std::vector<bf16> out(tokens.size() * size(cols), bf16(9.f));
  cpu::ThreadPool pool(2);
  Context context{.pool = &pool};
  run_op(
      EmbeddingArgs<bf16, IntMatrix<8>>{{tokens.data(), {5}}, &table, 100, {out.data(), {5, cols}}},
      context);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      const std::int64_t row = tokens[i] - 100;
      const bool is_here = row >= 0 && row < rows;
      REQUIRE(out[i * size(cols) + size(j)].bits ==
              bf16(is_here ? values[size(row * cols + j)] : 0.f).bits);
    }
  }
}
