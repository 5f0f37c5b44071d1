#include "nanovllm/cpu/kernels/rowwise.hpp"

#include <cstring>

#include "cpu/op_test.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

/// The contract in float64, rounding only where it says so.
template <class T>
std::vector<double> expected_row(const std::vector<double>& x, TestMatrix<T>& weight, double eps) {
  double sum = 0;
  for (double v : x) sum += v * v;
  const double inverse_rms = 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> out;
  for (std::size_t j = 0; j < x.size(); ++j) {
    out.push_back(x[j] * inverse_rms * weight.value(0, static_cast<std::int64_t>(j)));
  }
  return out;
}

template <class T>
bool close(double got, double expected) {
  return std::abs(got - expected) <=
         2.01 * kUnit<T> * std::abs(expected) + 16 * 0x1p-24 * std::abs(expected) + 1e-30;
}

}  // namespace

TEMPLATE_TEST_CASE("rms_norm is the formula, at every width and on every instruction set",
                   "[rms_norm]", float, bf16) {
  cpu::ThreadPool pool(2);
  for (cpu::Isa isa : available_isas()) {
    for (std::int64_t rows : {0, 1, 9}) {
      for (std::int64_t width : {1, 2, 15, 16, 17, 63, 128, 256, 1023}) {
        INFO(cpu::name(isa) << " " << rows << " x " << width);
        auto x = TestMatrix<TestType>::random(rows, width, 1);
        auto weight = TestMatrix<TestType>::random(1, width, 2);
        TestMatrix<TestType> out(rows, width);
        cpu::rms_norm(RmsNormArgs<TestType>{x.view(), weight.row_view(0), 1e-6f, out.view()},
                      {&pool, isa});
        for (std::int64_t i = 0; i < rows; ++i) {
          std::vector<double> row;
          for (std::int64_t j = 0; j < width; ++j) row.push_back(x.value(i, j));
          const auto expected = expected_row(row, weight, 1e-6);
          for (std::int64_t j = 0; j < width; ++j) {
            REQUIRE(close<TestType>(out.value(i, j), expected[static_cast<std::size_t>(j)]));
          }
        }
        REQUIRE(out.padding_untouched());
      }
    }
  }
}

TEMPLATE_TEST_CASE("add_rms_norm updates the residual and norms its rounded value, also in place",
                   "[rms_norm]", float, bf16) {
  cpu::ThreadPool pool(2);
  for (cpu::Isa isa : available_isas()) {
    for (std::int64_t width : {1, 17, 256}) {
      const std::int64_t rows = 7;
      auto x = TestMatrix<TestType>::random(rows, width, 3);
      auto residual = TestMatrix<TestType>::random(rows, width, 4);
      auto weight = TestMatrix<TestType>::random(1, width, 5);
      const auto x_before = x, residual_before = residual;
      cpu::add_rms_norm(
          AddRmsNormArgs<TestType>{x.view(), residual.view(), weight.row_view(0), 1e-6f, x.view()},
          {&pool, isa});
      for (std::int64_t i = 0; i < rows; ++i) {
        std::vector<double> row;
        for (std::int64_t j = 0; j < width; ++j) {
          const double sum = rounded<TestType>(x_before.value(i, j) + residual_before.value(i, j));
          REQUIRE(residual.value(i, j) == sum);
          row.push_back(sum);
        }
        const auto expected = expected_row(row, weight, 1e-6);
        for (std::int64_t j = 0; j < width; ++j)
          REQUIRE(close<TestType>(x.value(i, j), expected[static_cast<std::size_t>(j)]));
      }
    }
  }
}

TEST_CASE("rms_norm in bfloat16 rounds before the product with the weight", "[rms_norm]") {
  // 1 + 2^-8 normalised by 1 rounds to 1 (ties to even) and only then meets the weight 3.
  cpu::ThreadPool pool(1);
  TestMatrix<bf16> x(1, 2), weight(1, 2), out(1, 2);
  x(0, 0) = bf16(1.f), x(0, 1) = bf16(1.0078125f);
  weight(0, 0) = weight(0, 1) = bf16(1.0078125f);
  cpu::rms_norm(RmsNormArgs<bf16>{x.view(), weight.row_view(0), 0.f, out.view()}, {&pool});
  const double inverse_rms = 1 / std::sqrt((1 + 1.0078125 * 1.0078125) / 2);
  for (std::int64_t j = 0; j < 2; ++j) {
    CHECK(out.value(0, j) == rounded<bf16>(rounded<bf16>(x.value(0, j) * inverse_rms) * 1.0078125));
  }
}

TEST_CASE("operands that do not fit are refused by name", "[rms_norm]") {
  cpu::ThreadPool pool(1);
  TestMatrix<float> x(2, 4), weight(1, 5), out(2, 4);
  CHECK_THROWS_AS(
      cpu::rms_norm(RmsNormArgs<float>{x.view(), weight.row_view(0), 0.f, out.view()}, {&pool}),
      ShapeError);
}
