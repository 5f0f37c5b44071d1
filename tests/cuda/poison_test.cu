// Kernels after poison: shared memory of all multiprocessors, workspaces and outputs are full of
// NaN, and the results are those of the first call. What a kernel reads of them without having
// written it would show.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "cuda/product.cuh"
#include "cuda/sampling/sampler_batch.cuh"
#include "nanovllm/cuda/elementwise/step_boundary.cuh"
#include "nanovllm/with/batch_invariant/hopper/linear.cuh"

namespace nanovllm::test {
namespace {

/// Adds up shared memory that nobody has written in this kernel.
__global__ void read_stale_kernel(int words, float* sums) {
  extern __shared__ float stale[];
  cuda::grid_dependency_wait();
  float sum = 0;
  for (int i = 0; i < words; ++i) sum += reinterpret_cast<volatile float*>(stale)[i];
  sums[blockIdx.x] = sum;
}

/// Runs `op`, which writes all of `out`, and again after poison, twice: for what the first call
/// left in a workspace could help the second.
template <class T, class Op, class Poison>
void check_behind_poison(Gpu& gpu, GpuArray<T>& out, const Op& op, const Poison& poison_workspace) {
  op();
  gpu.sync();
  out.download();
  const std::vector<T> expected = out.host;
  for (int i = 0; i < 2; ++i) {
    poison_workspace();
    poison(out.data(), static_cast<std::int64_t>(out.size()), gpu.context);
    poison_shared_memory(gpu.context);
    op();
    gpu.sync();
    out.download();
    CHECK(out.guards_intact());
    CHECK(std::memcmp(out.host.data(), expected.data(), expected.size() * sizeof(T)) == 0);
  }
}

template <class T, class Op>
void check_behind_poison(Gpu& gpu, GpuArray<T>& out, const Op& op) {
  check_behind_poison(gpu, out, op, [] {});
}

constexpr std::int64_t kWidth = 1032;        // no multiple of what any kernel takes at a time
constexpr std::int64_t kWholePanels = 1088;  // 17 panels of 64: no multiple of the larger stages

}  // namespace

TEST_CASE("stale shared memory is NaN after poison_shared_memory", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  constexpr int kWords = 4096;
  GpuArray<float> sums(static_cast<std::size_t>(gpu.context.num_sms) * 4);
  poison_shared_memory(gpu.context);
  cuda::launch(read_stale_kernel,
               {.grid = static_cast<unsigned>(sums.size()),
                .block = dim3(1),
                .shared_bytes = kWords * sizeof(float)},
               gpu.context, kWords, sums.data());
  gpu.sync();
  sums.download();
  for (const float sum : sums.host) REQUIRE(std::isnan(sum));
}

TEST_CASE("products of few rows after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (const std::int64_t m : {1, 3, 8, 11, 16}) {
    Product p(m, 77, kWidth);
    for (const bool has_norm : {false, true}) {
      for (const int tiles : {2, 4, 6}) {
        CAPTURE(m, has_norm, tiles);
        if (!has_norm || tiles >= cuda::kMinSmallMFusedTiles) {
          check_behind_poison(gpu, p.y, [&] {
            REQUIRE(cuda::small_m_linear(p.layer(false, has_norm), tiles, gpu.context));
          });
        }
        if (tiles < cuda::kMinSmallMFusedTiles) continue;
        check_behind_poison(gpu, p.y, [&] {
          REQUIRE(cuda::small_m_linear(p.layer(true, has_norm), tiles, gpu.context));
        });
      }
    }
  }
}

TEST_CASE("products of some tens of rows after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const std::int64_t k : {kWidth, kWholePanels}) {
    for (const std::int64_t m : {1, 20, 33, 64}) {
      Product p(m, 76, k);
      for (const cuda::ProductKind kind : kProductKinds) {
        for (int form = 0; form < cuda::kMidMForms.size(kind); ++form) {
          if (cuda::kMidMForms.at(kind, form).panels > 1 && k != kWholePanels) continue;
          CAPTURE(k, m, static_cast<int>(kind), form);
          check_behind_poison(gpu, p.y, [&] {
            REQUIRE(cuda::mid_m_linear(p.layer(kind, false), form, maps, gpu.context));
          });
        }
      }
    }
  }
}

TEST_CASE("products of some hundred rows after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const std::int64_t m : {1, 65, 200}) {
    Product p(m, 76, kWidth);
    for (const cuda::ProductKind kind : kProductKinds) {
      for (int form = 0; form < cuda::kWideMForms.size(kind); ++form) {
        CAPTURE(m, static_cast<int>(kind), form);
        check_behind_poison(gpu, p.y, [&] {
          REQUIRE(cuda::wide_m_linear(p.layer(kind, false), form, maps, gpu.context));
        });
      }
    }
  }
}

TEST_CASE("products in one order after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  if (!gpu.is_hopper()) return;
  cuda::TensorMaps maps;
  for (const std::int64_t m : {1, 16, 70, 300}) {
    Product p(m, 88, kWidth);
    for (const cuda::BatchInvariantBlock block : cuda::kBatchInvariantBlocks) {
      CAPTURE(m, block.rows, block.tokens, block.panels);
      check_behind_poison(gpu, p.y, [&] {
        cuda::batch_invariant_linear(p.rows(), p.matrix(false), p.out(), false, block, maps,
                                     gpu.context);
      });
    }
  }
}

TEST_CASE("the sampler after poison, nuclei and filters", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(21);
  for (const std::int64_t rows : {1, 5, 16, 40}) {
    CAPTURE(rows);
    Batch batch = random_batch(20'011, rows, random);
    for (std::int64_t r = 0; r < rows; r += 2) {
      SamplingRow& row = batch.rows[static_cast<std::size_t>(r)];
      row.top_k = 0;
      row.top_p = .9f;
      row.temperature = 1;
    }
    DeviceBatch device(batch);
    cuda::SamplerWorkspace workspace(rows, batch.vocab, gpu.context);
    const cuda::SamplerScratch& scratch = workspace.scratch();
    cuda::sample(device.args(), workspace, gpu.context);
    gpu.sync();
    const Outputs expected = device.outputs();
    for (int i = 0; i < 2; ++i) {
      device.poison();
      poison(scratch.parts, rows * scratch.part_pitch, gpu.context);
      poison(scratch.maxima, rows * (2 * scratch.tile_pitch + scratch.word_pitch), gpu.context);
      poison_shared_memory(gpu.context);
      cuda::sample(device.args(), workspace, gpu.context);
      gpu.sync();
      CHECK(device.outputs().same_bits(expected));
    }
  }
}

TEST_CASE("the sampler of plain rows after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::mt19937 random(22);
  for (const std::int64_t rows : {1, 5, 40}) {
    CAPTURE(rows);
    Batch batch(20'011);
    for (std::int64_t r = 0; r < rows; ++r)
      batch.add(random_row(batch.vocab, Shape::normal, random),
                {.temperature = r % 3 == 1 ? 0.f : .8f, .seed = random()});
    DeviceBatch device(batch);
    cuda::SamplerWorkspace workspace(rows, batch.vocab, gpu.context);
    const cuda::SamplerScratch& scratch = workspace.scratch();
    cuda::sample(device.args(), workspace, gpu.context);  // the general way
    gpu.sync();
    const Outputs expected = device.outputs();
    for (int i = 0; i < 2; ++i) {
      device.poison();
      poison(scratch.parts, rows * scratch.part_pitch, gpu.context);
      poison(scratch.arrivals, rows * scratch.part_pitch, gpu.context);
      poison_shared_memory(gpu.context);
      cuda::sample(device.args(true), workspace, gpu.context);
      gpu.sync();
      CHECK(device.outputs().same_bits(expected));
    }
  }
}

TEST_CASE("results that are published after poison", "[poison]") {
  if (!has_gpu()) return;
  Gpu gpu;
  constexpr std::int64_t kRows = 37;
  GpuArray<TokenId> tokens(kRows);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens.host[i] = static_cast<TokenId>(5 * i);
  tokens.upload();
  GpuArray<float> logprobs = GpuArray<float>::random(kRows, 1);
  cuda::PinnedBuffer<TokenId> host(kRows);
  GpuArray<ResultsPlace> place(1);
  place.host[0] = {.tokens = host.data(), .num_rows = kRows};
  place.upload();
  for (int i = 0; i < 3; ++i) {
    std::fill_n(host.data(), kRows, TokenId{-1});
    poison_shared_memory(gpu.context);
    cuda::publish_results(PublishResultsArgs{.place = place.data(),
                                             .tokens = {tokens.data(), {kRows}},
                                             .logprobs = {logprobs.data(), {kRows}},
                                             .top_tokens = {nullptr, {kRows, 0}},
                                             .top_logprobs = {nullptr, {kRows, 0}}},
                          gpu.context);
    gpu.sync();
    CHECK(std::equal(tokens.host.begin(), tokens.host.end(), host.data()));
  }
}

}  // namespace nanovllm::test
