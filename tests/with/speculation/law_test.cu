// The law on the CUDA backend, where a row's logits do not depend on the others: in batch-invariant
// mode to the bit.

#include "cuda/gpu_test.cuh"
#include "nanovllm/with/batch_invariant.cuh"
#include "with/speculation/law_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("drafted = undrafted on CUDA: hashes, recomputed", "[speculation][laws][gpu]") {
  if (!has_gpu() || !Gpu().is_hopper()) return;  // the mode needs compute capability 9.0
  check_drafted<CudaBatchInvariantPolicy, HashPrefixCache, RecomputePreemption,
                ContinuousBatching>();
}

TEST_CASE("drafted = undrafted on CUDA: radix tree, swapped, by priority",
          "[speculation][laws][gpu]") {
  if (!has_gpu() || !Gpu().is_hopper()) return;  // the mode needs compute capability 9.0
  check_drafted<CudaBatchInvariantPolicy, RadixPrefixCache, SwapPreemption, Priority>();
}
