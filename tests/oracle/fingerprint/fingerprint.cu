// What the CUDA backend computes; fingerprint.hpp says how it is told. Which kernel runs a dense
// layer is chosen by a stopwatch, so bits can differ between two runs: run it several times before
// and after, and compare.sh calls equal what was seen in any run of the other side.
#include "fingerprint.hpp"

struct Small : nanovllm::CudaPolicy {
  using Scheduling = nanovllm::PrefillFirst;
  static constexpr nanovllm::KvConfig kv{.block_size = 16};
};

int main(int argc, char** argv) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  return fingerprint::main_of<nanovllm::CudaFloat32Policy, nanovllm::CudaPolicy, Small>(
      argc, argv, num_devices);
}
