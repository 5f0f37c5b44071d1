// Checkpoints in 8-bit floats on a GPU against Hugging Face transformers.

#include "cuda/gpu_test.cuh"
#include "nanovllm/with/eight_bits/cuda/ops.cuh"
#include "with/eight_bits/parity/fp8_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct KeptPolicy : CudaPolicy {
  using Weight = Fp8Block128;
};

}  // namespace

TEST_CASE("checkpoints in 8-bit floats have transformers' log-probabilities on CUDA",
          "[gpu][fp8][parity]") {
  if (!has_gpu()) return;
  for (const std::string name : kFp8Checkpoints) {
    CAPTURE(name);
    const Distance dequantised = distance_from_transformers<CudaFloat32Policy>(name);
    CHECK(dequantised.largest < 2e-4);
    CHECK(dequantised.same_tokens);
    // Activations in 16 bits, and of 24 tokens at once in 8.
    const Distance kept = distance_from_transformers<KeptPolicy>(name);
    CAPTURE(kept.largest, kept.mean);
    CHECK(kept.mean < 0.3);
  }
}
