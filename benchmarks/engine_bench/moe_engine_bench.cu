// `engine_bench_cuda` for mixtures of experts.
#include "cuda_policies.cuh"
#include "cuda_prober.cuh"
#include "nanovllm/with/moe/cuda/fp8_ops.cuh"
#include "nanovllm/with/moe/cuda/ops.cuh"
#include "program.hpp"

int main(int argc, char** argv) {
  return engine_bench::run_main<engine_bench::CudaPolicies, engine_bench::CudaProber,
                                engine_bench::MoeModels>(argc, argv);
}
