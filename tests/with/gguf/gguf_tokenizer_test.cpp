#include "nanovllm/with/gguf/gguf_tokenizer.hpp"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/text/tokenizer.hpp"
#include "nanovllm/with/gguf/gguf_file.hpp"
#include "weights_there.hpp"
#include "with/gguf/gguf_writer.hpp"

using namespace nanovllm;
using Catch::Matchers::Contains;
using nanovllm_test::GgufWriter;

namespace {

constexpr const char* kQwen2 = "tests/fixtures/gguf/vocab_qwen2.gguf";
constexpr const char* kGpt2 = "tests/fixtures/gguf/vocab_gpt2.gguf";

/// Four tokens with types of each kind.
GgufWriter small(std::string_view model = "gpt2", std::string_view pre = "qwen2") {
  GgufWriter out;
  out.add("tokenizer.ggml.model", model).add("tokenizer.ggml.pre", pre);
  out.add_strings("tokenizer.ggml.tokens", {"a", "<\"s\">", "tool", "[PAD]", "b", "ab"});
  out.add_array("tokenizer.ggml.token_type", GgufValueType::i32,
                std::vector<std::int32_t>{1, 3, 4, 5, 1, 1});
  out.add_strings("tokenizer.ggml.merges", {"a b"});
  return out;
}

nlohmann::json json_of(const GgufWriter& writer) {
  const std::string bytes = writer.bytes();
  const GgufFile file = GgufFile::parse(std::as_bytes(std::span(bytes)), "some.gguf");
  return nlohmann::json::parse(gguf_tokenizer_json(file).value());
}

const std::vector<std::string> kTexts = {
    "Once upon a time, there was a little fox.",
    "I'LL say what they've DONE; he's 'tis it'S",
    "  two spaces,\ttabs\n\nand lines \n ",
    "1234 56,789.0 3rd",
    "Zwölf Boxkämpfer jagen Viktor",
    "\u4f60\u597d\uff0c\u4e16\u754c! \u041f\u0440\u0438\u0432\u0435\u0442",
    "<|endoftext|>The end.<|im_start|>user\n<think></think><|im_end|>",
    "__init__(self):  # ---",
    "e\u0301 \u00e9 [PAD1][PAD2]",
    ""};

}  // namespace

TEST_CASE("a GGUF's vocabulary gives the ids of the tokenizer.json it was made of", "[gguf]") {
  const auto [file, model] =
      GENERATE(table<std::string, std::string>({{kQwen2, "fairytale"}, {kGpt2, "tiny_gpt2"}}));
  INFO(file);
  if (model == "tiny_gpt2" && !test::weights_there(model)) return;
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(Checkpoint(file));
  const Tokenizer original = Tokenizer::from_checkpoint(Checkpoint("examples/models/" + model));
  for (const std::string& text : kTexts) {
    INFO(text);
    const std::vector<TokenId> ids = tokenizer.encode(text);
    CHECK(ids == original.encode(text));
    CHECK(tokenizer.encode_with_template(text) == original.encode_with_template(text));
    CHECK(tokenizer.decode(ids) == original.decode(ids));
    CHECK(tokenizer.decode(ids, false) == original.decode(ids, false));
  }
}

TEST_CASE("a GGUF's vocabulary gives the ids of the reference", "[gguf]") {
  // Random strings and what the package tokenizers makes of them; see tests/oracle/README.md.
  const Tokenizer tokenizer = Tokenizer::from_checkpoint(Checkpoint(kQwen2));
  std::ifstream file("tests/fixtures/tokenizer_fairytale.json");
  const nlohmann::json suite = nlohmann::json::parse(file).at("suites").at(0);
  REQUIRE(suite.at("extra_added_tokens").empty());
  REQUIRE(suite.at("encode").size() == 750);
  for (const auto& entry : suite.at("encode")) {
    INFO(entry[0]);
    CHECK(tokenizer.encode(entry[0].get<std::string>()) == entry[1].get<std::vector<TokenId>>());
  }
  for (const auto& entry : suite.at("decode")) {
    INFO(entry);
    CHECK(tokenizer.decode(entry[0].get<std::vector<TokenId>>(), entry[1].get<bool>()) ==
          entry[2].get<std::string>());
  }
}

TEST_CASE("the tokens of a GGUF are added, special or left out by their types", "[gguf]") {
  const nlohmann::json json = json_of(small());
  const nlohmann::json vocabulary = {{"a", 0}, {"b", 4}, {"ab", 5}};
  CHECK(json.at("model").at("vocab") == vocabulary);
  CHECK(json.at("model").at("merges") == nlohmann::json{"a b"});
  REQUIRE(json.at("added_tokens").size() == 2);
  CHECK(json.at("added_tokens")[0].at("content") == "<\"s\">");
  CHECK(json.at("added_tokens")[0].at("id") == 1);
  CHECK(json.at("added_tokens")[0].at("special") == true);
  CHECK(json.at("added_tokens")[1].at("content") == "tool");
  CHECK(json.at("added_tokens")[1].at("special") == false);
  CHECK(json.at("post_processor").at("type") == "ByteLevel");
  CHECK(json_of(small("gpt2", "gpt-2")).at("normalizer").is_null());
}

TEST_CASE("first and last tokens that a GGUF adds are a template", "[gguf]") {
  GgufWriter writer = small();
  writer.add("tokenizer.ggml.add_bos_token", true).add("tokenizer.ggml.bos_token_id", 1u);
  writer.add("tokenizer.ggml.eos_token_id", 2u);
  const nlohmann::json first = json_of(writer).at("post_processor");
  CHECK(first.at("type") == "TemplateProcessing");
  REQUIRE(first.at("single").size() == 2);
  CHECK(first.at("single")[0].at("SpecialToken").at("id") == "<\"s\">");
  CHECK(first.at("special_tokens").at("<\"s\">").at("ids") == nlohmann::json{1});
  writer.add("tokenizer.ggml.add_eos_token", true);
  const nlohmann::json both = json_of(writer).at("post_processor");
  REQUIRE(both.at("single").size() == 3);
  CHECK(both.at("single")[1].contains("Sequence"));
  CHECK(both.at("single")[2].at("SpecialToken").at("id") == "tool");
}

TEST_CASE("a GGUF's tokenizer of another kind is refused by name", "[gguf]") {
  CHECK_THROWS_WITH(json_of(small("llama")),
                    "'some.gguf': 'tokenizer.ggml.model' is 'llama'; supported: gpt2");
  CHECK_THROWS_WITH(json_of(small("gpt2", "llama-bpe")),
                    "'some.gguf': 'tokenizer.ggml.pre' is 'llama-bpe'; supported: qwen2, "
                    "deepseek-r1-qwen, kormo, f2llmv2, megrez, gpt-2, phi-2, jina-es, jina-de, "
                    "gigachat");
  // Other names of the same: llama.cpp's converter knows a tokeniser by a hash of what it does.
  for (const char* alias : {"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"})
    CHECK(json_of(small("gpt2", alias)) == json_of(small("gpt2", "qwen2")));
  CHECK(json_of(small("gpt2", "phi-2")) == json_of(small("gpt2", "gpt-2")));
  GgufWriter types;
  types.add_strings("tokenizer.ggml.tokens", {"a"});
  GgufWriter wrong = types;
  wrong.add_array("tokenizer.ggml.token_type", GgufValueType::i32, std::vector<std::int32_t>{7});
  CHECK_THROWS_WITH(json_of(wrong), Contains("must have numbers in [1, 6], got 7 for token 0"));
  types.add_array("tokenizer.ggml.token_type", GgufValueType::i32, std::vector<std::int32_t>{});
  CHECK_THROWS_WITH(json_of(types), Contains("has 0 entries, but there are 1 tokens"));
  GgufWriter merges;
  merges.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-2");
  merges.add_strings("tokenizer.ggml.tokens", {"a"});
  CHECK_THROWS_WITH(json_of(merges), Contains("'tokenizer.ggml.merges' is missing"));
  GgufWriter outside = small();
  outside.add("tokenizer.ggml.add_eos_token", true).add("tokenizer.ggml.eos_token_id", 6u);
  CHECK_THROWS_WITH(json_of(outside),
                    Contains("'tokenizer.ggml.eos_token_id' must be in [0, 6), got 6"));
}

TEST_CASE("a GGUF's chat templates are those of the checkpoint", "[gguf]") {
  const Checkpoint checkpoint(kQwen2);
  const Checkpoint original("examples/models/fairytale");
  CHECK(checkpoint.text("chat_template.jinja") == original.text("chat_template.jinja"));
  CHECK(ChatTemplate::from_checkpoint(checkpoint).render({{"user", "Hello"}}) ==
        ChatTemplate::from_checkpoint(original).render({{"user", "Hello"}}));
  const auto config = nlohmann::json::parse(checkpoint.text("tokenizer_config.json").value());
  CHECK(config.at("eos_token") == "<|im_end|>");
  CHECK(config.at("pad_token") == "<|endoftext|>");
  CHECK_FALSE(config.contains("bos_token"));

  GgufWriter several = small();
  several.add("tokenizer.chat_template", "first").add("tokenizer.chat_template.tool_use", "second");
  several.add_strings("tokenizer.chat_templates", {"tool_use"});
  const std::string bytes = several.bytes();
  const GgufFile file = GgufFile::parse(std::as_bytes(std::span(bytes)));
  CHECK_FALSE(gguf_chat_template(file).has_value());
  const nlohmann::json list = {{{"name", "default"}, {"template", "first"}},
                               {{"name", "tool_use"}, {"template", "second"}}};
  CHECK(nlohmann::json::parse(gguf_tokenizer_config_json(file).value()).at("chat_template") ==
        list);
}
