// The laws for all combinations of policies with RadixPrefixCache, on the CPU.

#include "engine/law_matrix.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Preemption, class Scheduling>
void check_on_cpu() {
  const EngineConfig config{
      .model = model_directory(kRandomModels[0]), .num_threads = 1, .max_model_len = 128};
  const std::int64_t vocab = ModelConfig::load(model_directory(kRandomModels[0])).vocab_size;
  check_combination<Float32Policy, RadixPrefixCache, Preemption, Scheduling>(config, vocab, true);
}

}  // namespace

TEMPLATE_TEST_CASE("laws with RadixPrefixCache: recomputed = undisturbed", "[laws]", PrefillFirst,
                   ContinuousBatching, Priority) {
  check_on_cpu<RecomputePreemption, TestType>();
}

TEMPLATE_TEST_CASE("laws with RadixPrefixCache: swapped = undisturbed", "[laws]", PrefillFirst,
                   ContinuousBatching, Priority) {
  check_on_cpu<SwapPreemption, TestType>();
}
