#pragma once
/// The policies of `engine_bench_cuda` and `moe_engine_bench_cuda`.

#include <type_traits>

#include "nanovllm/engine.hpp"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"

namespace engine_bench {

#if __has_include(<nccl.h>)
inline constexpr bool kHasNccl = true;
/// `Policy`, with what `--peers` asks for.
template <class Policy>
struct OverPeers : Policy {
  using Communicator = nanovllm::PeerMemory;
};
#else
inline constexpr bool kHasNccl = false;
template <class Policy>
using OverPeers = Policy;
#endif

template <bool kWeights, class Kv>
struct EightBitsPolicy : OverPeers<nanovllm::CudaPolicy> {
  using Weight = std::conditional_t<kWeights, nanovllm::Fp8Block128, nanovllm::bf16>;
  using KvElement = Kv;
};

struct CudaPolicies {
  using Float32 = OverPeers<nanovllm::CudaFloat32Policy>;
  using Bfloat16 = OverPeers<nanovllm::CudaPolicy>;
  template <bool kWeights, class Kv>
  using EightBits = EightBitsPolicy<kWeights, Kv>;
  static constexpr bool kHasPeers = kHasNccl;
};

}  // namespace engine_bench
