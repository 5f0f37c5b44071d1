#include "nanovllm/model/generation_config.hpp"

#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;

namespace {

nv::GenerationConfig parse(std::string_view text) { return nv::GenerationConfig::from_json(text); }

std::string error_of(std::string_view text) {
  try {
    (void)parse(text);
    return {};
  } catch (const nv::ConfigError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("Qwen3's own sampling defaults are read", "[generation_config]") {
  const auto config = parse(R"({"bos_token_id": 151643, "do_sample": true,
      "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6, "top_k": 20,
      "top_p": 0.95, "transformers_version": "4.51.0"})");
  CHECK(config.eos_token_ids == std::vector<nv::TokenId>{151643, 151645});
  CHECK(config.temperature == 0.6f);
  CHECK(config.top_k == 20);
  CHECK(config.top_p == 0.95f);
  CHECK_FALSE(config.min_p.has_value());
}

TEST_CASE("What the file does not say is unset", "[generation_config]") {
  const auto config = parse(R"({"temperature": null, "top_k": null})");
  CHECK(config.eos_token_ids.empty());
  CHECK_FALSE(config.temperature.has_value());
  CHECK_FALSE(config.top_k.has_value());
  CHECK_FALSE(config.top_p.has_value());
  CHECK_FALSE(config.min_p.has_value());
}

TEST_CASE("do_sample false means greedy, whatever the temperature", "[generation_config]") {
  CHECK(parse(R"({"do_sample": false, "max_new_tokens": 2048})").temperature == 0.f);
  CHECK(parse(R"({"do_sample": false, "temperature": 0.7})").temperature == 0.f);
  CHECK(parse(R"({"do_sample": true, "temperature": 0.7})").temperature == 0.7f);
  CHECK(parse(R"({"temperature": 0.7})").temperature == 0.7f);
}

TEST_CASE("What a greedy file says of filters does not matter", "[generation_config]") {
  const auto config = parse(R"({"do_sample": false, "temperature": -1, "top_k": -5, "top_p": 1.5,
                                "min_p": 2, "repetition_penalty": 1.1})");
  CHECK(config.temperature == 0.f);
  CHECK_FALSE((config.top_k || config.top_p || config.min_p));
  CHECK(config.repetition_penalty == 1.1f);
  CHECK(parse(R"({"do_sample": false, "top_p": 0.8, "top_k": 20})").top_p == 0.8f);
  CHECK(parse(R"({"do_sample": false, "top_k": 20})").top_k == 20);
  CHECK(error_of(R"({"do_sample": true, "top_p": 1.5})").find("'top_p' must be") !=
        std::string::npos);
  CHECK(error_of(R"({"do_sample": false, "repetition_penalty": 0})").find("'repetition_penalty'") !=
        std::string::npos);
}

TEST_CASE("Integers that are no token's id do not end a text", "[generation_config]") {
  CHECK(parse(R"({"eos_token_id": [7, -1, 4294967296]})").eos_token_ids ==
        std::vector<nv::TokenId>{7});
}

TEST_CASE("Sampling values out of range are refused, all at once", "[generation_config]") {
  const std::string message =
      error_of(R"({"do_sample": 1, "temperature": -0.1, "top_k": -2, "top_p": -1, "min_p": 1.5})");
  CAPTURE(message);
  for (const char* part : {"5 problems", "'do_sample' must be", "'temperature' must be",
                           "'top_k' must be", "'top_p' must be", "'min_p' must be"}) {
    CHECK(message.find(part) != message.npos);
  }
  for (const char* text :
       {R"({"temperature": "0.6"})", R"({"temperature": 1e300})", R"({"top_k": 2.5})",
        R"({"top_k": 4294967296})", R"({"top_p": 1.01})", R"({"top_p": [0.9]})", R"({"min_p": -1})",
        R"({"eos_token_id": {}})", "[]", "", "{"}) {
    CAPTURE(text);
    CHECK(error_of(text).find("generation_config.json") != std::string::npos);
  }
  for (const char* ids : {R"([5, "a", {}])", R"("a")"})
    CHECK(error_of(nv::concat(R"({"eos_token_id": )", ids, "}"))
              .find("'eos_token_id' must be a token id or a list of them, got \"a\"") !=
          std::string::npos);
}
