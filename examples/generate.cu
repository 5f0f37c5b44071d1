// Offline batches on GPUs, or on the CPU; generate_program.hpp is the program.
#include <nanovllm/with/moe/cuda/ops.cuh>

#include "generate_program.hpp"

namespace {

bool has_gpu() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count > 0;
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace nanovllm;
  return examples::generate_main(
      argc, argv,
      {{"cuda", has_gpu, examples::make<AllModels, CudaFullFloat32Policy, CudaFullPolicy>},
       {"cpu", [] { return true; }, examples::make<AllModels, FullFloat32Policy, FullPolicy>}});
}
