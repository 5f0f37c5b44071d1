// Qwen3 mixtures of experts on the CPU in bfloat16.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/full_policy.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/eight_bits/cpu/fp8_matrix.hpp"
#include "with/moe/parity/qwen3_moe_cases.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

struct Fp8Policy : FullPolicy {
  using Weight = Fp8Block128;
};
struct Fp8Float32Policy : FullFloat32Policy {
  using Weight = Fp8Weights<float>;
};

}  // namespace

TEST_CASE("in bfloat16 a mixture of experts is near transformers", "[moe][parity]") {
  const std::string name = each_moe();
  const MoeCase test(name, "bfloat16");
  Difference full, likely;
  compare_prefixes<AnyMoe, DefaultPolicy>(test.files.path(), 128, test.reference, full, likely);
  INFO(name << ": mean difference " << full.mean() << ", of likely tokens " << likely.mean()
            << ", transformers' own " << test.reference.own_disagreement());
  // Twice that of dense models: transformers rounds the router's logits, so that a token for which
  // two experts are nearly equal may go to another one there.
  const double bound = std::max(4e-2, test.reference.own_disagreement());
  CHECK(full.mean() < bound);
  CHECK(likely.mean() < bound);
}

TEST_CASE("8-bit experts whose last blocks are parts, in bfloat16 near float32",
          "[fp8][moe][parity]") {
  for (const auto& [ranks, whole] : {std::pair(1, false), {2, false}, {2, true}}) {
    CAPTURE(ranks, whole);
    // It is 0.03, and with another block's scale in the last one 0.7.
    CHECK(partial_blocks_difference<Fp8Policy, Fp8Float32Policy>(ranks, whole, 512) < 6e-2);
  }
}

TEST_CASE("in bfloat16, too, a step's other tokens do not matter, bit for bit", "[moe][laws]") {
  const MoeCase test("moe_8_of_60", "bfloat16");
  const std::int64_t vocab = test.reference.vocab_size();
  auto runner = load_runner<AnyMoe, DefaultPolicy>(test.files.path(), 128);
  runner.allocate_kv(512);
  const std::vector<TokenId> prompt = test.reference.prompt(2);
  const auto together = prefix_log_probs<DefaultPolicy>(runner, prompt, vocab);
  for (const std::size_t length : {1, 2, 17, 33, 49}) {
    const std::vector<TokenId> first(prompt.begin(),
                                     prompt.begin() + static_cast<std::ptrdiff_t>(length));
    CHECK(prefix_log_probs<DefaultPolicy>(runner, first, vocab).back() == together[length - 1]);
  }
}
