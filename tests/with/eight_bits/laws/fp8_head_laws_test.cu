// Engines on CUDA whose lm_head is in 8-bit floats: near to those without, alone and in batches, by
// layers of 8 and of 4 bits.

#include <cmath>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "engine/models.hpp"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "with/eight_bits/laws/format_distance.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Format>
struct In : CudaPolicy {
  using Weight = Format;
};

EngineConfig config() {
  return {
      .model = model_directory("fairytale"), .max_model_len = 512, .kv_size = KvSize::blocks(512)};
}

template <class Format>
void check_head() {
  Engine<AnyModel, In<WithFp8Head<Format>>> engine(config());
  Engine<AnyModel, In<Format>> without(config());
  const std::vector<TokenId> prompt = random_prompt(5, 300, 4000);
  const double far = distance(of_prompt(engine, prompt), of_prompt(without, prompt));
  CAPTURE(far);
  CHECK(far > 0);
  CHECK(far < 0.3);
  double of_one = 0, of_many = 0;
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t i = 0; i < 40; ++i) prompts.push_back(random_prompt(60 + i, 3 + i, 4000));
  const std::vector<Output> together = engine.generate(prompts, greedy(24));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(together[i].error == "");
    REQUIRE(together[i].token_ids.size() == 24);
    const float alone = trace_of(engine.generate(prompts[i], greedy(24))).logprobs[0];
    of_one += std::fabs(alone - trace_of(without.generate(prompts[i], greedy(1))).logprobs[0]);
    of_many += std::fabs(alone - trace_of(together[i]).logprobs[0]);
  }
  CAPTURE(of_one / 40, of_many / 40);
  CHECK(of_one / 40 < 0.2);
  CHECK(of_many / 40 < 0.3);
}

}  // namespace

TEST_CASE("an engine with lm_head in 8-bit floats is near to one without", "[gpu][weight_format]") {
  if (!has_gpu()) return;
  check_head<Fp8Block128>();
  check_head<Int4Group128>();
}
