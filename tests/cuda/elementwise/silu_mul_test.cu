#include "nanovllm/cuda/elementwise/rowwise.cuh"

#include "cuda/gpu_matrix.cuh"

namespace nanovllm::test {

namespace {

template <class T>
void check_rows(GpuMatrix<T>& gate_up, GpuMatrix<T>& out, std::int64_t rows, std::int64_t width) {
  Worst worst;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      const double gate = gate_up.value(i, j), up = gate_up.value(i, width + j);
      const double expected = gate / (1 + std::exp(-gate)) * up;
      // Below half's normal range a rounding errs by a constant; far below zero silu vanishes.
      const double tiny = std::is_same_v<T, half> ? 0x1p-24 * (1 + std::abs(up)) : 1e-30;
      // e^-x is off by |x| units of float32 where its argument is rounded.
      const double float_error = (8 + 2 * std::abs(gate)) * 0x1p-24;
      worst.add(out.value(i, j), expected,
                (2.01 * kUnit<T> + float_error) * std::abs(expected) + tiny);
    }
  }
  REQUIRE(worst.ratio() <= 1);
}

}  // namespace

TEMPLATE_TEST_CASE("silu_mul is the formula at every width and place", "[silu_mul]", float, bf16,
                   half) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  for (std::int64_t width : {1, 4, 7, 8, 12, 64, 100, 3072}) {
    for (std::int64_t rows : {0, 1, 9}) {
      for (const Placement& placement : kPlacements) {
        INFO(rows << " x " << width << ", pad " << placement.pad << ", shift " << placement.shift);
        auto gate_up = GpuMatrix<T>::random(rows, 2 * width, 1, placement, -30, 30);
        GpuMatrix<T> out(rows, width, placement);
        cuda::silu_mul(SiluMulArgs<T>{gate_up.view(), out.view()}, gpu.context);
        gpu.sync();
        out.download();
        check_rows(gate_up, out, rows, width);
        REQUIRE(out.surroundings_intact());
      }
    }
  }
}

TEMPLATE_TEST_CASE("silu_mul of many rows has the bits of each alone, every time", "[silu_mul]",
                   float, bf16) {
  if (!has_gpu()) return;
  using T = TestType;
  Gpu gpu;
  const std::int64_t rows = 1001, width = 3080;
  auto gate_up = GpuMatrix<T>::random(rows, 2 * width, 1, {}, -5, 5);
  GpuMatrix<T> out(rows, width), again(rows, width), alone(1, width);
  for (auto* to : {&out, &again})
    cuda::silu_mul(SiluMulArgs<T>{gate_up.view(), to->view()}, gpu.context);
  cuda::silu_mul(SiluMulArgs<T>{gate_up.view().slice(1000, 1001), alone.view()}, gpu.context);
  gpu.sync();
  out.download(), again.download(), alone.download();
  check_rows(gate_up, out, rows, width);
  REQUIRE(out.surroundings_intact());
  REQUIRE(again.same_bits(out));
  REQUIRE(alone.same_rows(out, 0, 1, 1000));
}

TEST_CASE("silu_mul at the ends of float32", "[silu_mul]") {
  if (!has_gpu()) return;
  Gpu gpu;
  const std::vector<float> gates = {0.f, -87.f, -88.5f, -100.f, -1e30f, 100.f, 1e30f, 1e-30f};
  const auto width = static_cast<std::int64_t>(gates.size());
  GpuMatrix<float> gate_up(1, 2 * width), out(1, width);
  GpuMatrix<bf16> gate_up16(1, 2 * width), out16(1, width);
  for (std::int64_t j = 0; j < width; ++j) {
    gate_up(0, j) = gates[static_cast<std::size_t>(j)], gate_up(0, width + j) = 1.f;
    gate_up16(0, j) = bf16(gate_up(0, j)), gate_up16(0, width + j) = bf16(1.f);
  }
  gate_up.upload(), gate_up16.upload();
  cuda::silu_mul(SiluMulArgs<float>{gate_up.view(), out.view()}, gpu.context);
  cuda::silu_mul(SiluMulArgs<bf16>{gate_up16.view(), out16.view()}, gpu.context);
  gpu.sync();
  out.download(), out16.download();
  for (std::int64_t j = 0; j < width; ++j) {
    const double gate = gate_up.value(0, j), gate16 = gate_up16.value(0, j);
    const double expected = gate / (1 + std::exp(-gate));
    const double expected16 = gate16 / (1 + std::exp(-gate16));
    CHECK(std::abs(out.value(0, j) - expected) <= 1e-5 * std::abs(expected) + 1e-35);
    CHECK(std::abs(out16.value(0, j) - expected16) <= 0x1p-8 * std::abs(expected16) + 1e-35);
  }
}

TEST_CASE("silu_mul refuses operands that do not fit", "[silu_mul]") {
  if (!has_gpu()) return;
  Gpu gpu;
  GpuMatrix<float> gate_up(2, 9), out(2, 4);
  CHECK_THROWS_AS(cuda::silu_mul(SiluMulArgs<float>{gate_up.view(), out.view()}, gpu.context),
                  ShapeError);
}

}  // namespace nanovllm::test
