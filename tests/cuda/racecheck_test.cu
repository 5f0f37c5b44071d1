// The kernels of a decode step on the smallest shapes that reach all of their parts: short enough to
// run under compute-sanitizer, whose racecheck takes minutes for the other tests. `racecheck_test
// "[dense]"` and `"[sampler]"` are a few seconds each.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/linear/mid_m/mid_m_linear.cuh"
#include "nanovllm/cuda/linear/ordered_gated.cuh"
#include "nanovllm/cuda/linear/small_m/fused.cuh"
#include "nanovllm/cuda/linear/wide_m/wide_m_linear.cuh"
#include "nanovllm/cuda/linear_sample/linear_sample.cuh"

namespace nanovllm::test {
namespace {

/// m rows of k columns by W [2 · n, k], a norm, and room for the results, which the next product may
/// add to.
struct Tiny {
  std::int64_t m, n, k;
  GpuArray<bf16> x, weight, norm, y;

  Tiny(std::int64_t m_in, std::int64_t n_in, std::int64_t k_in)
      : m(m_in),
        n(n_in),
        k(k_in),
        x(GpuArray<bf16>::random(static_cast<std::size_t>(m * k), 1)),
        weight(GpuArray<bf16>::random(static_cast<std::size_t>(2 * n * k), 2, -.1, .1)),
        norm(GpuArray<bf16>::random(static_cast<std::size_t>(k), 3, .5, 1.5)),
        y(static_cast<std::size_t>(m * n)) {}

  [[nodiscard]] MatrixView<const bf16> rows() { return {x.data(), {m, k}}; }
  [[nodiscard]] MatrixView<const bf16> matrix(bool gated) {
    return {weight.data(), {gated ? 2 * n : n, k}};
  }
  [[nodiscard]] VectorView<const bf16> scale(bool wanted) {
    return wanted ? VectorView<const bf16>(norm.data(), {k}) : VectorView<const bf16>{};
  }
  [[nodiscard]] MatrixView<bf16> out() { return {y.data(), {m, n}}; }

  void check(const Gpu& gpu) {
    gpu.sync();
    y.download();
    CHECK(y.guards_intact());
    for (const bf16 value : y.host) CHECK(std::isfinite(float(value)));
  }
};

}  // namespace

TEST_CASE("small_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  for (const std::int64_t m : {2, 9}) {
    Tiny p(m, 9, 1544);  // more than the ring holds
    for (const bool normed : {true, false}) {
      const cuda::SmallMNorm norm{p.scale(normed), 1e-6f};
      cuda::small_m_gated_linear(p.rows(), norm, p.matrix(true), p.out(), 4, gpu.context);
      cuda::small_m_linear(p.rows(), norm, p.matrix(false), p.out(), true, normed ? 4 : 2,
                           gpu.context);
    }
    cuda::small_m_linear(p.rows(), {}, p.matrix(false), p.out(), true, 1, gpu.context);
    p.check(gpu);
  }
}

TEST_CASE("mid_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  using cuda::ProductKind;
  Tiny p(9, 16, 1024);
  for (const ProductKind kind : {ProductKind::gated, ProductKind::normed, ProductKind::plain}) {
    for (int variant = 0; variant < cuda::kMidMForms.size(kind); ++variant) {
      const bool gated = kind == ProductKind::gated, normed = kind != ProductKind::plain;
      REQUIRE(cuda::mid_m_linear(cuda::MidMLayer<bf16, bf16>{.x = p.rows(),
                                                             .norm = {p.scale(normed), 1e-6f},
                                                             .weight = p.matrix(gated),
                                                             .y = p.out(),
                                                             .accumulate = !gated,
                                                             .gated = gated},
                                 variant, maps, gpu.context));
    }
  }
  p.check(gpu);
}

TEST_CASE("wide_m, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  using cuda::ProductKind;
  Tiny p(65, 16, 1024);
  for (const ProductKind kind : {ProductKind::gated, ProductKind::normed, ProductKind::plain}) {
    for (int variant = 0; variant < cuda::kWideMForms.size(kind); ++variant) {
      const bool gated = kind == ProductKind::gated, normed = kind != ProductKind::plain;
      REQUIRE(cuda::wide_m_linear(cuda::WideMLayer<bf16>{.x = p.rows(),
                                                         .norm = {p.scale(normed), 1e-6f},
                                                         .weight = p.matrix(gated),
                                                         .y = p.out(),
                                                         .accumulate = !normed,
                                                         .gated = gated},
                                  variant, maps, gpu.context));
    }
  }
  p.check(gpu);
}

TEST_CASE("ordered products, tiny", "[racecheck][dense]") {
  if (!has_gpu()) return;
  const Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const cuda::OrderedBlock block : cuda::kOrderedGatedBlocks) {
    Tiny p(9, 16, 512);
    cuda::ordered_gated_linear(p.rows(), p.matrix(true), p.out(), block, maps, gpu.context);
    cuda::ordered_linear(p.rows(), p.matrix(false), p.out(), true, block, maps, gpu.context);
    p.check(gpu);
  }
}

TEST_CASE("linear_sample, tiny", "[racecheck][linear_sample]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.context.is_hopper()) return;
  gpu.context.num_sms = 2;  // blocks of several tiles
  std::mt19937 random(4);
  cuda::TensorMaps maps;
  cuda::LinearSampleWorkspace workspace(gpu.context);
  for (const std::int64_t m : {3, 9, 17, 33}) {
    constexpr std::int64_t kVocab = 800, kIn = 776;  // more than the ring holds
    auto x = GpuArray<bf16>::random(static_cast<std::size_t>(m * kIn), 1);
    auto weight = GpuArray<bf16>::random(static_cast<std::size_t>(kVocab * kIn), 2, -.1, .1);
    std::vector<SamplingRow> settings;
    for (std::int64_t r = 0; r < m; ++r)
      settings.push_back({.temperature = r % 3 == 0 ? 0.f : 1.f, .seed = random()});
    GpuArray<SamplingRow> rows(settings);
    GpuArray<TokenId> tokens(settings.size());
    GpuArray<float> logits(static_cast<std::size_t>(m * kVocab));
    cuda::LinearSampleLayer layer{.x = {x.data(), {m, kIn}},
                                  .weight = {weight.data(), {kVocab, kIn}},
                                  .rows = {rows.data(), {m}},
                                  .tokens = {tokens.data(), {m}}};
    std::vector<TokenId> first;
    for (int i = 0; i < 2; ++i) {  // the second behind what the first left in the workspace
      REQUIRE(cuda::linear_sample(layer, workspace, maps, gpu.context));
      gpu.sync();
      tokens.download();
      CHECK(tokens.guards_intact());
      if (i == 0) first = tokens.host;
      CHECK(tokens.host == first);
    }
    layer.logits = {logits.data(), {m, kVocab}};
    REQUIRE(cuda::linear_sample(layer, workspace, maps, gpu.context));
    gpu.sync();
    logits.download();
    CHECK(logits.guards_intact());
    for (const float value : logits.host) CHECK(std::isfinite(value));
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
