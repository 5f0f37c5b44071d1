// A mixture of experts in packed integers on the CPU against Hugging Face transformers with its
// dequantised weights (tests/oracle/make_packed_fixtures.py).

#include <utility>

#include "with/eight_bits/parity/fp8_cases.hpp"
#include "with/moe/parity/qwen3_moe_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

TEST_CASE("packed experts have transformers' log-probabilities", "[packed][moe][parity]") {
  for (const auto& [ranks, whole] : {std::pair(1, false), {2, false}, {2, true}}) {
    CAPTURE(ranks, whole);
    const Distance exact = distance_from_transformers<FullFloat32Policy, AnyMoe>(
        "awq_moe", "tests/fixtures/packed/", ranks, whole);
    CAPTURE(exact.largest);
    CHECK(exact.largest < 5e-5);
    CHECK(exact.same_tokens);
  }
}
