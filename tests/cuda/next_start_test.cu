// When kernels let the next one start: decode attention reads its plan ahead of its own wait, which is
// right only if a kernel between the two has waited before it let others start. Here a kernel writes
// late, one with a norm follows, and one that reads at once.

#include <cstdint>
#include <vector>

#include "cuda/gpu_matrix.cuh"
#include "cuda/gpu_test.cuh"
#include "cuda/spend_time.cuh"
#include "nanovllm/cuda/elementwise/rms_norm.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/cuda/linear/tune/dense_tuner.cuh"
#include "nanovllm/cuda/op_state.cuh"

namespace nanovllm::test {
namespace {

/// Takes a millisecond and then writes `value`.
__global__ void write_late_kernel(int* to, int value) {
  cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
  spend_time(1'000'000);
  *to = value;
}

/// Reads without having waited.
__global__ void read_early_kernel(const int* from, int* seen) {
  *seen = __ldcg(from);
  cuda::grid_dependency_launch();
  cuda::grid_dependency_wait();
}

/// What a kernel after those that `op` enqueues reads early of what the one ahead of them writes.
class Between {
 public:
  explicit Between(const Gpu& gpu) : gpu_(gpu) {
    sees([] {});  // loads the kernels here, for that waits for the device
  }

  /// Whether it reads what is written; a kernel of another kind may stand after `op`.
  template <class Op>
  bool sees(const Op& op) {
    op();  // loads its kernels
    gpu_.sync();
    ++value_;
    cuda::launch(write_late_kernel, {.grid = 1, .block = 1}, gpu_.context, written_.data(), value_);
    op();
    cuda::launch(read_early_kernel, {.grid = 1, .block = 1}, gpu_.context, written_.data(),
                 seen_.data());
    gpu_.sync();
    seen_.download();
    return seen_.host[0] == value_;
  }

 private:
  const Gpu& gpu_;
  int value_ = 0;
  GpuArray<int> written_{1}, seen_{1};
};

constexpr std::int64_t kIn = 512, kOut = 400, kMost = 200;

/// Operands of a norm and of a product after it.
struct Operands {
  GpuMatrix<bf16> x = GpuMatrix<bf16>::random(kMost, kIn, 1);
  GpuMatrix<bf16> scale = GpuMatrix<bf16>::random(1, kIn, 2, {}, 0.25, 2);
  GpuMatrix<bf16> normed{kMost, kIn}, y{kMost, kOut};
  cuda::DeviceMatrix<bf16> weight{kOut, kIn};

  explicit Operands(const cuda::Context& context) {
    cuda::detail::fill_noise(weight.data(), kOut * kIn, context);
  }
  [[nodiscard]] MatrixView<const bf16> rows(std::int64_t m) { return {x.view().data, {m, kIn}}; }
  [[nodiscard]] InputNorm<bf16> norm() {
    return {VectorView<const bf16>(scale.row(0).data, {kIn}), 1e-6f};
  }
};

}  // namespace

TEST_CASE("a kernel that waits first lets the next one read early, another does not") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.can_overlap) return;
  Operands p(gpu.context);
  Between between(gpu);
  for (const std::int64_t m : {1, 12}) {
    for (const auto start : {cuda::NextStart::after_wait, cuda::NextStart::at_once}) {
      CAPTURE(m, static_cast<int>(start));
      CHECK(between.sees([&] {
        REQUIRE(cuda::small_m_linear(cuda::DenseLayer<bf16>{.x = p.rows(m),
                                                            .norm = p.norm(),
                                                            .weight = p.weight.view(),
                                                            .y = p.y.view().slice(0, m)},
                                     4, gpu.context, start));
      }) == (start == cuda::NextStart::after_wait));
    }
  }
  for (const std::int64_t m : {1, 100}) {
    for (const auto start : {cuda::NextStart::after_wait, cuda::NextStart::at_once}) {
      CAPTURE(m, static_cast<int>(start));
      CHECK(between.sees([&] {
        cuda::rms_norm(
            RmsNormArgs<bf16>{
                .x = p.rows(m), .weight = p.norm().weight, .out = p.normed.view().slice(0, m)},
            gpu.context, start);
      }) == (start == cuda::NextStart::after_wait));
    }
  }
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (int form = 0; form < cuda::kMidMForms.size(cuda::ProductKind::normed); ++form) {
    for (const auto start : {cuda::NextStart::after_wait, cuda::NextStart::at_once}) {
      CAPTURE(form, static_cast<int>(start));
      CHECK(between.sees([&] {
        REQUIRE(cuda::mid_m_linear(cuda::DenseLayer<bf16>{.x = p.rows(40),
                                                          .norm = p.norm(),
                                                          .weight = p.weight.view(),
                                                          .y = p.y.view().slice(0, 40)},
                                   form, maps, gpu.context, start));
      }) == (start == cuda::NextStart::after_wait));
    }
  }
  for (int form = 0; form < cuda::kWideMForms.size(cuda::ProductKind::normed); ++form) {
    CAPTURE(form);
    CHECK(between.sees([&] {
      REQUIRE(cuda::wide_m_linear(cuda::DenseLayer<bf16>{.x = p.rows(100),
                                                         .norm = p.norm(),
                                                         .weight = p.weight.view(),
                                                         .y = p.y.view().slice(0, 100)},
                                  form, maps, gpu.context));
    }));
  }
}

TEST_CASE("unpack_step after a kernel that writes late reads what that has written") {
  if (!has_gpu()) return;
  const Gpu gpu;
  GpuArray<int> from(1), to(1);
  const auto unpack = [&] {
    UnpackStepArgs args{};
    args.add_column(VectorView<const int>(from.data(), {1}), VectorView<int>(to.data(), {1}));
    cuda::unpack_step(args, gpu.context);
  };
  for (int i = 0; i < 3; ++i) {  // the first loads the kernels
    cuda::launch(write_late_kernel, {.grid = 1, .block = 1}, gpu.context, from.data(), i);
    unpack();
    gpu.sync();
    to.download();
    CHECK(to.host[0] == i);
  }
}

TEST_CASE(
    "what a backend runs as a step's first norm makes the plan visible, with or without a "
    "product") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  Operands p(gpu.context);
  Between between(gpu);
  cuda::OpState state{.context = gpu.context};
  // Parts that take longer than any kernel of the layer, so that each bucket gets a kernel, and heads
  // that none takes together with the product.
  cuda::DeviceBuffer<bf16> noise(std::size_t{1} << 24);
  const cuda::DeviceMatrix<bf16>* const weights[] = {&p.weight};
  cuda::DenseTuner(state.dense, gpu.context)
      .tune_qkv(weights, p.norm(), {.num_kv_heads = 2, .head_dim = 40}, kMost, [&](const auto&) {
        cuda::detail::fill_noise(noise.data(), std::int64_t{1} << 24, gpu.context);
      });
  for (const std::int64_t m : {1, 5, 16, 30, 64, 100, 200}) {
    CAPTURE(m);
    const cuda::DenseLayer<bf16> layer{
        .x = p.rows(m), .norm = p.norm(), .weight = p.weight.view(), .y = p.y.view().slice(0, m)};
    REQUIRE(state.dense.plan_for(layer, gpu.context).kernel != cuda::DenseKernel::parts);
    CHECK(between.sees([&] { REQUIRE(state.dense.run_fused(layer, gpu.context)); }));
    const auto norm = [&] {
      run_op(
          RmsNormArgs<bf16>{
              .x = p.rows(m), .weight = p.norm().weight, .out = p.normed.view().slice(0, m)},
          state);
    };
    CHECK(between.sees([&] {
      state.plan_start.planned(false);  // as after a plan
      norm();
    }));
    CHECK(state.plan_start.lets_decodes_start_early());
    CHECK_FALSE(between.sees(norm));
  }
}

}  // namespace nanovllm::test
