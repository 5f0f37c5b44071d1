// Products by 8-bit weights against torch's: rounded activations to the bit, products within what
// the formats lose.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "with/eight_bits/cuda/fp8_problem.cuh"
#include "with/eight_bits/fp8_products.hpp"

namespace nanovllm::test {
namespace {

/// Operands on the device: `rows` rows of x, those of `torch` over and over, W and y.
struct TorchProblem {
  const TorchFp8Products& torch;
  std::int64_t rows;
  GpuMatrix<bf16> x, y;
  cuda::Fp8Matrix weight;

  TorchProblem(const Gpu& gpu, const TorchFp8Products& torch_in, std::int64_t rows_in,
               Placement placement = {8, 0})
      : torch(torch_in),
        rows(rows_in),
        x(rows, torch.k, placement),
        y(rows, torch.n, {8, 0}),
        weight(torch.n, torch.k) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < torch.k; ++j)
        x(i, j) = torch.x[static_cast<std::size_t>(i % torch.m * torch.k + j)];
    x.upload();
    REQUIRE(weight.set_rows(0, torch.weight_rows(), gpu.context));
    gpu.sync();
  }

  [[nodiscard]] MatrixView<const bf16> input() {
    const auto view = x.view();
    return {view.data, view.extents, view.strides};
  }
  [[nodiscard]] cuda::Fp8Layer layer() {
    return {.x = input(), .weight = weight.view(), .y = y.view()};
  }

  /// The largest error of y as a part of its bound. The result is rounded to bf16, by 2^-8 of it at
  /// the most. `part` is that of the sums, in units of the sum of their terms' absolute values.
  double worst(bool is_rounded, double part) {
    y.download();
    REQUIRE(y.surroundings_intact());
    Worst out;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < torch.n; ++j) {
        const std::int64_t row = i % torch.m;
        const auto& all = is_rounded ? torch.y_w8a8 : torch.y_w8a16;
        const double expected = all[static_cast<std::size_t>(row * torch.n + j)];
        const double of_sums = part * torch.size(row, j, is_rounded);
        out.add(y.value(i, j), expected, of_sums + kUnit<bf16> * (std::abs(expected) + of_sums));
      }
    }
    return out.ratio();
  }
};

}  // namespace

TEST_CASE("activations are rounded to 8 bits as torch rounds them, bit for bit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const TorchFp8Products torch;
  for (const Placement placement : kPlacements) {
    CAPTURE(placement.pad, placement.shift);
    TorchProblem problem(gpu, torch, torch.m, placement);
    const std::int64_t stride = 128 * torch.groups;
    cuda::DeviceBuffer<fp8_e4m3> data(static_cast<std::size_t>(torch.m * stride));
    cuda::DeviceBuffer<float> scales(static_cast<std::size_t>(torch.groups * torch.m));
    poison(data.data(), static_cast<std::int64_t>(data.size()), gpu.context);
    poison(scales.data(), static_cast<std::int64_t>(scales.size()), gpu.context);
    cuda::quantise_rows(problem.input(), {}, {data.data(), scales.data(), stride, torch.m},
                        gpu.context);
    gpu.sync();
    const auto q = from_device(data.data(), data.size());
    const auto s = from_device(scales.data(), scales.size());
    for (std::int64_t i = 0; i < torch.m; ++i) {
      CAPTURE(i);
      CHECK(std::memcmp(&q[static_cast<std::size_t>(i * stride)],
                        &torch.x_e4m3[static_cast<std::size_t>(i * torch.k)],
                        static_cast<std::size_t>(torch.k)) == 0);
      for (std::int64_t g = 0; g < torch.groups; ++g)
        CHECK(s[static_cast<std::size_t>(g * torch.m + i)] ==
              torch.x_scale[static_cast<std::size_t>(i * torch.groups + g)]);
    }
  }
}

// Four instructions of 32 columns add up a group of 128. Each shifts its products and the sum so
// far to the exponent of the largest of them, and drops what is below 2^-13 of that. What it drops
// has both signs. The bound takes 2^-13 of the sum of the terms' absolute values for an
// instruction, 2^-11 for a group. A simulation of this arithmetic on these operands gives, as parts
// of the bound:
//   as described 0.92; exact sums 0.81, which is the rounding to bf16
//   x not rounded to 8 bits 19; scales of x larger by 2^-8 1.7; scales of another group above 1000
TEST_CASE("products of rounded activations are those of torch") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const TorchFp8Products torch;
  cuda::Fp8Products products;
  std::int64_t done = 0;
  // A number that is no multiple of 8, torch's, and one at which scales of blocks are preferred.
  for (const std::int64_t rows : {std::int64_t{37}, torch.m, 5 * torch.m}) {
    CAPTURE(rows);
    TorchProblem problem(gpu, torch, rows);
    if (!products.run(problem.layer(), gpu.context)) continue;
    gpu.sync();
    ++done;
    CHECK(problem.worst(true, 0x1p-11) <= 1);
  }
  if (gpu.is_hopper()) CHECK(done == 3);
}

// An addition of the tensor cores is off by 2^-23 of the terms' absolute values at the most, and
// one of torch, in float32, by half of that; each side has k of them. Simulated: exact sums give
// 0.89 of the bound, x rounded to 8 bits 80, and results cut to bf16 instead of rounded 1.9.
TEST_CASE("products of few rows, which are not rounded, are those of torch") {
  if (!has_gpu()) return;
  const Gpu gpu;
  const TorchFp8Products torch;
  for (const std::int64_t rows : {8, 16}) {
    CAPTURE(rows);
    TorchProblem problem(gpu, torch, rows);
    cuda::fp8_few_rows(problem.layer(), gpu.context);
    gpu.sync();
    CHECK(problem.worst(false, 2 * double(torch.k) * 0x1p-23) <= 1);
  }
}

}  // namespace nanovllm::test
