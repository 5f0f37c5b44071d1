// `project_qkv` of few rows by 8-bit weights in one kernel.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/gpu_test.cuh"
#include "cuda/hopper/linear/projection.cuh"
#include "nanovllm/cuda/architectures.cuh"
#include "nanovllm/cuda/elementwise/qk_norm_rope_store.cuh"
#include "nanovllm/cuda/op_state.cuh"
#include "nanovllm/cuda/runtime/graph.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "nanovllm/with/eight_bits/fp8_kv.hpp"
#include "nanovllm/with/eight_bits/int8_kv.hpp"
#include "nanovllm/with/eight_bits/static_fp8_kv.hpp"

namespace nanovllm::test {
namespace {

template <class Kv>
using Fp8Projection = Projection<Kv, cuda::Fp8Matrix>;

template <class Kv>
[[nodiscard]] bool project(Fp8Projection<Kv>& projection, const Gpu& gpu) {
  return cuda::fp8_project_heads<cuda::DeviceArchitectures>(projection.args(), gpu.context);
}

/// The op by the product's kernel and that of the heads.
template <class Kv>
Bytes by_two(Fp8Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  const auto args = projection.args();
  const cuda::Fp8Layer layer{
      .x = args.x, .norm = args.norm, .weight = args.weight->view(), .y = args.qkv};
  cuda::fp8_few_rows(layer, gpu.context);
  cuda::qk_norm_rope_store(head_args(args), gpu.context);
  gpu.sync();
  return projection.results();
}

template <class Kv>
Bytes by_one(Fp8Projection<Kv>& projection, const Gpu& gpu) {
  projection.poison_outputs(gpu.context);
  REQUIRE(project(projection, gpu));
  gpu.sync();
  return projection.results();
}

/// Kernels that the op enqueues.
template <class Kv>
std::size_t num_kernels(Fp8Projection<Kv>& projection, cuda::OpState& state) {
  const cudaStream_t stream = state.context.stream;
  cudaGraph_t graph = nullptr;
  std::size_t count = 0;
  run_op(projection.args(), state);  // allocates what it needs
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  run_op(projection.args(), state);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE(
    "project_qkv by 8-bit weights in one kernel has the bits of the product and the heads' kernel",
    "", bf16, Int8Kv, Fp8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  // The last two have blocks of four warps.
  for (const Heads& heads :
       {Heads{16, 8, 128}, Heads{4, 1, 128}, Heads{3, 3, 128}, Heads{14, 2, 64}, Heads{3, 3, 64},
        Heads{32, 8, 128}, Heads{64, 4, 64}}) {
    for (const std::int64_t m : {1, 2, 3, 5, 7, 8}) {
      Fp8Projection<TestType> projection(m, m == 7 ? 2056 : m == 5 ? 264 : 1024, heads);
      const Bytes expected = by_two(projection, gpu);
      CAPTURE(heads.heads, heads.kv_heads, heads.head_dim, m);
      CHECK((by_one(projection, gpu) == expected));
    }
  }
}

TEMPLATE_TEST_CASE("project_qkv by 8-bit weights in one kernel after poison, again and in a graph",
                   "[racecheck]", bf16, Int8Kv, StaticFp8Kv) {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  for (const std::int64_t m : {3, 8}) {
    Fp8Projection<TestType> projection(m, 1032, {2, 1, m == 3 ? 128 : 64});
    const Bytes expected = by_one(projection, gpu);
    poison_shared_memory(gpu.context);
    CHECK((by_one(projection, gpu) == expected));
    const cuda::Graph graph = cuda::Graph::capture(gpu.context.stream, [&] {
      for (int i = 0; i < 3; ++i) REQUIRE(project(projection, gpu));
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

TEST_CASE("project_qkv by 8-bit weights is one kernel of few rows by large weights") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  const auto state = std::make_unique<cuda::OpState>(cuda::OpState{.context = gpu.context});
  const auto kernels = [&](std::int64_t m, std::int64_t k, const Heads& heads) {
    Fp8Projection<bf16> projection(m, k, heads);
    return num_kernels(projection, *state);
  };
  CHECK(kernels(1, 2600, {24, 4, 128}) == 1);
  CHECK(kernels(4, 2600, {24, 20, 64}) == 1);
  CHECK(kernels(5, 2600, {24, 4, 128}) == 2);
  CHECK(kernels(4, 2200, {24, 4, 128}) == 2);
  CHECK(kernels(2, 2600, {40, 4, 96}) == 2);
}

TEST_CASE("project_qkv by 8-bit weights in one kernel refuses what does not fit") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.is_hopper()) return;
  const auto takes = [&](Fp8Projection<bf16> projection) { return project(projection, gpu); };
  CHECK(takes({8, 60, {2, 1, 128}}));
  CHECK_FALSE(takes({9, 64, {2, 1, 128}}));
  CHECK_FALSE(takes({2, 64, {2, 1, 96}}));
  Fp8Projection<bf16> plain(2, 64, {2, 1, 64});
  auto args = plain.args();
  args.norm = {};
  CHECK_FALSE(cuda::fp8_project_heads<cuda::DeviceArchitectures>(args, gpu.context));
}

}  // namespace nanovllm::test
