// A whole engine on aarch64, on a small checkpoint with random weights: greedy tokens of
// transformers in both element types, and a request alone and in a batch. run_test.sh builds it.

#include "nanovllm/engine.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"

#include "engine/parity/greedy_traces.hpp"
#include "engine/parity/parity.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

constexpr const char* kModel = "group4_untied_sharded";

EngineConfig small_config() {
  return {.model = model_directory(kModel), .num_threads = 2, .max_model_len = 128};
}

template <class Policy>
void check_batched_is_alone(Engine<AnyModel, Policy>& engine, const Reference& reference) {
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) prompts.push_back(reference.prompt(p));
  const auto batched = traces(engine, prompts, 8);
  EngineConfig uncached = small_config();
  uncached.prefix_caching = false;
  Engine<AnyModel, Policy> other(std::move(uncached));
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const std::vector<std::vector<TokenId>> alone(1, prompts[p]);
    check_equal({batched[p]}, traces(other, alone, 8), 0);
  }
}

}  // namespace

TEST_CASE("float32: tokens of transformers, batched = alone", "[aarch64]") {
  const Reference reference(kModel, "float32");
  Engine<AnyModel, Float32Policy> engine(small_config());
  compare_greedy(engine, reference);
  check_batched_is_alone<Float32Policy>(engine, reference);
}

TEST_CASE("bfloat16: first tokens of transformers but for near ties, batched = alone",
          "[aarch64]") {
  const Reference reference(kModel, "bfloat16");
  Engine<AnyModel, DefaultPolicy> engine(small_config());
  for (std::size_t p = 0; p < reference.num_prompts(); ++p) {
    const Output output =
        engine.generate(reference.prompt(p), {.temperature = 0.f, .max_tokens = 1});
    INFO("prompt " << p << " " << output.error);
    REQUIRE(output.token_ids.size() == 1);
    const bool is_same = output.token_ids[0] == reference.values<std::int32_t>(p, "greedy_ids")[0];
    const double gap = reference.values<float>(p, "greedy_gaps")[0];
    CHECK((is_same || gap < std::max(2e-2, reference.own_largest_disagreement())));
  }
  check_batched_is_alone<DefaultPolicy>(engine, reference);
}
