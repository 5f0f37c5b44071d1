// Engines whose sums go through the memory of peers, with rows as wide as those of published
// models: the kernel that sums, adds and norms takes no others.

#include "cuda/gpu_test.cuh"
#include "nanovllm/engine.hpp"

#if __has_include(<nccl.h>)

#include "parallel/ranks_rig.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

template <class Base>
struct OverPeers : Base {
  using Communicator = PeerMemory;
};

template <class Policy>
std::vector<Trace> run(const Qwen3Config& model) {
  EngineConfig config = ranks_config("fairytale", 2);
  config.model.clear();
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
}

#endif
