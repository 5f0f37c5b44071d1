// Dense layers by weights in 8-bit floats: few rows, more rows, and what stands around them.

#include "nanovllm/with/eight_bits/cuda/ops.cuh"

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "nanovllm/cuda/elementwise/rowwise.cuh"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "with/eight_bits/cuda/fp8_problem.cuh"

namespace nanovllm::test {
namespace {

void check_few_rows(const Gpu& gpu, Fp8Problem problem) {
  CAPTURE(problem.m, problem.n, problem.k, problem.has_norm, problem.gated, problem.accumulate);
  poison_shared_memory(gpu.context);
  cuda::fp8_few_rows(problem.layer(0, problem.m), gpu.context);
  gpu.sync();
  CHECK(problem.worst(false) <= 1);
}

}  // namespace

TEST_CASE("few rows by 8-bit weights equal float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const int m : {1, 3, 8, 9, 16}) {
    for (const int k : {8, 128, 264, 1024, 1544, 4104}) {
      check_few_rows(gpu, {gpu, m, 77, k, false, false});
      check_few_rows(gpu, {gpu, m, 77, k, true, false, true});
      check_few_rows(gpu, {gpu, m, 77, k, true, true});
      check_few_rows(gpu, {gpu, m, 40, k, false, true});
    }
    // Blocks of four warps, of one tile and of two.
    for (const int n : {4300, 9000}) {
      check_few_rows(gpu, {gpu, m, n, 256, false, false, true});
      check_few_rows(gpu, {gpu, m, n, 1032, true, false});
      check_few_rows(gpu, {gpu, m, n / 2, 256, true, true});
      check_few_rows(gpu, {gpu, m, n / 2, 640, false, true});
    }
    // Rows that cannot be read 16 bytes at a time.
    check_few_rows(gpu, {gpu, m, 33, 77, false, false, true, {3, 1}, {3, 1}});
    check_few_rows(gpu, {gpu, m, 33, 1100, true, true, false, {3, 1}, {3, 1}});
  }
}

TEST_CASE("a row by 8-bit weights has the same bits alone and among others") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const bool gated : {false, true}) {
    for (const std::int64_t n : {77, 4500, 9000}) {
      Fp8Problem problem(gpu, 16, n, 1160, true, gated);
      cuda::fp8_few_rows(problem.layer(0, 16), gpu.context);
      gpu.sync();
      const std::vector<bf16> together = problem.result();
      for (const auto& [begin, end] : {std::pair{0, 1}, {5, 6}, {3, 11}, {2, 13}, {15, 16}}) {
        cuda::fp8_few_rows(problem.layer(begin, end), gpu.context);
        gpu.sync();
        CHECK(std::memcmp(problem.result().data(), together.data(),
                          together.size() * sizeof(bf16)) == 0);
      }
    }
  }
}

TEST_CASE("every number of 8 bits is multiplied exactly") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const StoredRows rows(256, 256, 1);
  cuda::Fp8Matrix matrix(256, 256);
  REQUIRE(matrix.set_rows(0, rows.view(), gpu.context));
  gpu.sync();
  const Fp8Content content(matrix);
  // A row of x that picks one column.
  GpuMatrix<bf16> x(16, 256), y(16, 256);
  for (std::int64_t begin = 0; begin < 256; begin += 16) {
    for (std::int64_t i = 0; i < 16; ++i)
      for (std::int64_t j = 0; j < 256; ++j) x(i, j) = bf16(j == begin + i ? 1.f : 0.f);
    x.upload();
    const auto view = x.view();
    cuda::fp8_few_rows(
        {.x = {view.data, view.extents, view.strides}, .weight = matrix.view(), .y = y.view()},
        gpu.context);
    gpu.sync();
    y.download();
    for (std::int64_t i = 0; i < 16; ++i)
      for (std::int64_t j = 0; j < 256; ++j)
        REQUIRE(float(y(i, j)) ==
                float(bf16(content.stored(j, begin + i) * content.scale(j, begin + i))));
  }
}

TEST_CASE("more rows by 8-bit weights, rounded to 8 bits themselves, equal float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::Fp8Products products;
  std::int64_t done = 0;
  for (const bool tuned : {false, true}) {
    for (const int m : {17, 20, 24, 33, 64, 130, 257, 600}) {
      for (const auto& [n, k] : {std::pair{64, 128}, {80, 264}, {192, 1544}}) {
        for (const bool norm : {false, true}) {
          for (const bool add : {false, true}) {
            CAPTURE(m, n, k, norm, add, tuned);
            Fp8Problem problem(gpu, m, n, k, norm, false, add);
            if (tuned) {
              const std::vector<const cuda::Fp8Matrix*> weights{&problem.weight};
              products.tune(weights, add, m, gpu.context);
            }
            if (!products.run(problem.layer(0, m), gpu.context)) continue;
            gpu.sync();
            ++done;
            CHECK(problem.worst(true) <= 1);
          }
        }
      }
    }
  }
  // An engine of so few rows a step rounds none: nothing to choose, and no error.
  Fp8Problem few(gpu, 4, 64, 128, false, false);
  const std::vector<const cuda::Fp8Matrix*> weights{&few.weight};
  for (const int m : {1, 7, 16}) CHECK_NOTHROW(products.tune(weights, false, m, gpu.context));
  if (gpu.is_hopper()) CHECK(done == 2 * 8 * 3 * 4);
}

TEST_CASE("SwiGLU of rows rounded to 8 bits equals float64 in every form") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const int m : {1, 7, 17, 40, 63, 64}) {
    // Widths of less than a tile, of a ragged last one, and beyond the last row of scales.
    for (const auto& [width, k] : {std::pair{4, 128}, {48, 264}, {52, 1544}, {140, 4104}}) {
      for (const bool norm : {false, true}) {
        Fp8Problem problem(gpu, m, width, k, norm, true);
        const cuda::Fp8Layer layer = problem.layer(0, m);
        cuda::DeviceBuffer<fp8_e4m3> data(
            static_cast<std::size_t>(cuda::kMaxMidMRows * layer.weight.stride));
        cuda::DeviceBuffer<float> scales(
            static_cast<std::size_t>(cuda::kMaxMidMRows * layer.weight.stride / 128));
        const cuda::Fp8Activations x{data.data(), scales.data(), layer.weight.stride,
                                     align_up(m, 8)};
        for (int form = 0; form < cuda::Fp8SwigluOf<cuda::Hopper>::num_forms(m, 2 * width);
             ++form) {
          CAPTURE(m, width, k, norm, form);
          problem.y = GpuMatrix<bf16>(m, width, {8, 0});
          poison_shared_memory(gpu.context);
          cuda::quantise_rows(layer.x, layer.norm, x, gpu.context);
          REQUIRE(cuda::Fp8SwigluOf<cuda::Hopper>::run(x, m, layer.weight, problem.y.view(), form,
                                                       maps, gpu.context));
          gpu.sync();
          CHECK(problem.worst(true) <= 1);
        }
      }
    }
  }
}

TEST_CASE("ops by 8-bit weights do what their parts do, for any number of rows") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  for (const int m : {1, 16, 17, 40, 129}) {
    for (const auto& [n, k] : {std::pair{64, 264}, {36, 1024}, {77, 130}}) {
      CAPTURE(m, n, k);
      Fp8Problem linear(gpu, m, n, k, false, false, true);
      const auto run_linear = [&] {
        run_op(LinearArgs<bf16, cuda::Fp8Matrix>{linear.x_rows(0, m), &linear.weight,
                                                 linear.y.view(), true},
               *state);
      };
      run_linear();
      gpu.sync();
      CHECK(linear.worst(true) <= 1);

      Fp8Problem gated(gpu, m, n, k, true, true);
      GpuMatrix<bf16> normed(m, k), gate_up(m, 2 * n);
      run_op(GatedLinearArgs<bf16, cuda::Fp8Matrix>{.x = gated.x_rows(0, m),
                                                    .norm = gated.ahead(),
                                                    .weight = &gated.weight,
                                                    .out = gated.y.view(),
                                                    .normed = normed.view(),
                                                    .gate_up = gate_up.view()},
             *state);
      gpu.sync();
      CHECK(gated.worst(true) <= 1);

      // Captured, it gives the same bits.
      Fp8Problem again(gpu, m, n, k, false, false);
      const auto run_again = [&] {
        run_op(LinearArgs<bf16, cuda::Fp8Matrix>{again.x_rows(0, m), &again.weight, again.y.view()},
               *state);
      };
      run_again();
      gpu.sync();
      const std::vector<bf16> eager = again.result();
      const auto graph = cuda::Graph::capture(gpu.context.stream, run_again);
      graph.launch(gpu.context.stream);
      gpu.sync();
      CHECK(std::memcmp(again.result().data(), eager.data(), eager.size() * sizeof(bf16)) == 0);
    }
  }
}

}  // namespace nanovllm::test
