// Tensor-parallel ranks on GPUs whose sums go through the memory of peers.

#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

#if __has_include(<nccl.h>)

/// Its kernels wait for three seconds.
struct ImpatientPeers : nanovllm::PeerMemory {
  explicit ImpatientPeers(nanovllm::PeerMemory end) : nanovllm::PeerMemory(std::move(end)) {}
  static std::vector<ImpatientPeers> make(int num_ranks) {
    std::vector<ImpatientPeers> out;
    for (auto& end : nanovllm::PeerMemory::make(num_ranks, {.limit = 3}))
      out.emplace_back(std::move(end));
    return out;
  }
};

struct PeerFloat32Policy : nanovllm::CudaFullFloat32Policy {
  using Communicator = ImpatientPeers;
};
struct PeerPolicy : nanovllm::CudaFullPolicy {
  using Communicator = nanovllm::PeerMemory;
};
using BackendFloat32 = PeerFloat32Policy;
using BackendBfloat16 = PeerPolicy;
static constexpr int kFailures = 12;  // each kind on each rank, twice
static constexpr double kFloat32Bound = 1e-4;

static bool ranks_present(int num_ranks) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count >= num_ranks) return true;
  static_cast<void>(cudaGetLastError());
  std::cout << "skipped: " << count << " GPUs, " << num_ranks << " are needed\n";
  return false;
}

#include "parallel/ranks_cases.hpp"

TEST_CASE("a rank that is late beyond the limit ends the step, and a reset makes the ranks whole",
          "[ranks]") {
  if (!ranks_present(2)) return;
  using Backend = FailingPolicy::Backend;
  Backend::failing_device = -1;
  Backend::points_left = -1;
  FailingEngine engine(ranks_config("fairytale", 2));
  const auto generate = [&] {
    return engine.generate(std::vector<std::vector<TokenId>>{{1, 2, 3}, {4, 5}}, greedy(20));
  };
  const std::vector<Output> expected = generate();
  Backend::failure = [](Backend&) { std::this_thread::sleep_for(std::chrono::seconds(5)); };
  Backend::steps_left = 6;
  Backend::failing_device = 1;
  for (const Output& output : generate()) {
    CHECK(output.finish_reason == FinishReason::error);
    CHECK_THAT(output.error, Contains("failed to come within 3000 ms"));
  }
  Backend::failing_device = -1;
  Backend::failure = nullptr;
  engine.reset();
  const std::vector<Output> again = generate();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(again[i].error.empty());
    CHECK(again[i].token_ids == expected[i].token_ids);
  }
}

#endif
