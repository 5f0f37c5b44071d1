// Checkpoints in packed integers on a GPU, kept as 4-bit integers, against Hugging Face transformers
// with their dequantised weights (tests/oracle/make_packed_fixtures.py).

#include <string>

#include "cuda/gpu_test.cuh"
#include "nanovllm/with/eight_bits/cuda/int4_ops.cuh"
#include "with/eight_bits/parity/fp8_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Int4Policy : CudaPolicy {
  using Weight = Int4Group128;
};

const std::string kFolder = "tests/fixtures/packed/";

}  // namespace

TEST_CASE("checkpoints in 4-bit integers have transformers' log-probabilities on CUDA",
          "[gpu][int4][parity]") {
  if (!has_gpu()) return;
  for (const std::string name : {"ct", "gptq_v2"}) {  // groups of 128, without and with zero points
    CAPTURE(name);
    const Distance kept = distance_from_transformers<Int4Policy>(name, kFolder);
    CAPTURE(kept.largest, kept.mean);
    CHECK(kept.mean < 0.03);
  }
  for (const std::string name : {"awq", "gptq_8bit"}) {  // quantised anew
    CAPTURE(name);
    const Distance rounded = distance_from_transformers<Int4Policy>(name, kFolder);
    CAPTURE(rounded.largest, rounded.mean);
    CHECK(rounded.mean > 0.03);
    CHECK(rounded.mean < 1);
  }
}
