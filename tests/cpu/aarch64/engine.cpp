// A whole engine on aarch64, on a small checkpoint with random weights: greedy tokens of
// transformers in both element types, and a request alone and in a batch.

#include "nanovllm/engine.hpp"

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

TEST_CASE("bfloat16: tokens of transformers but for near ties, batched = alone", "[aarch64]") {
  const Reference reference(kModel, "bfloat16");
  Engine<AnyModel, DefaultPolicy> engine(small_config());
  const Mismatches found = greedy_mismatches(engine, reference);
  INFO(found.count << " of " << found.num_steps << " differ, widest gap " << found.widest_gap);
  CHECK(found.widest_gap < std::max(2e-2, reference.own_largest_disagreement()));
  CHECK(found.count < found.num_steps / 10);
  check_batched_is_alone<DefaultPolicy>(engine, reference);
}
