// The kernels of a decode step on the smallest shapes that reach all of their parts: short enough to
// run under compute-sanitizer, whose racecheck takes minutes for the other tests. `racecheck_test
// "[dense]"` and `"[sampler]"` are a few seconds each.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/product.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/hopper/batch_invariant/linear.cuh"

namespace nanovllm::test {
namespace {

void check(Product& product, const Gpu& gpu) {
  gpu.sync();
  product.y.download();
  CHECK(product.y.guards_intact());
  for (const bf16 value : product.y.host) CHECK(std::isfinite(float(value)));
}

}  // namespace

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
    for (int i = 0; i < 2; ++i) {  // the second behind what the first left in the workspace
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
