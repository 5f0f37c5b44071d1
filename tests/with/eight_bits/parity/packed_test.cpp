// Checkpoints in packed integers on the CPU against Hugging Face transformers with their dequantised
// weights (tests/oracle/make_packed_fixtures.py).

#include <string>

#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "with/eight_bits/parity/fp8_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Fp8Policy : Float32Policy {
  using Weight = Fp8Weights<float>;
};

const std::string kFolder = "tests/fixtures/packed/";

}  // namespace

TEST_CASE("checkpoints in packed integers have transformers' log-probabilities",
          "[packed][parity]") {
  for (const std::string name :
       {"awq", "gptq", "gptq_v2", "gptq_8bit", "ct", "ct_asym", "ct_8bit"}) {
    CAPTURE(name);
    for (const int ranks : {1, 2}) {
      CAPTURE(ranks);
      const Distance exact = distance_from_transformers<FullFloat32Policy>(name, kFolder, ranks);
      CAPTURE(exact.largest);
      CHECK(exact.largest < 5e-5);
      CHECK(exact.same_tokens);
    }
    const Distance rounded = distance_from_transformers<FullPolicy>(name, kFolder);
    CAPTURE(rounded.largest, rounded.mean);
    CHECK(rounded.largest > 5e-5);
    CHECK(rounded.mean < 0.03);
    const Distance quantised = distance_from_transformers<Fp8Policy>(name, kFolder);
    CAPTURE(quantised.largest, quantised.mean);
    CHECK(quantised.largest > 5e-5);
    CHECK(quantised.mean < 0.2);
  }
}
