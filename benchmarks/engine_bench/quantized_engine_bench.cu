// `engine_bench_cuda` for weights in 8-bit floats and in integers of 4 bits, with lm_head in 16 bits or
// in 8, and a KV cache of 8 bits.
#include <type_traits>

#include "cuda_policies.cuh"
#include "cuda_prober.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"
#include "program.hpp"

/// An element takes its bits and its part of the scales.
template <bool kIsInt4, bool kHasHead>
struct QuantizedPolicy : engine_bench::OverPeers<nanovllm::CudaPolicy> {
  using Format = std::conditional_t<kIsInt4, nanovllm::Int4Group128, nanovllm::Fp8Block128>;
  using Weight = std::conditional_t<kHasHead, nanovllm::WithFp8Head<Format>, Format>;
  using KvElement = nanovllm::Int8Kv;
  static constexpr double kFp8Bytes = 1 + 4. / 128;
  static constexpr double kHeadBytes = kHasHead ? kFp8Bytes : 2;
  static constexpr double kLayerBytes = kIsInt4 ? 4.25 / 8 : kFp8Bytes;
};

struct Policies {
  template <bool kIsInt4, bool kHasHead>
  using Quantized = QuantizedPolicy<kIsInt4, kHasHead>;
  static constexpr bool kHasPeers = engine_bench::kHasNccl;
};

int main(int argc, char** argv) {
  return engine_bench::run_main<Policies, engine_bench::CudaProber>(argc, argv);
}
