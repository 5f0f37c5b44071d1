// The ops of a mixture of experts on the CPU backend.

#include "cpu/op_test.hpp"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "nanovllm/with/moe/cpu/ops.hpp"
#include "with/moe/expert_cases.hpp"

using namespace nanovllm;
namespace ops = nanovllm::test::ops;

TEST_CASE("route_experts is the formula of its contract", "[ops][moe]") {
  CpuBackend backend{BackendConfig{}};
  ops::route_experts_cases(backend);
  ops::route_ties_case(backend);
  ops::route_counts_cases(backend);
  ops::route_shape_cases(backend);
}

TEMPLATE_TEST_CASE("expert_mlp is the formula of its contract", "[ops][moe]", float, bf16, half) {
  for (const cpu::Isa isa : test::available_isas()) {
    for (const int threads : {1, 3}) {
      INFO(cpu::name(isa) << ", " << threads << " threads");
      CpuBackend backend({.num_threads = threads}, isa);
      ops::expert_mlp_cases<TestType>(backend);
      ops::expert_mlp_shape_cases<TestType>(backend);
    }
  }
}

TEST_CASE("expert_mlp refuses an id that is no expert's", "[ops][moe]") {
  CpuBackend backend{BackendConfig{}};
  const ops::TestExperts<CpuBackend, float> experts(backend, 3, 8, 4);
  std::vector<float> x(8), weight{1.f};
  const auto run = [&](std::int32_t id, std::int64_t num_experts) {
    backend.run(ExpertMlpArgs<float, CpuBackend::Matrix<float>>{.x = {x.data(), {1, 8}},
                                                                .ids = {&id, {1, 1}},
                                                                .weights = {weight.data(), {1, 1}},
                                                                .experts = experts.list,
                                                                .out = {x.data(), {1, 8}},
                                                                .num_experts = num_experts});
  };
  for (const std::int32_t id : {-1, 3})
    CHECK_THROWS_WITH(run(id, 0), Catch::Matchers::Contains("ids must be in [0, 3)"));
  CHECK_NOTHROW(run(4, 5));  // elsewhere
  CHECK_THROWS_WITH(run(5, 5), Catch::Matchers::Contains("ids must be in [0, 5)"));
}

TEMPLATE_TEST_CASE("a row of expert_mlp depends on that row alone, bit for bit", "[ops][moe]",
                   float, bf16) {
  using T = TestType;
  const ops::ExpertCase c{50, 72, 40, 9, 4};
  std::vector<std::vector<T>> results;
  for (const int threads : {1, 2, 4, 16}) {
    CpuBackend backend({.num_threads = threads});
    const ops::TestExperts<CpuBackend, T> experts(backend, c.experts, c.in, c.width);
    auto x = ops::Array<CpuBackend, T>::random(backend, c.n * c.in, 1);
    auto weights = ops::Array<CpuBackend, float>::random(backend, c.n * c.k, 2);
    ops::Array<CpuBackend, std::int32_t> ids(backend, ops::expert_ids(c));
    ops::Array<CpuBackend, T> together(backend, c.n * c.in), alone(backend, c.n * c.in);
    const ExpertMlpArgs<T, CpuBackend::Matrix<T>> all{.x = x.matrix(c.in),
                                                      .ids = ids.matrix(c.k),
                                                      .weights = weights.matrix(c.k),
                                                      .experts = experts.list,
                                                      .out = together.matrix(c.in)};
    backend.run(all);
    for (std::int64_t i = 0; i < c.n; ++i) {
      auto one = all;
      one.x = one.x.slice(i, i + 1), one.ids = one.ids.slice(i, i + 1);
      one.weights = one.weights.slice(i, i + 1);
      one.out = alone.matrix(c.in).slice(i, i + 1);
      backend.run(one);
    }
    together.download(), alone.download();
    CHECK(ops::same_bits(together.host, alone.host));
    results.push_back(together.host);
  }
  for (const auto& other : results) CHECK(ops::same_bits(other, results[0]));
}

TEST_CASE("expert_mlp multiplies by 8-bit floats as by their values", "[ops][moe]") {
  const std::int64_t n = 6, in = 160, width = 136;
  CpuBackend backend({.num_threads = 2});
  std::vector<Expert<cpu::Fp8Matrix>> stored;
  std::vector<Expert<CpuBackend::Matrix<float>>> widened;
  const auto both = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                        cpu::Fp8Matrix& eight, CpuBackend::Matrix<float>& wide) {
    auto values = ops::Array<CpuBackend, float>::random(backend, rows * cols, seed);
    eight.set_rows(0, MatrixView<const float>(values.data(), {rows, cols}));
    for (std::int64_t i = 0; i < rows; ++i) eight.copy_row(i, values.data() + i * cols);
    wide.set_rows(0, MatrixView<const float>(values.data(), {rows, cols}));
  };
  for (std::uint64_t e = 0; e < 3; ++e) {
    stored.push_back({{2 * width, in}, {in, width}});
    widened.push_back({{2 * width, in}, {in, width}});
    both(2 * width, in, 2 * e, stored.back().gate_up, widened.back().gate_up);
    both(in, width, 2 * e + 1, stored.back().down, widened.back().down);
  }
  auto x = ops::Array<CpuBackend, float>::random(backend, n * in, 8);
  auto weights = ops::Array<CpuBackend, float>::random(backend, n * 2, 9);
  ops::Array<CpuBackend, std::int32_t> ids(backend, ops::expert_ids({n, in, width, 3, 2}));
  ops::Array<CpuBackend, float> a(backend, n * in), b(backend, n * in);
  const auto run = [&](const auto& experts, auto& out) {
    using Matrix = std::remove_cvref_t<decltype(experts[0].down)>;
    backend.run(ExpertMlpArgs<float, Matrix>{x.matrix(in), ids.matrix(2), weights.matrix(2),
                                             experts, out.matrix(in)});
    out.download();
  };
  run(stored, a), run(widened, b);
  CHECK(ops::same_bits(a.host, b.host));
}
