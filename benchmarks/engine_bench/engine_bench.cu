// Speed of the engine on GPUs, and the least time that they need. `engine_bench_cuda --help`
// says how to use it.
#include "cuda_policies.cuh"
#include "cuda_prober.cuh"
#include "program.hpp"

namespace {

struct Policies : engine_bench::CudaPolicies {
  using BatchInvariant = nanovllm::CudaBatchInvariantPolicy;
};

}  // namespace

int main(int argc, char** argv) {
  return engine_bench::run_main<Policies, engine_bench::CudaProber>(argc, argv);
}
