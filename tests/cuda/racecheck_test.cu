// The kernels of a decode step on the smallest shapes that reach all of their parts, and those of a
// mixture of experts: short enough to run under compute-sanitizer, whose racecheck takes minutes
// for the other tests. `racecheck_test "[dense]"` and `"[sampler]"` are a few seconds each.
// `"[experts]"` runs the router, the plan, all products of experts and their sums. `"[fp8]"` runs
// the kernels of 8-bit floats, and `"[fp8]~[blas]"` those that are not cuBLASLt's. racecheck
// reports hazards in SwiGLU of 8-bit floats: lanes read scales, and the copy engine writes the next
// ones there. It does not follow that a lane's reads are ahead of `__syncwarp`, and the first
// lane's arrival, which the copy waits for, after it.

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/product.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/hopper/hopper.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/device_matrix.cuh"
#include "nanovllm/with/batch_invariant/hopper/linear.cuh"
#include "nanovllm/with/eight_bits/cuda/few_rows.cuh"
#include "nanovllm/with/eight_bits/cuda/matrix.cuh"
#include "nanovllm/with/eight_bits/cuda/products.cuh"
#include "nanovllm/with/eight_bits/cuda/quantise.cuh"
#include "nanovllm/with/eight_bits/cuda/swiglu.cuh"
#include "nanovllm/with/moe/cuda/fp8_ops.cuh"
#include "nanovllm/with/moe/cuda/ops.cuh"
#include "nanovllm/with/moe/cuda/plan.cuh"
#include "nanovllm/with/moe/ops.hpp"
#include "with/eight_bits/cuda/fp8_problem.cuh"

namespace nanovllm::test {
namespace {

void check(Product& product, const Gpu& gpu) {
  gpu.sync();
  product.y.download();
  CHECK(product.y.guards_intact());
  for (const bf16 value : product.y.host) CHECK(std::isfinite(float(value)));
}

/// Rows in device memory that has no initial value; `fill` writes their elements alone. So
/// initcheck sees reads of elements that no kernel has written and of what lies between rows, and
/// memcheck sees reads beyond the last row.
class BareRows {
 public:
  BareRows(std::int64_t rows, std::int64_t cols, std::int64_t pad, std::int64_t shift = 0)
      : rows_(rows),
        cols_(cols),
        stride_(cols + pad),
        shift_(shift),
        memory_(static_cast<std::size_t>(shift + (rows - 1) * stride_ + cols)) {}

  [[nodiscard]] MatrixView<bf16> view() {
    return {memory_.data() + shift_, {rows_, cols_}, {stride_, 1}};
  }
  [[nodiscard]] MatrixView<const bf16> input() {
    return {memory_.data() + shift_, {rows_, cols_}, {stride_, 1}};
  }
  BareRows& fill(std::uint64_t seed, double low, double high) {
    const auto size = static_cast<std::size_t>(rows_ * cols_);
    const std::vector<bf16> values = GpuArray<bf16>::random(size, seed, low, high).host;
    copy(memory_.data() + shift_, stride_, values.data(), cols_, cudaMemcpyHostToDevice);
    return *this;
  }
  [[nodiscard]] bool is_finite() {
    std::vector<bf16> values(static_cast<std::size_t>(rows_ * cols_));
    copy(values.data(), cols_, memory_.data() + shift_, stride_, cudaMemcpyDeviceToHost);
    for (const bf16 value : values)
      if (!std::isfinite(float(value))) return false;
    return true;
  }

 private:
  void copy(bf16* to, std::int64_t to_stride, const bf16* from, std::int64_t from_stride,
            cudaMemcpyKind kind) {
    const auto bytes = [](std::int64_t count) {
      return static_cast<std::size_t>(count) * sizeof(bf16);
    };
    cuda::check_cuda(cudaMemcpy2D(to, bytes(to_stride), from, bytes(from_stride), bytes(cols_),
                                  static_cast<std::size_t>(rows_), kind),
                     "cudaMemcpy2D");
    cuda::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  std::int64_t rows_, cols_, stride_, shift_;
  cuda::DeviceBuffer<bf16> memory_;
};

/// A weight of 8-bit floats in memory that only `quantise_weight` has written.
struct BareFp8 {
  BareRows from;
  std::int64_t rows, cols, stride, groups;
  cuda::DeviceBuffer<fp8_e4m3> data;
  cuda::DeviceBuffer<float> scales, blocks;

  BareFp8(const Gpu& gpu, std::int64_t rows_in, std::int64_t cols_in, std::int64_t pad,
          std::int64_t shift)
      : from(rows_in, cols_in, pad, shift),
        rows(rows_in),
        cols(cols_in),
        stride(align_up(cols, std::int64_t{128})),
        groups(stride / 128),
        data(static_cast<std::size_t>(rows * stride)),
        scales(static_cast<std::size_t>(groups * rows)),
        blocks(static_cast<std::size_t>(groups * ceil_div(rows, std::int64_t{128}))) {
    cuda::quantise_weight(from.fill(2, -.1, .1).input(),
                          {.data = data.data(),
                           .scales = scales.data(),
                           .blocks = blocks.data(),
                           .stride = stride,
                           .scale_stride = rows,
                           .block_stride = groups},
                          gpu.context);
    gpu.sync();  // products read weights ahead of waiting for the kernel before them
  }
  /// Of the first `count` rows.
  [[nodiscard]] cuda::Fp8View view(std::int64_t count) const {
    return {.data = data.data(),
            .scales = scales.data(),
            .rows = count,
            .cols = cols,
            .stride = stride,
            .scale_stride = rows};
  }
};

/// `count` experts of random elements.
template <class Matrix>
std::vector<Expert<Matrix>> random_experts(const Gpu& gpu, std::int64_t count, std::int64_t in,
                                           std::int64_t width) {
  auto out = make_experts<Matrix>(count, in, width);
  std::uint64_t seed = 20;
  const auto fill = [&](Matrix& matrix) {
    const auto size = static_cast<std::size_t>(matrix.rows() * matrix.cols());
    const std::vector<bf16> values = GpuArray<bf16>::random(size, seed++, -.1, .1).host;
    const MatrixView<const bf16> view(values.data(), {matrix.rows(), matrix.cols()});
    if constexpr (requires { matrix.set_rows(0, view, gpu.context); }) {
      matrix.set_rows(0, view, gpu.context);
    } else {
      matrix.set_rows(0, view, gpu.context.stream);
    }
    gpu.sync();
  };
  for (Expert<Matrix>& expert : out) fill(expert.gate_up), fill(expert.down);
  return out;
}

/// Sizes of a mixture of `all` experts, of which `here` are here, from `first` on.
struct ExpertsCase {
  std::int64_t n, in, width, all, k, first, here;
};

/// Routes `n` rows and multiplies by their experts. Rows have `pad` elements between them and
/// `shift` in front. Scratch memory has no initial value.
template <class Matrix>
void run_experts(const Gpu& gpu, const ExpertsCase& c, std::int64_t pad = 8,
                 std::int64_t shift = 0) {
  INFO(c.n << " x " << c.in << " -> 2 x " << c.width << ", " << c.k << " of " << c.all);
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  state->context.num_sms = 2;  // so that blocks that stay take several tiles
  const auto experts = random_experts<Matrix>(gpu, c.here, c.in, c.width);
  BareRows x(c.n, c.in, pad, shift), out(c.n, c.in, pad, shift);
  x.fill(1, -2, 2);
  GpuArray<float> logits = GpuArray<float>::random(static_cast<std::size_t>(c.n * c.all), 5, -2, 2);
  const auto pairs = static_cast<std::size_t>(c.n * c.k);
  cuda::DeviceBuffer<std::int32_t> ids(pairs);
  cuda::DeviceBuffer<float> weights(pairs);
  GpuArray<std::int64_t> counts(std::vector<std::int64_t>(static_cast<std::size_t>(c.all)));
  run_op(RouteExpertsArgs{.logits = {logits.data(), {c.n, c.all}},
                          .ids = {ids.data(), {c.n, c.k}},
                          .weights = {weights.data(), {c.n, c.k}},
                          .normalise = true,
                          .counts = {counts.data(), {c.all}}},
         *state);
  run_op(ExpertMlpArgs<bf16, Matrix>{.x = x.input(),
                                     .ids = {ids.data(), {c.n, c.k}},
                                     .weights = {weights.data(), {c.n, c.k}},
                                     .experts = experts,
                                     .out = out.view(),
                                     .first_expert = c.first,
                                     .num_experts = c.all},
         *state);
  gpu.sync();
  CHECK(out.is_finite());
  counts.download();
  CHECK(std::accumulate(counts.host.begin(), counts.host.end(), std::int64_t{0}) == c.n * c.k);
}

/// A few tokens; tiles of 8, 16, 32 and 64 pairs; on Hopper wgmma's of 128.
template <class Matrix>
void run_all_experts(const Gpu& gpu) {
  for (const auto& [n, all, k] : {std::array<std::int64_t, 3>{2, 5, 3},
                                  {5, 5, 1},
                                  {10, 4, 2},
                                  {30, 2, 1},
                                  {40, 2, 1},
                                  {130, 2, 1}}) {
    run_experts<Matrix>(gpu, {n, 904, 72, all, k, 0, all});  // more than the rings hold
    run_experts<Matrix>(gpu, {n, 72, 904, all, k, 1, all - 1});
  }
}

}  // namespace

TEST_CASE("routers of each size, tiny", "[racecheck][experts]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const std::int64_t all : {5, 200, 600})
    run_experts<cuda::DeviceMatrix<bf16>>(gpu, {7, 8, 8, all, 3, 0, 3});
}

TEST_CASE("experts of 16 bits, tiny", "[racecheck][experts]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  run_all_experts<cuda::DeviceMatrix<bf16>>(gpu);
  run_experts<cuda::DeviceMatrix<bf16>>(gpu, {5, 77, 35, 4, 2, 0, 4}, 3, 1);  // without vectors
}

TEST_CASE("experts of 8 bits, tiny", "[racecheck][experts][fp8]") {
  if (!has_gpu()) return;
  run_all_experts<cuda::Fp8Matrix>(Gpu());
}

TEST_CASE("small_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const std::int64_t m : {2, 9}) {
    Product p(m, 9, 1544);  // more than the ring holds
    for (const bool normed : {true, false}) {
      REQUIRE(cuda::small_m_linear(p.layer(true, normed), 4, gpu.context));
      REQUIRE(cuda::small_m_linear(p.layer(false, normed, true), normed ? 4 : 2, gpu.context));
    }
    REQUIRE(cuda::small_m_linear(p.layer(false, false, true), 1, gpu.context));
    check(p, gpu);
  }
}

TEST_CASE("mid_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  Product p(9, 16, 1024);
  for (const cuda::ProductKind kind : kProductKinds) {
    for (int form = 0; form < cuda::kMidMForms.size(kind); ++form)
      REQUIRE(cuda::mid_m_linear(p.layer(kind, kind != cuda::ProductKind::gated), form, maps,
                                 gpu.context));
  }
  check(p, gpu);
}

TEST_CASE("wide_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  Product p(65, 16, 1024);
  for (const cuda::ProductKind kind : kProductKinds) {
    for (int form = 0; form < cuda::kWideMForms.size(kind); ++form)
      REQUIRE(cuda::wide_m_linear(p.layer(kind, kind == cuda::ProductKind::plain), form, maps,
                                  gpu.context));
  }
  check(p, gpu);
}

TEST_CASE("batch-invariant products, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const cuda::BatchInvariantBlock block : cuda::kBatchInvariantBlocks) {
    Product p(9, 16, 512);
    for (const bool accumulate : {false, true})
      cuda::batch_invariant_linear(p.rows(), p.matrix(false), p.out(), accumulate, block, maps,
                                   gpu.context);
    check(p, gpu);
  }
}

TEST_CASE("few rows by 8-bit weights, tiny", "[racecheck][fp8]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  cuda::Context one_sm = gpu.context;
  one_sm.num_sms = 1;  // as if: then blocks of two tiles are worth while
  struct Case {
    std::int64_t m, n, k, pad, shift;
  };
  // Two steps of 1024 columns, a group of 8 columns, rows after the last tile; up to 8 rows, more
  // than 8; rows that cannot be read 16 bytes at a time.
  for (const Case& c : {Case{3, 37, 1160, 8, 0}, {11, 37, 1160, 8, 0}, {11, 37, 77, 3, 1}}) {
    const BareFp8 weight(gpu, 2 * c.n, c.k, c.pad, c.shift);
    BareRows x(c.m, c.k, c.pad, c.shift), norm(1, c.k, 0, c.shift);
    x.fill(1, -2, 2), norm.fill(3, .5, 1.5);
    for (const cuda::Context& context : {gpu.context, one_sm}) {
      for (const bool gated : {false, true}) {
        for (const bool normed : {false, true}) {
          BareRows y(c.m, c.n, 8);
          cuda::Fp8Layer layer{.x = x.input(),
                               .weight = weight.view(gated ? 2 * c.n : c.n),
                               .y = y.view(),
                               .gated = gated};
          if (normed) layer.norm = {VectorView<const bf16>(norm.input().data, {c.k}), 1e-6f};
          cuda::fp8_few_rows(layer, context);
          layer.accumulate = true;  // reads the y that is there now
          if (!gated) cuda::fp8_few_rows(layer, context);
          gpu.sync();
          CHECK(y.is_finite());
        }
      }
    }
  }
}

TEST_CASE("rounding to 8 bits, tiny", "[racecheck][fp8]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  struct Case {
    std::int64_t m, k, pad, shift;
  };
  for (const Case& c : {Case{5, 1160, 8, 0}, {3, 77, 3, 1}}) {
    BareRows x(c.m, c.k, c.pad, c.shift), norm(1, c.k, 0, c.shift);
    x.fill(1, -2, 2), norm.fill(3, .5, 1.5);
    const std::int64_t stride = align_up(c.k, std::int64_t{128});
    for (const bool normed : {false, true}) {
      cuda::DeviceBuffer<fp8_e4m3> data(static_cast<std::size_t>(c.m * stride));
      cuda::DeviceBuffer<float> scales(static_cast<std::size_t>(stride / 128 * c.m));
      const VectorView<const bf16> weight(norm.input().data, {c.k});
      cuda::quantise_rows(x.input(), {normed ? weight : VectorView<const bf16>{}, 1e-6f},
                          {data.data(), scales.data(), stride, c.m}, gpu.context);
      gpu.sync();
      for (const fp8_e4m3 value : from_device(data.data(), data.size()))
        CHECK(std::isfinite(float(value)));
      for (const float scale : from_device(scales.data(), scales.size())) CHECK(scale > 0);
    }
  }
  // A weight of two blocks of rows; nothing is left unwritten.
  const BareFp8 weight(gpu, 130, 200, 8, 0);
  for (const fp8_e4m3 value : from_device(weight.data.data(), weight.data.size()))
    CHECK(std::isfinite(float(value)));
  for (const auto* const scales : {&weight.scales, &weight.blocks})
    for (const float scale : from_device(scales->data(), scales->size())) CHECK(scale > 0);
}

TEST_CASE("SwiGLU of 8-bit floats, tiny", "[racecheck][fp8]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  const std::int64_t m = 21, width = 52, k = 1544;  // more than the rings hold; a ragged tile
  BareRows x(m, k, 8), out(m, width, 8);
  x.fill(1, -2, 2);
  const BareFp8 weight(gpu, 2 * width, k, 8, 0);
  cuda::DeviceBuffer<fp8_e4m3> data(static_cast<std::size_t>(m * weight.stride));
  cuda::DeviceBuffer<float> scales(static_cast<std::size_t>(24 * weight.groups));
  const cuda::Fp8Activations rounded{data.data(), scales.data(), weight.stride, 24};
  cuda::quantise_rows(x.input(), {}, rounded, gpu.context);
  for (int form = 0; form < cuda::Fp8SwigluOf<cuda::Hopper>::num_forms(m, 2 * width); ++form)
    REQUIRE(cuda::Fp8SwigluOf<cuda::Hopper>::run(rounded, m, weight.view(2 * width), out.view(),
                                                 form, maps, gpu.context));
  gpu.sync();
  CHECK(out.is_finite());
}

TEST_CASE("products of 8-bit floats, tiny", "[racecheck][fp8][blas]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::Fp8Products products;
  const std::int64_t m = 21, n = 80, k = 264;  // scratch memory takes the product of 24 rows
  BareRows x(m, k, 8), norm(1, k, 0), y(m, n, 8);
  x.fill(1, -2, 2), norm.fill(3, .5, 1.5);
  const std::vector<bf16> values =
      GpuArray<bf16>::random(static_cast<std::size_t>(n * k), 2, -.1, .1).host;
  cuda::Fp8Matrix weight(n, k);
  weight.set_rows(0, MatrixView<const bf16>(values.data(), {n, k}), gpu.context);
  gpu.sync();
  cuda::Fp8Layer layer{.x = x.input(), .weight = weight.view(), .y = y.view()};
  REQUIRE(products.run(layer, gpu.context));
  layer.norm = {VectorView<const bf16>(norm.input().data, {k}), 1e-6f};
  layer.accumulate = true;  // reads the y that is there now
  REQUIRE(products.run(layer, gpu.context));
  gpu.sync();
  CHECK(y.is_finite());
}

TEST_CASE("the sampler, tiny", "[racecheck][sampler]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  std::mt19937 random(3);
  for (const std::int64_t rows : {1, 3}) {
    Batch batch(9001);
    for (std::int64_t r = 0; r < rows; ++r)
      batch.add(random_row(batch.vocab, Shape::normal, random),
                {.temperature = r % 2 == 0 ? 1.f : 0.f, .seed = random()});
    DeviceBatch device(batch);
    cuda::SamplerWorkspace workspace(rows, batch.vocab, gpu.context);
    SampleArgs args = device.args();
    cuda::sample(args, workspace, gpu.context);
    gpu.sync();
    const Outputs expected = device.outputs();
    args.plain = true;
    for (int i = 0; i < 2; ++i) {  // the second after what the first left in the workspace
      cuda::sample(args, workspace, gpu.context);
      gpu.sync();
      CHECK(device.outputs().same_bits(expected));
    }
    for (SamplingRow& row : batch.rows) row.temperature = 1, row.top_p = .9f;  // by clusters
    device.load(batch);
    cuda::sample(device.args(), workspace, gpu.context);
    gpu.sync();
    compare(batch, device.outputs(), batch.expected());
  }
}

}  // namespace nanovllm::test
