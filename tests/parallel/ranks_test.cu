// Tensor-parallel ranks on GPUs, joined by NCCL alone.

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

#if __has_include(<nccl.h>)
template <class Policy>
struct OverNccl : Policy {
  using Communicator = nanovllm::Nccl;
};
using BackendFloat32 = OverNccl<nanovllm::CudaFullFloat32Policy>;
using BackendBfloat16 = OverNccl<nanovllm::CudaFullPolicy>;
#else
using BackendFloat32 = nanovllm::CudaFullFloat32Policy;
using BackendBfloat16 = nanovllm::CudaFullPolicy;
#endif
static constexpr int kFailures = 12;  // each kind on each rank, twice
static constexpr double kFloat32Bound = 1e-4;

static bool ranks_present(int num_ranks) {
  int count = 0;
#if __has_include(<nccl.h>)
  if (cudaGetDeviceCount(&count) == cudaSuccess && count >= num_ranks) return true;
  static_cast<void>(cudaGetLastError());
#endif
  std::cout << "skipped: " << count << " GPUs that NCCL joins, " << num_ranks << " are needed\n";
  return false;
}

#include "parallel/child.hpp"
#include "parallel/ranks_cases.hpp"

namespace {

__global__ void trap_kernel() { __trap(); }

}  // namespace

/// Not a test by itself: a process that loses one of its devices, for good.
TEST_CASE("a process that loses a device", "[.]") {
  if (std::getenv("RANKS_TEST_DEVICE") == nullptr) return;
  using Backend = FailingPolicy::Backend;
  Backend::failing_device = std::atoi(std::getenv("RANKS_TEST_DEVICE"));
  Backend::failure = [](Backend& backend) { trap_kernel<<<1, 1, 0, backend.context().stream>>>(); };
  FailingEngine engine(ranks_config("fairytale", 2));
  Backend::steps_left = 6;
  check_fails(engine, "cuda");
}

TEST_CASE("a device that fails ends the requests, and the others go on to the end", "[ranks]") {
  if (!ranks_present(2)) return;
  const char* device = GENERATE("0", "1");
  Child child("a process that loses a device", {{"RANKS_TEST_DEVICE", device}});
  CHECK(child.wait(std::chrono::seconds(60)) == 0);
}
