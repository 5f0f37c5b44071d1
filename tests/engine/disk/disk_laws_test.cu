// The law of the disk tier on the CUDA backend.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
static constexpr bool kBitEqual = false;
static int num_devices() {
  int count = 0;
  if (nanovllm::test::has_gpu()) cudaGetDeviceCount(&count);
  return count;
}

#include "engine/disk/disk_laws_cases.hpp"
