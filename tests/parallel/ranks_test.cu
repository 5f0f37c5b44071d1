// Tensor-parallel ranks on GPUs, joined by NCCL alone.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

using BackendFloat32 = nanovllm::CudaFloat32Policy;  // its Communicator is Nccl
using BackendBfloat16 = nanovllm::CudaPolicy;
static constexpr int kFailures = 12;  // each kind on each rank, twice
static constexpr double kFloat32Bound = 1e-4;

#if __has_include(<nccl.h>)
static bool ranks_present(int num_ranks) { return nanovllm::test::has_gpus(num_ranks); }
#else
static bool ranks_present(int) {
  std::cout << "skipped: compiled without NCCL\n";
  return false;
}
#endif

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
