// Speed of the engine on GPUs, and the least time that they need. `engine_bench_cuda --help`
// says how to use it.
#include "cuda_prober.cuh"
#include "nanovllm/ops/fp8_kv.hpp"
#include "nanovllm/ops/int8_kv.hpp"
#include "program.hpp"

namespace {

struct Int8KvPolicy : nanovllm::CudaPolicy {
  using KvElement = nanovllm::Int8Kv;
};
struct Fp8KvPolicy : nanovllm::CudaPolicy {
  using KvElement = nanovllm::Fp8Kv;
};

}  // namespace

int main(int argc, char** argv) {
  return engine_bench::run_main<nanovllm::CudaFloat32Policy, nanovllm::CudaPolicy,
                                engine_bench::CudaProber, nanovllm::CudaBatchInvariantPolicy,
                                Int8KvPolicy, Fp8KvPolicy>(argc, argv);
}
