#include "nanovllm/cpu/linear/linear.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cpu/op_test.hpp"

using namespace nanovllm;
using cpu::Context;
using cpu::Isa;
using cpu::PackedMatrix;
using cpu::ThreadPool;

namespace {

std::vector<Isa> all_isas() { return test::available_isas(); }

template <class T>
T poison() {
  return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
}

std::mt19937& random_bits() {
  static std::mt19937 instance(11);
  return instance;
}

/// [rows, cols] normal numbers, rows `gap` elements of NaN apart, after `gap` elements of NaN: a
/// row has no particular alignment.
template <class T>
struct Strided {
  std::int64_t rows, cols, gap;
  std::vector<T> data;

  Strided(std::int64_t rows_in, std::int64_t cols_in, std::int64_t gap_in)
      : rows(rows_in),
        cols(cols_in),
        gap(gap_in),
        data(static_cast<std::size_t>(gap + rows * (cols + gap)), poison<T>()) {}

  MatrixView<T> view() { return {data.data() + gap, {rows, cols}, {cols + gap, 1}}; }
  MatrixView<const T> view() const { return {data.data() + gap, {rows, cols}, {cols + gap, 1}}; }

  void fill_random() {
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        *view().at(r, c) = static_cast<T>(normal(random_bits()));
      }
    }
  }

  /// Whether everything between the rows is still NaN.
  [[nodiscard]] bool gaps_untouched() const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      if (place >= gap && (place - gap) % (cols + gap) < cols) continue;
      if (!std::isnan(float(data[i]))) return false;
    }
    return true;
  }
};

template <class T>
PackedMatrix<T> pack(const Strided<T>& weight) {
  PackedMatrix<T> out(weight.view().extent(0), weight.view().extent(1));
  out.set_rows(0, weight.view());
  return out;
}

/// Unit of rounding to `Out`, and the spacing below its smallest normal number.
template <class Out>
constexpr double kUnit = std::is_same_v<Out, float>  ? 0x1p-24
                         : std::is_same_v<Out, bf16> ? 0x1p-8
                                                     : 0x1p-11;
template <class Out>
constexpr double kTiny = std::is_same_v<Out, half> ? 0x1p-24 : 0x1p-120;

/// Elements of y outside |e| ≤ 1.5 (u|y| + 4ε√K·Σ|a||b| + 2ε|old|); NaN always is.
template <class T, class Out>
int count_wrong(const Strided<T>& x, const Strided<T>& w, const Strided<Out>& old,
                const Strided<Out>& y, bool accumulate) {
  int num_wrong = 0;
  const std::int64_t depth = x.view().extent(1);
  for (std::int64_t r = 0; r < y.view().extent(0); ++r) {
    for (std::int64_t c = 0; c < y.view().extent(1); ++c) {
      double want = accumulate ? double(float(*old.view().at(r, c))) : 0.0;
      double size = 2 * std::abs(want);
      const double root = 4 * std::sqrt(static_cast<double>(depth));
      for (std::int64_t k = 0; k < depth; ++k) {
        const double product =
            double(float(*x.view().at(r, k))) * double(float(*w.view().at(c, k)));
        want += product;
        size += root * std::abs(product);
      }
      const double bound = 1.5 * (kUnit<Out> * std::abs(want) + 0x1p-24 * size) + kTiny<Out>;
      if (!(std::abs(double(float(*y.view().at(r, c))) - want) <= bound)) ++num_wrong;
    }
  }
  return num_wrong;
}

template <class T, class Out>
void run(const Strided<T>& x, const PackedMatrix<T>& weight, Strided<Out>& y,
         const Context& context, bool accumulate = false) {
  cpu::linear(LinearArgs<T, PackedMatrix<T>, Out>{x.view(), &weight, y.view(), accumulate},
              context);
}

template <class T, class Out>
void check_against_float64(Isa isa, std::int64_t n, std::int64_t rows, std::int64_t cols,
                           std::int64_t gap) {
  static ThreadPool pool(2);
  Strided<T> x(n, cols, gap), w(rows, cols, gap);
  x.fill_random();
  w.fill_random();
  const PackedMatrix<T> weight = pack(w);
  for (bool accumulate : {false, true}) {
    Strided<Out> y(n, rows, gap);
    if (accumulate) y.fill_random();
    const Strided<Out> old = y;
    run(x, weight, y, Context{.pool = &pool, .isa = isa}, accumulate);
    CAPTURE(name(isa), n, rows, cols, gap, accumulate);
    REQUIRE(count_wrong(x, w, old, y, accumulate) == 0);
    REQUIRE(y.gaps_untouched());
  }
}

template <class T>
bool same_bits(const T* a, const T* b, std::int64_t size) {
  return std::memcmp(a, b, static_cast<std::size_t>(size) * sizeof(T)) == 0;
}

}  // namespace

TEMPLATE_TEST_CASE("linear agrees with float64 at sizes around every tile", "[linear]", float, bf16,
                   half) {
  for (Isa isa : all_isas()) {
    for (std::int64_t n : {0, 1, 2, 3, 5, 7, 12, 13, 15, 16, 17, 31, 32, 33, 49}) {
      check_against_float64<TestType, TestType>(isa, n, 33, 67, 3);
    }
    for (std::int64_t rows : {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65}) {
      check_against_float64<TestType, TestType>(isa, 5, rows, 40, 1);
      check_against_float64<TestType, float>(isa, 18, rows, 40, 0);
    }
    for (std::int64_t cols : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000}) {
      check_against_float64<TestType, TestType>(isa, 3, 35, cols, 5);
      check_against_float64<TestType, float>(isa, 20, 35, cols, 32);
    }
  }
}

TEMPLATE_TEST_CASE("a row's result does not depend on its batch", "[linear]", float, bf16) {
  constexpr std::int64_t kRows = 70, kMaxBatch = 100;
  std::vector<std::int64_t> batches = {64, kMaxBatch};
  for (std::int64_t n = 1; n <= 40; ++n) batches.push_back(n);
  for (std::int64_t cols : {96, 83}) {
    Strided<TestType> x(kMaxBatch, cols, 7), w(kRows, cols, 0);
    x.fill_random();
    w.fill_random();
    const PackedMatrix<TestType> weight = pack(w);
    for (Isa isa : all_isas()) {
      Strided<TestType> alone(kMaxBatch, kRows, 0);
      for (std::int64_t r = 0; r < kMaxBatch; ++r) {
        cpu::linear(LinearArgs<TestType, PackedMatrix<TestType>>{x.view().slice(r, r + 1), &weight,
                                                                 alone.view().slice(r, r + 1)},
                    Context{.isa = isa});
      }
      for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (std::int64_t n : batches) {
          const std::int64_t first = (n * 29) % (kMaxBatch - n + 1);
          Strided<TestType> y(n, kRows, 0);
          cpu::linear(LinearArgs<TestType, PackedMatrix<TestType>>{x.view().slice(first, first + n),
                                                                   &weight, y.view()},
                      Context{.pool = &pool, .isa = isa});
          CAPTURE(name(isa), cols, threads, n, first);
          REQUIRE(same_bits(y.data.data(), alone.view().at(first), n * kRows));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("rows beyond one pass give what they give alone", "[linear]", float, bf16) {
  constexpr std::int64_t kCols = 3072, kRows = 33, kBatch = 389;
  REQUIRE(cpu::detail::rows_per_pass(kCols * static_cast<std::int64_t>(sizeof(TestType))) < kBatch);
  Strided<TestType> x(kBatch, kCols, 0), w(kRows, kCols, 0);
  x.fill_random();
  w.fill_random();
  const PackedMatrix<TestType> weight = pack(w);
  ThreadPool pool(2);
  for (Isa isa : all_isas()) {
    Strided<float> y(kBatch, kRows, 0), alone(1, kRows, 0);
    run(x, weight, y, Context{.pool = &pool, .isa = isa});
    for (std::int64_t r : {std::int64_t{0}, std::int64_t{191}, std::int64_t{192}, kBatch - 1}) {
      cpu::linear(LinearArgs<TestType, PackedMatrix<TestType>, float>{x.view().slice(r, r + 1),
                                                                      &weight, alone.view()},
                  Context{.isa = isa});
      CAPTURE(name(isa), r);
      REQUIRE(same_bits(y.view().at(r), alone.data.data(), kRows));
    }
  }
}

TEMPLATE_TEST_CASE("NaN and infinity stay in their row", "[linear]", float, bf16) {
  constexpr std::int64_t kBatch = 37, kCols = 50, kRows = 40;
  for (Isa isa : all_isas()) {
    Strided<TestType> x(kBatch, kCols, 0), w(kRows, kCols, 0);
    x.fill_random();
    w.fill_random();
    const PackedMatrix<TestType> weight = pack(w);
    Strided<TestType> clean(kBatch, kRows, 0), y(kBatch, kRows, 0);
    run(x, weight, clean, Context{.isa = isa});
    *x.view().at(3, 49) = poison<TestType>();
    *x.view().at(20, 0) = static_cast<TestType>(std::numeric_limits<float>::infinity());
    run(x, weight, y, Context{.isa = isa});
    CAPTURE(name(isa));
    for (std::int64_t r = 0; r < kBatch; ++r) {
      if (r != 3 && r != 20) REQUIRE(same_bits(y.view().at(r), clean.view().at(r), kRows));
    }
    for (std::int64_t c = 0; c < kRows; ++c) {
      REQUIRE(std::isnan(float(*y.view().at(3, c))));
      REQUIRE(std::isinf(float(*y.view().at(20, c))));
    }
  }
}

TEMPLATE_TEST_CASE("what an earlier call left in scratch does not matter", "[linear]", float, bf16,
                   half) {
  Strided<TestType> w(33, 64, 0), nan(25, 64, 0), narrow(33, 61, 0), x(25, 61, 0);
  w.fill_random();
  narrow.fill_random();
  x.fill_random();
  const PackedMatrix<TestType> wide_weight = pack(w), weight = pack(narrow);
  for (Isa isa : all_isas()) {
    Strided<TestType> before(25, 33, 0), y(25, 33, 0);
    run(x, weight, before, Context{.isa = isa});
    run(nan, wide_weight, y, Context{.isa = isa});
    run(x, weight, y, Context{.isa = isa});
    CAPTURE(name(isa));
    REQUIRE(count_wrong(x, narrow, y, y, false) == 0);
    REQUIRE(same_bits(y.data.data(), before.data.data(), 25 * 33));
  }
}

TEST_CASE("an instruction set that the machine lacks is not used", "[linear]") {
  Strided<bf16> x(4, 64, 0), w(32, 64, 0);
  x.fill_random();
  w.fill_random();
  const PackedMatrix<bf16> weight = pack(w);
  Strided<bf16> best(4, 32, 0), y(4, 32, 0);
  run(x, weight, best, Context{.isa = cpu::best_isa()});
  for (Isa isa : {Isa::amx, Isa::neon_bf16}) {
    CAPTURE(name(isa));
    run(x, weight, y, Context{.isa = isa});
    REQUIRE(same_bits(y.data.data(), best.data.data(), 4 * 32));
  }
}

TEST_CASE("operands that do not fit together are refused", "[linear]") {
  const PackedMatrix<float> weight(8, 16);
  Strided<float> x(2, 16, 0), narrow(2, 15, 0), y(2, 8, 0), short_y(1, 8, 0), wide_y(2, 9, 0);
  REQUIRE_NOTHROW(run(x, weight, y, Context{}));
  REQUIRE_THROWS_AS(run(narrow, weight, y, Context{}), ShapeError);
  REQUIRE_THROWS_AS(run(x, weight, short_y, Context{}), ShapeError);
  REQUIRE_THROWS_AS(run(x, weight, wide_y, Context{}), ShapeError);
  REQUIRE_THROWS_AS(
      cpu::linear(LinearArgs<float, PackedMatrix<float>>{x.view(), nullptr, y.view()}, Context{}),
      ShapeError);
}

TEST_CASE("threads take every panel once, and mostly the one after the last", "[linear]") {
  for (const std::int64_t count : {0, 1, 2, 3, 31, 128, 4748}) {
    for (const int threads : {1, 2, 7}) {
      CAPTURE(count, threads);
      ThreadPool pool(threads);
      std::vector<int> takes(static_cast<std::size_t>(count), 0);
      std::atomic<std::int64_t> breaks{0}, callers{0};
      cpu::detail::share_queue(Context{.pool = &pool}, count, [&](cpu::detail::IndexQueue& queue) {
        ++callers;
        cpu::detail::IndexQueue::Taker taker(queue);
        std::int64_t last = -1;
        for (std::int64_t i = taker.next(); i < queue.count(); last = i, i = taker.next()) {
          ++takes[static_cast<std::size_t>(i)];
          if (i != last + 1) ++breaks;
        }
        if (taker.next() != count) ++breaks;
      });
      CHECK(takes == std::vector<int>(static_cast<std::size_t>(count), 1));
      CHECK(callers == std::min<std::int64_t>(count, threads));
      // A range is a 2T-th of what is left, rounded up.
      std::int64_t ranges = 0;
      for (std::int64_t left = count; left > 0; left -= (left + 2 * threads - 1) / (2 * threads))
        ++ranges;
      CHECK(breaks <= ranges);
    }
  }
}
