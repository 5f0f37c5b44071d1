// `--speculative-config` and its short forms: what they set, and what is refused.

#include "../../examples/speculation_options.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"

using namespace nanovllm;
using namespace nanovllm::examples;

namespace {

std::optional<SpeculativeConfig> config_of(const std::string& json) {
  SpeculationOptions options;
  options.config = json;
  return speculative_config(options);
}

/// What CLI11 makes of a command line; throws its errors.
std::optional<SpeculativeConfig> parsed(std::vector<std::string> arguments) {
  CLI::App app;
  SpeculationOptions options;
  add_speculation_options(app, options);
  std::ranges::reverse(arguments);  // as CLI11 takes them
  app.parse(arguments);
  return speculative_config(options);
}

}  // namespace

TEST_CASE("nothing is drafted unless it is asked for", "[examples]") {
  CHECK_FALSE(speculative_config({}));
  CHECK_FALSE(parsed({}));
}

TEST_CASE("vLLM's JSON of n-grams is read", "[examples]") {
  const auto config = config_of(
      R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5,
          "prompt_lookup_min": 2})");
  REQUIRE(config);
  CHECK(config->method == "ngram");
  CHECK(config->num_speculative_tokens == 3);
  CHECK(config->lookup_max() == 5);
  CHECK(config->lookup_min() == 2);
  CHECK(config->adaptive);
  CHECK(config_of("{}")->method == "ngram");
  CHECK(config_of("{}")->num_speculative_tokens == 5);
  CHECK_FALSE(config_of(R"({"adaptive": false})")->adaptive);
}

TEST_CASE("vLLM's JSON of a draft model is read", "[examples]") {
  const auto config =
      config_of(R"({"model": "small", "num_speculative_tokens": 4, "model_kv_blocks": 100})");
  REQUIRE(config);
  CHECK(config->method == "draft_model");  // since there is a model
  CHECK(config->model == "small");
  CHECK(config->num_speculative_tokens == 4);
  REQUIRE(config->model_kv_size);
  CHECK(to_text(*config->model_kv_size) == to_text(KvSize::blocks(100)));
}

TEST_CASE("short forms are the members of the JSON", "[examples]") {
  CHECK(parsed({"--speculative-config", R"({"num_speculative_tokens": 2})"})
            ->num_speculative_tokens == 2);
  CHECK(parsed({"--speculative-tokens", "7"})->num_speculative_tokens == 7);
  CHECK(parsed({"--speculative-tokens", "7"})->method == "ngram");
  CHECK(parsed({"--speculative-tokens", "0"})->num_speculative_tokens == 0);
  CHECK(parsed({"--speculative-method", "ngram"})->num_speculative_tokens == 5);
  const auto drafted = parsed({"--speculative-model", "small", "--speculative-tokens", "3"});
  CHECK(drafted->method == "draft_model");
  CHECK(drafted->model == "small");
  CHECK_THROWS_AS(parsed({"--speculative-config", "{}", "--speculative-tokens", "7"}),
                  CLI::ExcludesError);
  CHECK_THROWS_AS(parsed({"--speculative-tokens", "-1"}), CLI::ValidationError);
  CHECK_THROWS_AS(parsed({"--speculative-tokens", "64"}), CLI::ValidationError);
  CHECK_THROWS_WITH(parsed({"--speculative-method", "eagle"}),
                    "--speculative-method: expected ngram, draft_model or eagle3, got 'eagle'; did "
                    "you mean eagle3?");
  CHECK_THROWS_WITH(parsed({"--speculative-method", "draft_model"}),
                    "speculative method draft_model: expected a model, a directory or GGUF file, "
                    "and none was given");
}

TEST_CASE("what the JSON cannot be is refused by name", "[examples]") {
  CHECK_THROWS_WITH(config_of("[1]"), "--speculative-config: expected a JSON object, got array");
  CHECK_THROWS_WITH(config_of("ngram"), Catch::StartsWith("--speculative-config is "));
  CHECK_THROWS_WITH(config_of(R"({"method": "ngrams"})"),
                    "--speculative-config: method: expected ngram, draft_model or eagle3, got "
                    "'ngrams'; did you mean ngram?");
  CHECK_THROWS_WITH(config_of(R"({"method": 3})"),
                    "--speculative-config: method must be a string, got 3");
  CHECK_THROWS_WITH(config_of(R"({"num_speculative_token": 3})"),
                    "--speculative-config: a key: expected method, model, num_speculative_tokens, "
                    "prompt_lookup_max, prompt_lookup_min, adaptive or model_kv_blocks, got "
                    "'num_speculative_token'; did you mean num_speculative_tokens?");
  CHECK_THROWS_WITH(config_of(R"({"num_speculative_tokens": -1})"),
                    "--speculative-config: num_speculative_tokens must be an integer in [0, 63], "
                    "got -1");
  CHECK_THROWS_WITH(
      config_of(R"({"prompt_lookup_min": 0})"),
      "--speculative-config: prompt_lookup_min must be an integer in [1, 256], got 0");
  CHECK_THROWS_WITH(config_of(R"({"prompt_lookup_max": 2147483647})"),
                    "--speculative-config: prompt_lookup_max must be an integer in [1, 256], got "
                    "2147483647");
  CHECK_THROWS_WITH(config_of(""), Catch::StartsWith("--speculative-config is "));
  for (const auto& empty : {std::vector<std::string>{"--speculative-model", ""},
                            {"--speculative-config", R"({"model": ""})"}})
    CHECK_THROWS_WITH(parsed(empty),
                      "speculative model: expected a directory or GGUF file, got ''");
  CHECK_THROWS_WITH(config_of(R"({"adaptive": "no"})"),
                    "--speculative-config: adaptive must be true or false, got \"no\"");
  CHECK_THROWS_WITH(config_of(R"({"prompt_lookup_min": 4, "prompt_lookup_max": 2})"),
                    "SpeculativeConfig: prompt_lookup_min must be in [1, prompt_lookup_max = 2], "
                    "got 4");
}

TEST_CASE("a member that the JSON has twice is refused", "[examples]") {
  CHECK_THROWS_WITH(
      config_of(R"({"num_speculative_tokens": 3, "method": "ngram", "num_speculative_tokens": 7})"),
      "--speculative-config: num_speculative_tokens: expected at most once, got it twice");
  CHECK_THROWS_WITH(config_of(R"({"method": "ngram", "m\u0065thod": "ngram"})"),
                    "--speculative-config: method: expected at most once, got it twice");
  // Of two objects each may have it; what is wrong here is the type.
  CHECK_THROWS_WITH(config_of(R"({"method": {"method": 1}})"),
                    "--speculative-config: method must be a string, got an object of 1");
}

TEST_CASE("what drafts is said in a line", "[examples]") {
  CHECK(describe(*config_of(R"({"prompt_lookup_max": 4, "prompt_lookup_min": 2})")) ==
        "ngram, up to 5 tokens at a time, after 2 to 4 that came before");
  CHECK(describe(*config_of(R"({"prompt_lookup_max": 4})")) ==
        "ngram, up to 5 tokens at a time, after 4 that came before");
  CHECK(describe(*config_of(R"({"model": "small", "num_speculative_tokens": 3})")) ==
        "draft_model, up to 3 tokens at a time, model 'small'");
  CHECK(describe(*config_of(R"({"method": "eagle3", "model": "head"})")) ==
        "eagle3, up to 5 tokens at a time, model 'head'");
  CHECK(describe(*config_of(R"({"num_speculative_tokens": 0})")) ==
        "none, as num_speculative_tokens is 0");
}

TEST_CASE("without a method the model says which it is", "[examples]") {
  const std::string head = "examples/models/fairytale_eagle3";
  CHECK(config_of(R"({"model": ")" + head + "\"}")->method == "eagle3");
  CHECK(parsed({"--speculative-model", head})->method == "eagle3");
  CHECK(config_of(R"({"model": "examples/models/fairytale"})")->method == "draft_model");
  CHECK(config_of(R"({"method": "draft_model", "model": ")" + head + "\"}")->method ==
        "draft_model");  // which the engine refuses
  CHECK_THROWS_WITH(config_of(R"({"model_kv_blocks": 7, "model": ")" + head + "\"}"),
                    Catch::StartsWith("speculative method eagle3: model_kv_blocks is for"));
}

TEST_CASE("members of one method are refused for the other", "[examples]") {
  CHECK_THROWS_WITH(config_of(R"({"method": "ngram", "model": "small"})"),
                    "speculative method ngram: model is for draft_model and eagle3, and "
                    "model_kv_blocks for draft_model, got model 'small'");
  CHECK_THROWS_WITH(config_of(R"({"model_kv_blocks": 7})"),
                    "speculative method ngram: model is for draft_model and eagle3, and "
                    "model_kv_blocks for draft_model");
  CHECK_THROWS_WITH(config_of(R"({"method": "draft_model"})"),
                    Catch::StartsWith("speculative method draft_model: expected a model"));
  CHECK(config_of(R"({"method": "eagle3", "model": "head"})")->model == "head");
  CHECK_THROWS_WITH(config_of(R"({"method": "eagle3"})"),
                    "speculative method eagle3: expected a model, a directory of a head, and none "
                    "was given");
  CHECK_THROWS_WITH(config_of(R"({"method": "eagle3", "model": "head", "model_kv_blocks": 7})"),
                    "speculative method eagle3: model_kv_blocks is for draft_model; a head's pool "
                    "has the target's blocks");
  CHECK_THROWS_WITH(
      config_of(R"({"method": "eagle3", "model": "head", "prompt_lookup_max": 3})"),
      "speculative method eagle3: prompt_lookup_max and prompt_lookup_min are for ngram");
  CHECK_THROWS_WITH(config_of(R"({"model": "small", "prompt_lookup_max": 3})"),
                    "speculative method draft_model: prompt_lookup_max and prompt_lookup_min are "
                    "for ngram");
}
