// Draws by shard on one GPU, which has all shards, against `sample` of the whole rows there and on
// the CPU.

#include "cuda/gpu_test.cuh"
#include "nanovllm/cpu/backend.hpp"
#include "nanovllm/cuda/backend.cuh"
#include "nanovllm/with/shards/cpu/shard_draw.hpp"
#include "nanovllm/with/shards/cuda/shard_draw.cuh"
#include "with/shards/shard_draw_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using namespace nanovllm::test::ops;

namespace {

CudaBackend& reserved(CudaBackend& backend) {
  backend.reserve(
      {.limits = {.max_num_batched_tokens = 64, .max_num_seqs = 320, .max_model_len = 64},
       .vocab_size = 151936,
       .num_heads = 1,
       .num_kv_heads = 1,
       .head_dim = 64});
  return backend;
}

}  // namespace

TEST_CASE("draws by shard are those of the whole rows", "[sampler]") {
  if (!has_gpu()) return;
  CudaBackend backend{BackendConfig{}};
  const auto active = backend.activate();
  shard_draw_cases(reserved(backend), 2e-5f);
}

TEST_CASE("draws by shard are the CPU's, from one row to many of a whole vocabulary", "[sampler]") {
  if (!has_gpu()) return;
  CudaBackend gpu{BackendConfig{}};
  const auto active = gpu.activate();
  reserved(gpu);
  CpuBackend cpu{BackendConfig{}};
  for (const bool plain : {false, true}) {
    const ShardDrawRows all = shard_draw_rows(151936, plain, plain ? 5 : 6, 150);
    for (const std::int64_t n : {1, 2, 7, 60, 150}) {
      ShardDrawRows rows = all;
      rows.logits.resize(static_cast<std::size_t>(n * all.vocab));
      rows.rows.resize(static_cast<std::size_t>(n));
      rows.banned_starts.resize(static_cast<std::size_t>(n + 1));
      rows.banned.resize(static_cast<std::size_t>(rows.banned_starts.back()));
      const ShardDrawn expected = ShardDrawRig<CpuBackend>(cpu, rows).sample(plain);
      for (const std::int64_t num_shards : {2, 8}) {
        INFO(n << (plain ? " plain" : "") << " rows, " << num_shards << " shards");
        const ShardDrawn got = ShardDrawRig<CudaBackend>(gpu, rows).draw(num_shards, plain);
        CHECK(got.tokens == expected.tokens);
        CHECK(got.top_tokens == expected.top_tokens);
        const ShardDrawn again = ShardDrawRig<CudaBackend>(gpu, rows).draw(num_shards, plain);
        CHECK(got.tokens == again.tokens);
        CHECK(got.logprobs == again.logprobs);  // bit by bit
        CHECK(got.top_logprobs == again.top_logprobs);
      }
    }
  }
}
