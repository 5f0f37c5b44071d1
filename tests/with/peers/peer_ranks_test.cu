// Tensor-parallel ranks on GPUs whose sums go through the memory of peers.

#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/gpu_test.cuh"
#include "nanovllm/full_policy.hpp"

#if __has_include(<nccl.h>)

/// Its kernels wait for three seconds; NCCL's, which a busy machine may choose, would not. Sums of more than 128 rows are made beside other ops.
struct ImpatientPeers : nanovllm::PeerMemory {
  explicit ImpatientPeers(nanovllm::PeerMemory end) : nanovllm::PeerMemory(std::move(end)) {}
  static std::vector<ImpatientPeers> make(int num_ranks) {
    std::vector<ImpatientPeers> out;
    for (auto& end : nanovllm::PeerMemory::make(
             num_ranks, {.limit = 3, .measures = false, .min_overlapped_bytes = 1}))
      out.emplace_back(std::move(end));
    return out;
  }
};

struct PeerFloat32Policy : nanovllm::CudaFullFloat32Policy {
  using Communicator = ImpatientPeers;
};
using BackendFloat32 = PeerFloat32Policy;
using BackendBfloat16 = nanovllm::CudaFullPolicy;  // its Communicator is PeerMemory
static constexpr int kFailures = 12;               // each kind on each rank, twice
static constexpr double kFloat32Bound = 1e-4;

static bool ranks_present(int num_ranks) { return nanovllm::test::has_gpus(num_ranks); }

#include "parallel/ranks_cases.hpp"

TEST_CASE("a rank that is late beyond the limit ends the step, and a reset makes the ranks whole",
          "[ranks]") {
  if (!ranks_present(2)) return;
  using Backend = FailingPolicy::Backend;
  Backend::failing_device = -1;
  Backend::points_left = -1;
  EngineConfig config = ranks_config("fairytale", 2);
  config.max_num_batched_tokens = config.max_model_len = 256;
  FailingEngine engine(config);
  std::size_t num_calls = 0;  // no prompt is in the cache
  const auto generate = [&](std::size_t call) {
    return engine.generate(std::vector<std::vector<TokenId>>{random_prompt(call, 200, 250), {4, 5}},
                           greedy(20));
  };
  const std::vector<Output> expected = generate(0);
  for (const bool in_prompt : {false, true}) {  // after step 6, or op 20 of the first
    // So long that the other rank's kernels wait three seconds where other programs use the GPU.
    Backend::failure = [](Backend&) { std::this_thread::sleep_for(std::chrono::seconds(10)); };
    (in_prompt ? Backend::points_left : Backend::steps_left) = in_prompt ? 20 : 6;
    Backend::failing_device = 1;
    for (const Output& output : generate(++num_calls)) {
      CHECK(output.finish_reason == FinishReason::error);
      CHECK_THAT(output.error, Contains("failed to come within 3000 ms"));
    }
    Backend::failing_device = -1;
    Backend::points_left = Backend::steps_left = -1;
    Backend::failure = nullptr;
    engine.reset();
    const std::vector<Output> again = generate(0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(again[i].error.empty());
      CHECK(again[i].token_ids == expected[i].token_ids);
    }
  }
}

#endif
