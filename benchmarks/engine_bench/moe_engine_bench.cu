// `engine_bench_cuda` for mixtures of experts.
#include <type_traits>

#include "cuda_prober.cuh"
#include "nanovllm/cuda/experts/fp8_ops.cuh"
#include "nanovllm/cuda/experts/ops.cuh"
#include "nanovllm/cuda/linear/fp8/ops.cuh"
#include "program.hpp"

namespace {

template <bool kWeights, class Kv>
struct EightBitsPolicy : nanovllm::CudaPolicy {
  using Weight = std::conditional_t<kWeights, nanovllm::Fp8Block128, nanovllm::bf16>;
  using KvElement = Kv;
};

struct Policies {
  using Float32 = nanovllm::CudaFloat32Policy;
  using Bfloat16 = nanovllm::CudaPolicy;
  template <bool kWeights, class Kv>
  using EightBits = EightBitsPolicy<kWeights, Kv>;
};

}  // namespace

int main(int argc, char** argv) {
  return engine_bench::run_main<Policies, engine_bench::CudaProber, engine_bench::MoeModels>(argc,
                                                                                             argv);
}
