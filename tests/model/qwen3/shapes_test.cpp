#include "nanovllm/model/qwen3/shapes.hpp"

#include <cstdio>
#include <cstdlib>

#include "catch.hpp"

namespace nv = nanovllm;

namespace {

/// A config with the sizes of `shape`.
nv::Qwen3Config config_of(const nv::Qwen3Shape& shape) {
  nv::Qwen3Config out;
  out.hidden_size = static_cast<std::int64_t>(shape.hidden_size);
  out.num_hidden_layers = static_cast<std::int64_t>(shape.num_layers);
  out.num_attention_heads = static_cast<std::int64_t>(shape.num_heads);
  out.num_key_value_heads = static_cast<std::int64_t>(shape.num_kv_heads);
  out.head_dim = static_cast<std::int64_t>(shape.head_dim);
  out.intermediate_size = static_cast<std::int64_t>(shape.intermediate_size);
  out.vocab_size = static_cast<std::int64_t>(shape.vocab_size);
  out.tie_word_embeddings = shape.tie == nv::Tie::yes;
  return out;
}

/// Parameters of a dense Qwen3, a tied lm_head counted once.
constexpr std::size_t num_parameters(const nv::Qwen3Shape& s) {
  const std::size_t q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
  const std::size_t attention = s.hidden_size * (2 * q + 2 * kv) + 2 * s.head_dim;
  const std::size_t layer = attention + 3 * s.hidden_size * s.intermediate_size + 2 * s.hidden_size;
  const std::size_t embeddings = (s.tie == nv::Tie::yes ? 1 : 2) * s.vocab_size * s.hidden_size;
  return s.num_layers * layer + embeddings + s.hidden_size;
}

constexpr nv::Qwen3Shape kHeadsOnly{.num_heads = 16, .head_dim = 128};

/// Shapes work as template values: this is a type per shape.
template <nv::Qwen3Shape kShape>
struct Holder {
  static constexpr bool kStatic = kShape.hidden_size != std::dynamic_extent;
};

}  // namespace

TEST_CASE("The published shapes have the published parameter counts", "[shapes]") {
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_0_6b) == 596'049'920);
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_1_7b) == 1'720'574'976);
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_4b) == 4'022'468'096);
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_8b) == 8'190'735'360);
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_14b) == 14'768'307'200);
  STATIC_REQUIRE(num_parameters(nv::shapes::qwen3_32b) == 32'762'123'264);
  STATIC_REQUIRE(num_parameters(nv::shapes::fairytale) * 2 > 13'800'000);  // bf16 file: 13.9 MB
  STATIC_REQUIRE(num_parameters(nv::shapes::fairytale) * 2 < 13'910'696);
}

TEST_CASE("A shape is a template value", "[shapes]") {
  STATIC_REQUIRE(Holder<nv::shapes::qwen3_0_6b>::kStatic);
  STATIC_REQUIRE_FALSE(Holder<nv::shapes::qwen3_any>::kStatic);
  STATIC_REQUIRE(std::is_same_v<Holder<nv::Qwen3Shape{}>, Holder<nv::shapes::qwen3_any>>);
}

TEST_CASE("A fixed shape takes its own checkpoint and no other", "[shapes]") {
  const auto config = config_of(nv::shapes::qwen3_0_6b);
  CHECK(nv::matches<nv::shapes::qwen3_0_6b>(config));
  CHECK(nv::resolve<nv::shapes::qwen3_0_6b>(config) == nv::shapes::qwen3_0_6b);
  CHECK_FALSE(nv::matches<nv::shapes::qwen3_1_7b>(config));
  CHECK_FALSE(nv::matches<nv::shapes::fairytale>(config));
  CHECK_THROWS_AS(nv::resolve<nv::shapes::qwen3_1_7b>(config), nv::ConfigError);
}

TEST_CASE("Dynamic fields come from the config", "[shapes]") {
  const auto config = config_of(nv::shapes::qwen3_4b);
  CHECK(nv::resolve<nv::shapes::qwen3_any>(config) == nv::shapes::qwen3_4b);
  CHECK(nv::matches<nv::shapes::qwen3_any>(config));
  CHECK_FALSE(nv::matches<kHeadsOnly>(config));  // 32 heads
  CHECK(nv::resolve<kHeadsOnly>(config_of(nv::shapes::qwen3_1_7b)) == nv::shapes::qwen3_1_7b);
}

TEST_CASE("Every field that differs is named with both values", "[shapes]") {
  nv::Qwen3Config config;
  config.hidden_size = 11;
  config.num_hidden_layers = 12;
  config.num_attention_heads = 13;
  config.num_key_value_heads = 14;
  config.head_dim = 15;
  config.intermediate_size = 16;
  config.vocab_size = 17;
  config.tie_word_embeddings = false;
  std::string message;
  try {
    (void)nv::resolve<nv::shapes::qwen3_0_6b>(config);
  } catch (const nv::ConfigError& error) {
    message = error.what();
  }
  CAPTURE(message);
  for (const char* part : {"'hidden_size' is 1024 at compile time but 11 in config.json",
                           "'num_hidden_layers' is 28 at compile time but 12",
                           "'num_attention_heads' is 16 at compile time but 13",
                           "'num_key_value_heads' is 8 at compile time but 14",
                           "'head_dim' is 128 at compile time but 15",
                           "'intermediate_size' is 3072 at compile time but 16",
                           "'vocab_size' is 151936 at compile time but 17",
                           "'tie_word_embeddings' is true at compile time but false"}) {
    CHECK(message.find(part) != message.npos);
  }
  config = config_of(nv::shapes::qwen3_0_6b);
  config.tie_word_embeddings = false;
  try {
    (void)nv::resolve<nv::shapes::qwen3_0_6b>(config);
    FAIL("a model compiled as tied took an untied checkpoint");
  } catch (const nv::ConfigError& error) {
    CHECK(std::string(error.what()).find("hidden_size") == std::string::npos);
  }
}

TEST_CASE("The reference config files have the shapes that bear their names", "[shapes]") {
  const char* variable = std::getenv("NANOVLLM_SHARED");
  const std::filesystem::path shared = variable != nullptr ? variable : "../shared";
  if (!std::filesystem::exists(shared / "qwen3")) {
    std::puts("skipped: the reference config files are not there");
    return;
  }
  CHECK(nv::matches<nv::shapes::qwen3_0_6b>(nv::Qwen3Config::load(shared / "qwen3")));
  CHECK(nv::matches<nv::shapes::fairytale>(nv::Qwen3Config::load(shared / "models/fairytale")));
}
