// Offline batches on GPUs, or on the CPU; generate_program.hpp is the program.
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
  return nanovllm::examples::generate_main(
      argc, argv,
      {nanovllm::examples::device<nanovllm::CudaFloat32Policy, nanovllm::CudaPolicy>("cuda",
                                                                                     has_gpu),
       nanovllm::examples::device<nanovllm::Float32Policy, nanovllm::DefaultPolicy>(
           "cpu", [] { return true; })});
}
