// Tensor-parallel ranks on GPUs whose sums go through the memory of peers.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

#if __has_include(<nccl.h>)

struct PeerFloat32Policy : nanovllm::CudaFullFloat32Policy {
  using Communicator = nanovllm::PeerMemory;
};
struct PeerPolicy : nanovllm::CudaFullPolicy {
  using Communicator = nanovllm::PeerMemory;
};
using BackendFloat32 = PeerFloat32Policy;
using BackendBfloat16 = PeerPolicy;
static constexpr int kFailures = 15;
static constexpr double kFloat32Bound = 1e-4;

static bool ranks_present(int num_ranks) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count >= num_ranks) return true;
  static_cast<void>(cudaGetLastError());
  std::cout << "skipped: " << count << " GPUs, " << num_ranks << " are needed\n";
  return false;
}

#include "parallel/ranks_cases.hpp"

#endif
