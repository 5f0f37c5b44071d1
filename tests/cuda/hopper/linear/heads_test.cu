#include "nanovllm/cuda/hopper/linear/heads.cuh"

#include <cstdint>

#include "cuda/gpu_test.cuh"
#include "cuda/hopper/linear/projection.cuh"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"
#include "ops/fused_cases.hpp"

namespace nanovllm::test {
namespace {

/// The op by the product's kernel and that of the heads.
template <class Kv>
Bytes by_two(Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  const auto args = projection.args();
  REQUIRE(cuda::small_m_linear(cuda::layer_of(args), 4, gpu.context, cuda::NextStart::after_wait));
  cuda::qk_norm_rope_store(head_args(args), gpu.context);
  gpu.sync();
  return projection.results();
}

template <class Kv>
Bytes by_one(Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  REQUIRE(cuda::small_m_project_qkv(projection.args(), gpu.context));
  gpu.sync();
  return projection.results();
}

/// Runs `project_qkv` by the kernel, for the cases of all backends.
struct HeadsBackend : CudaBackend {
  using CudaBackend::CudaBackend;
  using CudaBackend::run;
  void run(const ProjectQkvArgs<bf16, cuda::DeviceMatrix<bf16>>& args) {
    REQUIRE(cuda::small_m_project_qkv(args, context()));
  }
};

}  // namespace

TEMPLATE_TEST_CASE(
    "project_qkv of few rows in one kernel has the bits of the product and the heads' kernel", "",
    bf16, Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const Heads& heads :
       {Heads{16, 8, 128}, Heads{4, 1, 128}, Heads{3, 3, 128}, Heads{14, 2, 128}, Heads{16, 8, 64},
        Heads{4, 1, 64}, Heads{3, 3, 64}, Heads{14, 2, 64}}) {
    for (const std::int64_t m : {1, 2, 3, 5, 7, 8}) {
      Projection<TestType> projection(m, m == 7 ? 2056 : m == 5 ? 264 : 1024, heads);
      const Bytes expected = by_two(projection, gpu);
      CAPTURE(heads.heads, heads.kv_heads, heads.head_dim, m);
      CHECK((by_one(projection, gpu) == expected));
    }
  }
}

TEST_CASE("project_qkv of few rows in one kernel equals float64") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  HeadsBackend backend(BackendConfig{});
  for (const std::int64_t n : {1, 3, 8})
    ops::project_qkv_case<bf16>(backend, {{n, 256, 128, true}, 2, 1});
  ops::project_qkv_case<bf16>(backend, {{2, 1024, 128, true}, 4, 2});
  ops::project_qkv_case<bf16>(backend, {{7, 96, 64, true}, 3, 1});
  ops::project_qkv_case<bf16>(backend, {{5, 2056, 64, true}, 0, 2});
}

TEST_CASE("project_qkv as start-up tunes it equals float64") {
  if (!has_gpu()) return;
  CudaBackend backend(BackendConfig{});
  const std::int64_t in = 256, heads = 4, kv_heads = 2, head_dim = 128;
  const cuda::DeviceMatrix<bf16> weight((heads + 2 * kv_heads) * head_dim, in);
  auto norm = GpuArray<bf16>::random(static_cast<std::size_t>(in), 1);
  backend.tune(Projections<bf16, cuda::DeviceMatrix<bf16>, bf16>{
      .list = {{ProjectionRole::qkv, {&weight}, {{norm.data(), {in}}, 1e-6f}, false, 100}},
      .kv_heads = {kv_heads, head_dim}});
  for (const std::int64_t n : {1, 2, 7, 8, 9, 33, 70})
    ops::project_qkv_case<bf16>(backend, {{n, in, head_dim, true}, heads, kv_heads});
}

TEMPLATE_TEST_CASE("project_qkv of few rows in one kernel after poison, again and in a graph",
                   "[racecheck]", bf16, Int8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const std::int64_t m : {3, 8}) {
    Projection<TestType> projection(m, 1032, {2, 1, m == 3 ? 128 : 64});
    const Bytes expected = by_one(projection, gpu);
    poison_shared_memory(gpu.context);
    CHECK((by_one(projection, gpu) == expected));
    const cuda::Graph graph = cuda::Graph::capture(gpu.context.stream, [&] {
      for (int i = 0; i < 3; ++i)
        REQUIRE(cuda::small_m_project_qkv(projection.args(), gpu.context));
    });
    for (int i = 0; i < 3; ++i) {
      projection.poison_outputs(gpu.context);
      poison_shared_memory(gpu.context);
      graph.launch(gpu.context.stream);
      gpu.sync();
      CHECK((projection.results() == expected));
    }
  }
}

TEST_CASE("project_qkv of few rows in one kernel refuses what does not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  const auto takes = [&](Projection<> projection) {
    return cuda::small_m_project_qkv(projection.args(), gpu.context);
  };
  CHECK_FALSE(takes({9, 64, {2, 1, 128}}));
  CHECK_FALSE(takes({2, 60, {2, 1, 128}}));
  CHECK_FALSE(takes({2, 64, {2, 1, 96}}));
  Projection<> plain(2, 64, {2, 1, 64});
  auto args = plain.args();
  args.norm = {};
  CHECK_FALSE(cuda::small_m_project_qkv(args, gpu.context));
}

}  // namespace nanovllm::test
