// The laws on the CUDA backend, for nine of the 18 combinations of policies: every cache with every
// order and both ways to preempt, and every order with both. Each draws one, four and beams.

#include "cuda/gpu_test.cuh"
#include "engine/laws/law_matrix.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <template <int> class Cache, class Preemption, class Scheduling>
void check_on_gpu() {
  if (!has_gpu()) return;
  const EngineConfig config{.model = model_directory(kRandomModels[0]), .max_model_len = 128};
  const std::int64_t vocab = Qwen3Config::load(model_directory(kRandomModels[0])).vocab_size;
  check_combination<CudaFloat32Policy, Cache, Preemption, Scheduling>(config, vocab, false);
}

}  // namespace

TEST_CASE("laws with HashPrefixCache on CUDA", "[laws][gpu]") {
  check_on_gpu<HashPrefixCache, RecomputePreemption, PrefillFirst>();
  check_on_gpu<HashPrefixCache, SwapPreemption, ContinuousBatching>();
  check_on_gpu<HashPrefixCache, RecomputePreemption, Priority>();
}

TEST_CASE("laws with RadixPrefixCache on CUDA", "[laws][gpu]") {
  check_on_gpu<RadixPrefixCache, SwapPreemption, PrefillFirst>();
  check_on_gpu<RadixPrefixCache, RecomputePreemption, ContinuousBatching>();
  check_on_gpu<RadixPrefixCache, SwapPreemption, Priority>();
}

TEST_CASE("laws with NoPrefixCache on CUDA", "[laws][gpu]") {
  check_on_gpu<NoPrefixCache, SwapPreemption, PrefillFirst>();
  check_on_gpu<NoPrefixCache, RecomputePreemption, ContinuousBatching>();
  check_on_gpu<NoPrefixCache, RecomputePreemption, Priority>();
}
