// Speed of the engine on GPUs, and the least time that they need. `engine_bench_cuda --help`
// says how to use it.
#include "cuda_prober.cuh"
#include "program.hpp"

int main(int argc, char** argv) {
  return engine_bench::run_main<nanovllm::CudaFloat32Policy, nanovllm::CudaPolicy,
                                engine_bench::CudaProber, nanovllm::CudaBatchInvariantPolicy>(argc,
                                                                                              argv);
}
