// EAGLE-3 heads on the CUDA backend: the drafts of a plain torch loop in float32.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"
#include "nanovllm/with/speculation.cuh"
#include "with/speculation/eagle3/chains_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("a head on a GPU gives a plain loop's drafts", "[gpu][eagle3][parity]") {
  if (has_gpu()) check_fixture_drafts<CudaBackend>();
}
