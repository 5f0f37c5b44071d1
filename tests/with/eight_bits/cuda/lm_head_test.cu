// Logits by weights in 8-bit floats: results in float, beside float64 and beside the same matrix in
// bfloat16, of a sequence alone and of many.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "with/eight_bits/cuda/fp8_problem.cuh"

namespace nanovllm::test {
namespace {

/// x [m, k] by lm_head [n, k], which is also there in bfloat16, to logits.
struct Logits {
  Fp8Problem problem;
  GpuMatrix<bf16> values;
  cuda::DeviceMatrix<bf16> wide;
  GpuMatrix<float> y, y_wide;

  Logits(const Gpu& gpu, std::int64_t m, std::int64_t n, std::int64_t k)
      : problem(gpu, m, n, k, false, false),
        values(GpuMatrix<bf16>::random(n, k, 2, {}, -0.25, 0.25)),
        wide(n, k),
        y(m, n, {8, 0}),
        y_wide(m, n) {
    // As Fp8Problem has them.
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = i % 3; j < k; j += 3)
        values(i, j) = bf16(static_cast<float>(values.value(i, j)) * 0x1p-9f);
    wide.set_rows(0, MatrixView<const bf16>(&values(0, 0), {n, k}));
  }

  void run(cuda::OpState& state, std::int64_t begin, std::int64_t end) {
    run_op(LinearArgs<bf16, cuda::Fp8Matrix, float>{problem.x_rows(begin, end), &problem.weight,
                                                    y.view().slice(begin, end)},
           state);
  }
  void run_wide(cuda::OpState& state) {
    run_op(LinearArgs<bf16, cuda::DeviceMatrix<bf16>, float>{problem.x_rows(0, problem.m), &wide,
                                                             y_wide.view()},
           state);
  }

  struct Errors {
    double of_float64;  ///< the largest distance from the products of the 8-bit weights
    double of_bf16;     ///< and from the logits by those in bfloat16, as parts of their bounds
  };
  /// Of every `step`-th column. The bounds are six standard deviations of what is rounded, and
  /// those of sums in float32, of which products of 8-bit floats keep 13 bits.
  [[nodiscard]] Errors errors(bool rounds_x, std::int64_t step = 1) {
    y.download(), y_wide.download();
    REQUIRE(y.surroundings_intact());
    Worst of_float64, of_bf16;
    for (std::int64_t i = 0; i < problem.m; ++i) {
      const Fp8Problem::Row a = problem.row(i, rounds_x);
      for (std::int64_t j = 0; j < problem.n; j += step) {
        double exact = 0, size = 0, of_x = 0, of_weights = 0;
        for (std::int64_t c = 0; c < problem.k; ++c) {
          const double x = a.values[std::size_t(c)], w = problem.content.value(j, c);
          const double x_error = a.error[std::size_t(c)] * w,
                       w_error = x * (w - values.value(j, c));
          exact += x * w, size += std::abs(x * w);
          of_x += x_error * x_error / 3, of_weights += w_error * w_error;
        }
        const double sums = 8 * 0x1p-24 * std::sqrt(double(problem.k) + 1) * size;
        const double bound = 6 * std::sqrt(of_x) + (rounds_x ? 0x1p-13 * size : sums) + 1e-6;
        of_float64.add(y.value(i, j), exact, bound);
        of_bf16.add(y.value(i, j), y_wide.value(i, j), bound + sums + 6 * std::sqrt(of_weights));
      }
    }
    return {of_float64.ratio(), of_bf16.ratio()};
  }
};

}  // namespace

TEST_CASE("logits by 8-bit weights equal float64 and are near to those by bfloat16") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  for (const std::int64_t m : {1, 2, 8, 17, 64, 200}) {
    // Blocks of eight warps and of four; the last is no shape for the tensor cores' products.
    for (const auto& [n, k] : {std::pair{512, 1024}, {4864, 264}, {9088, 128}, {77, 130}}) {
      CAPTURE(m, n, k);
      Logits logits(gpu, m, n, k);
      poison_shared_memory(gpu.context);
      logits.run(*state, 0, m);
      logits.run_wide(*state);
      gpu.sync();
      const auto [of_float64, of_bf16] = logits.errors(m > cuda::kMaxFp8FewRows);
      CHECK(of_float64 <= 1);
      CHECK(of_bf16 <= 1);
      CHECK(of_bf16 > 1e-3);  // they are not the same numbers
    }
  }
}

TEST_CASE("more than a few rows have their logits by products of 8-bit floats on Hopper") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!cuda::Fp8Products::is_available(gpu.context)) return;
  cuda::Fp8Products products;
  for (const bool tuned : {false, true}) {
    for (const std::int64_t m : {17, 24, 64, 200}) {
      for (const auto& [n, k] : {std::pair{512, 1024}, {4864, 264}}) {
        CAPTURE(tuned, m, n, k);
        Logits logits(gpu, m, n, k);
        const std::vector<const cuda::Fp8Matrix*> weights{&logits.problem.weight};
        if (tuned) products.tune<float>(weights, false, m, gpu.context);
        const cuda::Fp8LayerOf<float> layer{.x = logits.problem.x_rows(0, m),
                                            .weight = logits.problem.weight.view(),
                                            .y = logits.y.view()};
        REQUIRE(products.run(layer, gpu.context));
        gpu.sync();
        CHECK(logits.errors(true).of_float64 <= 1);
      }
    }
  }
}

TEST_CASE("a row's logits by 8-bit weights have the same bits alone and among 16") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  for (const std::int64_t n : {512, 4864, 9088}) {
    Logits together(gpu, 16, n, 1160), apart(gpu, 16, n, 1160);
    together.run(*state, 0, 16);
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 3}, {3, 11}, {11, 16}})
      apart.run(*state, begin, end);
    gpu.sync();
    together.y.download(), apart.y.download();
    CHECK(apart.y.same_bits(together.y));
  }
}

TEST_CASE("logits of a whole vocabulary by 8-bit weights, with rows that scratch memory lacks") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  for (const std::int64_t m : {1, 17, 63}) {  // 64 rows of floats are more than 32 MiB
    CAPTURE(m);
    Logits logits(gpu, m, 151936, 128);
    logits.run(*state, 0, m);
    logits.run_wide(*state);
    gpu.sync();
    const auto [of_float64, of_bf16] = logits.errors(m > cuda::kMaxFp8FewRows, 61);
    CHECK(of_float64 <= 1);
    CHECK(of_bf16 <= 1);
    // Captured, it gives the same bits.
    GpuMatrix<float> eager(m, 151936, {8, 0});
    std::swap(eager, logits.y);
    const auto graph = cuda::Graph::capture(gpu.context.stream, [&] { logits.run(*state, 0, m); });
    graph.launch(gpu.context.stream);
    gpu.sync();
    logits.y.download();
    CHECK(logits.y.same_bits(eager));
  }
}

}  // namespace nanovllm::test
