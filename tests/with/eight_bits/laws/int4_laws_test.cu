// Engines on CUDA whose weights are 4-bit integers: near to those in 16 bits, and the same whatever
// the number of rows, up to 48.

#include <cmath>
#include <string>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"
#include "with/eight_bits/laws/format_distance.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Int4Policy : CudaPolicy {
  using Weight = Int4Group128;
};
using Int4Engine = Engine<AnyModel, Int4Policy>;

EngineConfig config() {
  return {
      .model = model_directory("fairytale"), .max_model_len = 512, .kv_size = KvSize::blocks(512)};
}

}  // namespace

TEST_CASE("an engine by 4-bit weights is near to one in 16 bits, whole, in chunks and in batches",
          "[gpu][weight_format]") {
  if (!has_gpu()) return;
  const std::vector<TokenId> prompt = random_prompt(5, 300, 4000);
  Int4Engine whole(config());
  Engine<AnyModel, CudaPolicy> exact(config());
  const std::vector<float> of_whole = of_prompt(whole, prompt);
  const double far = distance(of_whole, of_prompt(exact, prompt));
  EngineConfig c = config();
  c.max_num_batched_tokens = 16;
  c.max_num_seqs = 16;
  Int4Engine chunked(c);
  const double of_chunks = distance(of_prompt(chunked, prompt), of_whole);
  CAPTURE(far, of_chunks);
  CHECK(far > 0);
  CHECK(far < 0.8);
  CHECK(of_chunks < 0.1);
  CHECK(of_chunks < far);

  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 40; ++i) prompts.push_back(random_prompt(60 + i, 3 + i, 4000));
  const std::vector<Output> together = chunked.generate(prompts, greedy(24));
  double of_batches = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Output alone = whole.generate(prompts[i], greedy(24));
    REQUIRE(alone.error == "");
    REQUIRE(together[i].error == "");
    REQUIRE(together[i].token_ids.size() == 24);
    of_batches += std::fabs(trace_of(alone).logprobs[0] - trace_of(together[i]).logprobs[0]);
  }
  CHECK(of_batches / static_cast<double>(prompts.size()) < 0.1);
}
