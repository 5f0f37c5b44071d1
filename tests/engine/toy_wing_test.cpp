// A capability from outside, with every kind of thing that a wing brings.

#include "engine/toy_wing.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch.hpp"
#include "nanovllm/with/pooling.hpp"

using namespace nanovllm;

namespace {

using Model = Qwen3<shapes::fairytale>;

EngineConfig config(Extras extras) {
  return {.model = "examples/models/fairytale",
          .extras = std::move(extras),
          .kv_size = KvSize::blocks(64)};
}

}  // namespace

TEST_CASE("a wing from outside has a setting, a statistic, a kernel, rows, and sees steps") {
  Engine<Model, toy_wing::Policy> engine(config({toy_wing::BinOptions{.num_bins = 6}}));
  const std::vector<Prompt> texts{"The wolf", "A queen was born.", "The wolf"};
  const auto vectors = embed(engine, texts, {.normalize = false});
  CHECK(engine.stats().of<toy_wing::BinCounts>().num_rows == 3);
  const auto found = toy_wing::bins(engine, texts);
  CHECK(engine.stats().of<toy_wing::BinCounts>().num_rows == 6);
  REQUIRE(found.size() == 3);
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO(i);
    REQUIRE(found[i].size() == 6);
    const float largest =
        *std::ranges::max_element(vectors[i], {}, [](float x) { return std::abs(x); });
    CHECK(*std::ranges::max_element(found[i]) == std::abs(largest));
    CHECK(*std::ranges::min_element(found[i]) > 0);
  }
  CHECK(found[0] == found[2]);
  CHECK(found[0] != found[1]);

  // Beside it the engine is what it was.
  Engine<Model, Float32Policy> plain(config({}));
  const SamplingParams greedy{.temperature = 0.f, .max_tokens = 12};
  CHECK(engine.generate({"Once upon a time"}, greedy)[0].token_ids ==
        plain.generate({"Once upon a time"}, greedy)[0].token_ids);
}

TEST_CASE("a wing's setting where its policy is not is an error that says so") {
  CHECK_THROWS_WITH((Engine<Model, Float32Policy>(config({toy_wing::BinOptions{}}))),
                    "BinOptions is set, but the policy's Tiers, NoTiers, has no bins");
  CHECK_THROWS_WITH(
      (Engine<Model, toy_wing::Policy>(config({toy_wing::BinOptions{.num_bins = 0}}))),
      "num_bins must be >= 1, got 0");
}
