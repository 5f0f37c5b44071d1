#include "nanovllm/cpu/kernels/rowwise.hpp"

#include <cstring>

#include "cpu/op_test.hpp"
#include "nanovllm/cpu/kernels/embedding.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEMPLATE_TEST_CASE("silu_mul is the formula, also far out and at every width", "[silu_mul]", float,
                   bf16) {
  cpu::ThreadPool pool(2);
  for (cpu::Isa isa : available_isas()) {
    for (std::int64_t rows : {0, 1, 9}) {
      for (std::int64_t width : {1, 15, 16, 17, 100, 768}) {
        auto gate_up = TestMatrix<TestType>::random(rows, 2 * width, 1, -100, 100);
        if (rows > 0) {
          gate_up(0, 0) = TestType(0.f);
          gate_up(0, width - 1) = TestType(-0.01f);
        }
        TestMatrix<TestType> out(rows, width);
        cpu::silu_mul(SiluMulArgs<TestType>{gate_up.view(), out.view()}, {&pool, isa});
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < width; ++j) {
            const double x = gate_up.value(i, j), up = gate_up.value(i, width + j);
            const double y = x / (1 + std::exp(-x)) * up;
            INFO(cpu::name(isa) << " x = " << x << ", up = " << up);
            // Below e^-87 the sigmoid may be flushed to zero.
            REQUIRE(std::abs(out.value(i, j) - y) <=
                    (2.01 * kUnit<TestType> + 0x1p-21) * std::abs(y) + 1e-33);
          }
        }
        REQUIRE(out.padding_untouched());
      }
    }
  }
}

TEMPLATE_TEST_CASE("gather_rows copies rows and refuses others", "[gather_rows]", float, bf16) {
  cpu::ThreadPool pool(2);
  auto x = TestMatrix<TestType>::random(5, 19, 1);
  const std::vector<std::int32_t> rows = {4, 0, 0, 3, 1, 2, 4};
  TestMatrix<TestType> out(7, 19);
  cpu::gather_rows(GatherRowsArgs<TestType>{x.view(), {rows.data(), {7}}, out.view()}, {&pool});
  for (std::int64_t i = 0; i < 7; ++i) {
    for (std::int64_t j = 0; j < 19; ++j)
      REQUIRE(out.value(i, j) == x.value(rows[static_cast<std::size_t>(i)], j));
  }
  REQUIRE(out.padding_untouched());
  for (std::int32_t bad : {-1, 5}) {
    TestMatrix<TestType> one(1, 19);
    CHECK_THROWS_AS(
        cpu::gather_rows(GatherRowsArgs<TestType>{x.view(), {&bad, {1}}, one.view()}, {&pool}),
        ShapeError);
  }
}
