// Engines whose sums go through the memory of peers, with rows as wide as those of published
// models: the kernel that sums, adds and norms takes no others.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

#if __has_include(<nccl.h>)

#include <atomic>
#include <utility>
#include <vector>

#include "parallel/ranks_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base>
struct OverPeers : Base {
  using Communicator = PeerMemory;
};

/// Makes sums of more than 128 rows beside other ops.
struct OverlappingPeers : PeerMemory {
  explicit OverlappingPeers(PeerMemory end) : PeerMemory(std::move(end)) {}
  static std::vector<OverlappingPeers> make(int num_ranks) {
    std::vector<OverlappingPeers> out;
    for (auto& end : PeerMemory::make(num_ranks, {.min_overlapped_bytes = 1}))
      out.emplace_back(std::move(end));
    return out;
  }
  template <class T>
  void begin_sum(MatrixView<T> x) {
    ++num_sums;
    PeerMemory::begin_sum(x);
  }
  inline static std::atomic<int> num_sums = 0;
};

template <class Base>
struct Overlapping : Base {
  using Communicator = OverlappingPeers;
};

template <class Policy>
std::vector<Trace> run(const Qwen3Config& model, int max_num_batched_tokens = 64) {
  EngineConfig config = ranks_config("fairytale", 2);
  config.model.clear();
  config.max_num_batched_tokens = max_num_batched_tokens;
  Engine<AnyModel, Policy> engine(model, RandomWeights{.seed = 3}, config);
  return serve(engine);
}

}  // namespace

TEST_CASE("over the memory of peers TP 2 is what it is over NCCL", "[ranks]") {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    static_cast<void>(cudaGetLastError());
    std::cout << "skipped: " << count << " GPUs, 2 are needed\n";
    return;
  }
  Qwen3Config model = Qwen3Config::load(model_directory("fairytale"));
  model.hidden_size = 1024;
  model.intermediate_size = 1536;
  check_near(run<OverPeers<CudaFloat32Policy>>(model), run<CudaFloat32Policy>(model), 1e-4);
  check_alike(run<OverPeers<CudaPolicy>>(model), run<CudaPolicy>(model), 2e-2);
  // Steps of several prompts, in halves.
  check_near(run<Overlapping<CudaFloat32Policy>>(model, 300), run<CudaFloat32Policy>(model), 1e-4);
  CHECK(OverlappingPeers::num_sums > 0);
}

#endif
