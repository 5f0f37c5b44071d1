// Checkpoints in 8-bit floats on the CPU against Hugging Face transformers.

#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "with/eight_bits/parity/fp8_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct KeptPolicy : Float32Policy {
  using Weight = Fp8Weights<float>;
};

}  // namespace

TEST_CASE("checkpoints in 8-bit floats have transformers' log-probabilities", "[fp8][parity]") {
  for (const std::string name : kFp8Checkpoints) {
    CAPTURE(name);
    const Distance dequantised = distance_from_transformers<Float32Policy>(name);
    CHECK(dequantised.largest < 5e-5);
    CHECK(dequantised.same_tokens);
    const Distance kept = distance_from_transformers<KeptPolicy>(name);
    CAPTURE(kept.largest, kept.mean);
    if (is_all_of_8_bits(name)) {
      CHECK(kept.largest < 5e-5);
      CHECK(kept.same_tokens);
    } else {  // k and v are rounded to 8 bits while they are loaded
      CHECK(kept.largest > 5e-5);
      CHECK(kept.mean < 0.1);
    }
  }
}
