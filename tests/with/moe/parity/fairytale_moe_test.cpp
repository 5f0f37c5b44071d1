// examples/models/fairytale_moe on the CPU, against Hugging Face transformers
// (tests/oracle/make_fairytale_models_fixtures.py): a mixture of experts whose router has learnt.

#include <algorithm>
#include <string>

#include "catch.hpp"
#include "engine/parity/parity.hpp"
#include "nanovllm/cpu.hpp"
#include "nanovllm/policy.hpp"
#include "nanovllm/with/moe/qwen3_moe/qwen3_moe.hpp"
#include "weights_there.hpp"

using namespace nanovllm;
using namespace nanovllm::test;

namespace {

using AnyMoe = Qwen3Moe<shapes::qwen3_moe_any>;
constexpr const char* kModel = "examples/models/fairytale_moe";

}  // namespace

TEST_CASE("fairytale_moe's float32 log-probabilities and greedy tokens are those of transformers",
          "[moe][parity]") {
  if (!weights_there("fairytale_moe")) return;
  const Reference reference("fairytale_moe", "float32");
  Difference full, likely;
  compare_prefixes<AnyMoe, Float32Policy>(kModel, 128, reference, full, likely);
  INFO("largest difference " << full.largest << ", mean " << full.mean());
  CHECK(full.largest < 1e-4);
  CHECK(likely.largest < 1e-4);

  Engine<AnyMoe, Float32Policy> engine({.model = kModel, .num_threads = 2, .max_model_len = 128});
  compare_greedy(engine, reference);
}

TEST_CASE("fairytale_moe's bfloat16 is about as near to float32 as that of transformers",
          "[moe][parity]") {
  if (!weights_there("fairytale_moe")) return;
  // Not compared with transformers' bfloat16: it rounds the router's logits, so that a token for
  // which two experts are nearly equal may go to another one there.
  const Reference reference("fairytale_moe", "float32");
  Difference full, likely;
  compare_prefixes<AnyMoe, DefaultPolicy>(kModel, 128, reference, full, likely);
  INFO("mean difference " << full.mean() << ", of likely tokens " << likely.mean()
                          << ", transformers' own " << reference.own_rounding());
  // Such tokens are few, and each of them moves the mean: hence twice.
  CHECK(full.mean() < 2 * reference.own_rounding());

  Engine<AnyMoe, DefaultPolicy> engine({.model = kModel, .num_threads = 2, .max_model_len = 128});
  const Mismatches found = greedy_mismatches(engine, reference);
  INFO(found.count << " of " << found.num_steps << " differ, the widest gap is "
                   << found.widest_gap);
  CHECK(found.count < found.num_steps / 8);
}

TEST_CASE("fairytale_moe chats and ends as fairytale does", "[moe][text]") {
  if (!weights_there("fairytale_moe")) return;
  Engine<AnyMoe, DefaultPolicy> engine({.model = kModel, .num_threads = 2, .max_model_len = 512});
  Engine<AnyModel, DefaultPolicy> sibling(
      {.model = "examples/models/fairytale", .num_threads = 2, .max_model_len = 512});
  const ChatPrompt prompt{.messages = {{"user", "Tell me of a fox."}}};
  CHECK(engine.encode(prompt) == sibling.encode(prompt));
  CHECK(engine.model_config().eos_token_ids == sibling.model_config().eos_token_ids);

  const Output output = engine.generate(prompt, {.seed = 1, .max_tokens = 400});
  CHECK(output.error.empty());
  INFO(output.text);
  CHECK(std::count(output.text.begin(), output.text.end(), ' ') > 10);
}
