// Speed of the engine on GPUs, and the least time that they need. `engine_bench_cuda --help`
// says how to use it.
#include <type_traits>

#include "cuda_prober.cuh"
#include "nanovllm/cuda/linear/fp8/ops.cuh"
#include "program.hpp"

namespace {

template <bool kWeights, class Kv>
struct EightBitsPolicy : nanovllm::CudaPolicy {
  using Weight = std::conditional_t<kWeights, nanovllm::Fp8Block128, nanovllm::bf16>;
  using KvElement = Kv;
};

#if __has_include(<nccl.h>)
struct PeersPolicy : nanovllm::CudaPolicy {
  using Communicator = nanovllm::PeerMemory;
};
struct Fp8PeersPolicy : EightBitsPolicy<true, nanovllm::Int8Kv> {
  using Communicator = nanovllm::PeerMemory;
};
#endif

struct Policies {
  using Float32 = nanovllm::CudaFloat32Policy;
  using Bfloat16 = nanovllm::CudaPolicy;
  using BatchInvariant = nanovllm::CudaBatchInvariantPolicy;
#if __has_include(<nccl.h>)
  using Peers = PeersPolicy;
  using Fp8Peers = Fp8PeersPolicy;
#endif
  template <bool kWeights, class Kv>
  using EightBits = EightBitsPolicy<kWeights, Kv>;
};

}  // namespace

int main(int argc, char** argv) {
  return engine_bench::run_main<Policies, engine_bench::CudaProber>(argc, argv);
}
