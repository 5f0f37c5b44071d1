// The engine's laws on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
using BackendBfloat16 = nanovllm::CudaFullPolicy;
static constexpr float kShardedBound = 2e-5f;  // each engine chooses its products by their speed
static constexpr bool kBitEqual = false;
static int num_devices() {
  int count = 0;
  if (nanovllm::test::has_gpu()) cudaGetDeviceCount(&count);
  return count;
}

#include "engine/laws/laws_cases.hpp"
