// Shapes of GPT-2: the published ones, and what must match config.json.

#include "nanovllm/with/gpt2/shapes.hpp"
#include "catch.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;

TEST_CASE("published GPT-2 shapes have the heads of their sizes", "[gpt2][shapes]") {
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2>())::kHeadDim == 64);
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2_medium>())::kHeadDim == 64);
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2_large>())::kHeadDim == 64);
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2_xl>())::kHeadDim == 64);
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2>())::kGroup == 1);
  STATIC_REQUIRE(decltype(head_shape_of<shapes::gpt2_any>())::kHeadDim == 0);
  // What the checkpoints have, from their safetensors headers.
  CHECK(std::abs(num_parameters(config_of<shapes::gpt2>()) - 124'439'808) < 1'300'000);
  CHECK(std::abs(num_parameters(config_of<shapes::gpt2_medium>()) - 354'823'168) < 3'600'000);
  CHECK(std::abs(num_parameters(config_of<shapes::gpt2_large>()) - 774'030'080) < 7'800'000);
  CHECK(std::abs(num_parameters(config_of<shapes::gpt2_xl>()) - 1'557'611'200) < 15'600'000);
}

TEST_CASE("a GPT-2 shape fits the config that it makes, and no other", "[gpt2][shapes]") {
  Gpt2Config config = config_of<shapes::gpt2>();
  CHECK(matches<shapes::gpt2>(config));
  CHECK(matches<shapes::gpt2_any>(config));
  CHECK_FALSE(matches<shapes::gpt2_medium>(config));
  CHECK(resolve<shapes::gpt2_any>(config) == shapes::gpt2);
  CHECK_THROWS_AS(resolve<shapes::gpt2_medium>(config), ConfigError);
  config.num_positions = 512, config.tie_word_embeddings = false;
  CHECK_THROWS_WITH(resolve<shapes::gpt2>(config),
                    Contains("'n_positions' is 1024 at compile time but 512 in config.json") &&
                        Contains("'tie_word_embeddings' is true at compile time but false"));
}
