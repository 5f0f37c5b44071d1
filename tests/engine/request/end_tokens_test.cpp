#include "nanovllm/engine/request/end_tokens.hpp"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "memory_checkpoint.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/grammar/regex/regex_source.hpp"
#include "nanovllm/sampling/choice_source.hpp"

using namespace nanovllm;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using nanovllm_test::MemoryCheckpoint;
using Ids = std::vector<TokenId>;
using TestEngine = Engine<AnyModel, Float32Policy>;

namespace {

constexpr TokenId kEndOfText = 4091, kTurnEnd = 4093;

/// The fairytale model whose config names `config_end`, or none, with further files.
MemoryCheckpoint files_with(const std::string& config_end,
                            const std::vector<std::pair<const char*, const char*>>& texts) {
  MemoryCheckpoint out = MemoryCheckpoint::copy_of(Checkpoint(model_directory("fairytale")));
  auto config = nlohmann::json::parse(out.texts.at("config.json"));
  config["eos_token_id"] = nlohmann::json::parse(config_end);
  out.texts["config.json"] = config.dump();
  out.texts["generation_config.json"] = "{}";
  for (const auto& [file, text] : texts) out.texts[file] = text;
  return out;
}

EngineConfig config_of(MemoryCheckpoint files, std::vector<std::string>& warnings) {
  return {.checkpoint = Checkpoint(std::move(files)),
          .num_threads = 1,
          .max_num_seqs = 4,
          .kv_size = KvSize::blocks(32),
          .on_warning = [&](std::string_view text) { warnings.emplace_back(text); }};
}

struct Found {
  Ids ends;
  std::vector<std::string> warnings;
};

Found ends_of(const std::string& config_end,
              const std::vector<std::pair<const char*, const char*>>& texts) {
  Found out;
  const TestEngine engine(config_of(files_with(config_end, texts), out.warnings));
  out.ends = engine.model_config().eos_token_ids;
  return out;
}

}  // namespace

TEST_CASE("the tokeniser's end token counts beside those of the config", "[end_tokens]") {
  const char *const kConfig = "tokenizer_config.json", *const kMap = "special_tokens_map.json";
  const char *const kText = R"({"eos_token": "<|im_end|>"})",
                    *const kObject = R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}})";
  for (const char* text : {kText, kObject}) {
    const Found both = ends_of("4091", {{kConfig, text}});
    CHECK(both.ends == Ids{kEndOfText, kTurnEnd});
    CHECK(both.warnings.empty());
    CHECK(ends_of("null", {{kConfig, text}}).ends == Ids{kTurnEnd});
    CHECK(ends_of("[4093]", {{kConfig, text}}).ends == Ids{kTurnEnd});
    CHECK(ends_of("null", {{kMap, text}}).ends == Ids{kTurnEnd});
    CHECK(ends_of("null", {{kConfig, R"({"eos_token": null})"}, {kMap, text}}).ends ==
          Ids{kTurnEnd});
  }
  for (const char* text : {"{}", R"({"eos_token": null})", R"({"eos_token": 3})", "[]"}) {
    CHECK(ends_of("4091", {{kConfig, text}}).ends == Ids{kEndOfText});
    CHECK(ends_of("4091", {{kConfig, text}}).warnings.empty());
  }
  const Found unknown = ends_of("4091", {{kConfig, R"({"eos_token": "</s>"})"}});
  CHECK(unknown.ends == Ids{kEndOfText});
  REQUIRE(unknown.warnings.size() == 1);
  CHECK_THAT(unknown.warnings[0], Contains("'eos_token' (</s>) of the tokeniser is ignored: "
                                           "tokenizer.json has no such token"));
  const Found broken = ends_of("4091", {{kConfig, "{"}});
  CHECK(broken.ends == Ids{kEndOfText});
  REQUIRE(broken.warnings.size() == 1);
  CHECK_THAT(broken.warnings[0], Contains("tokenizer_config.json is ignored"));
}

TEST_CASE("an answer ends at the end token of the tokeniser", "[end_tokens]") {
  std::vector<std::string> warnings;
  TestEngine engine(config_of(
      files_with("4091", {{"tokenizer_config.json", R"({"eos_token": "<|im_end|>"})"}}), warnings));
  SamplingParams params{.temperature = 0, .max_tokens = 5};
  params.logit_bias = {{kTurnEnd, 100.f}};
  const Output output = engine.generate("hi", params);
  CHECK(output.finish_reason == FinishReason::stop);
  CHECK(output.token_ids == Ids{kTurnEnd});
  CHECK(output.text.empty());
  params.ignore_eos = true;
  CHECK(engine.generate("hi", params).finish_reason == FinishReason::length);
}

TEST_CASE("where none is named the turn end of the chat template ends an answer", "[end_tokens]") {
  std::string chatml(Checkpoint(model_directory("fairytale")).required_text("chat_template.jinja"));
  const auto found = [&](const char* config_end,
                         std::vector<std::pair<const char*, const char*>> texts = {}) {
    texts.emplace_back("chat_template.jinja", chatml.c_str());
    return ends_of(config_end, texts);
  };
  CHECK(found("null").ends == Ids{kTurnEnd});
  CHECK(found("null").warnings.empty());
  CHECK(found("4091").ends == Ids{kEndOfText});  // named, so it alone
  CHECK(found("[151643]").ends == Ids{kTurnEnd});
  // One that cannot be asked, or that ends turns with ordinary text.
  std::vector<std::string> warnings;
  EngineConfig config = config_of(files_with("null", {}), warnings);
  config.chat_template = ChatTemplate::custom([](auto messages, const auto&) {
    return messages.back().find("content")->string() + "\n\nUser:";
  });
  CHECK(TestEngine(config).model_config().eos_token_ids.empty());
  config.chat_template = ChatTemplate::custom(
      [](auto, const auto&) -> std::string { throw RequestError("not today"); });
  CHECK(TestEngine(config).model_config().eos_token_ids.empty());
  CHECK(warnings.size() == 2);
}

TEST_CASE("without any end token constraints end where nothing can follow", "[end_tokens]") {
  std::vector<std::string> warnings;
  TestEngine engine(config_of(files_with("null", {}), warnings));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("the checkpoint names no end token"));
  CHECK(engine.model_config().eos_token_ids.empty());
  const auto vocabulary = std::make_shared<GrammarVocabulary>(engine.tokenizer(), Ids{});
  SamplingParams params{.temperature = 0, .max_tokens = 30};
  params.token_masks = std::make_shared<RegexSource>(vocabulary, "(Once|Twice) upon a time");
  const Output whole = engine.generate("Tell me", params);
  CHECK(whole.error.empty());
  CHECK(whole.finish_reason == FinishReason::stop);
  CHECK_THAT(whole.text, Contains(" upon a time"));
  params.token_masks = std::make_shared<RegexSource>(vocabulary, "a+");  // it may always go on
  const Output longest = engine.generate("Tell me", params);
  CHECK(longest.finish_reason == FinishReason::length);
  CHECK(longest.text.find_first_not_of('a') == longest.text.npos);
  const std::vector<Ids> choices = {{5, 6, 7}, {5, 6}};
  params.token_masks =
      std::make_shared<ChoiceSource>(choices, Ids{}, engine.model_config().vocab_size);
  const Output choice = engine.generate("Tell me", params);
  CHECK(choice.finish_reason == FinishReason::stop);
  CHECK(choice.token_ids == Ids{5, 6, 7});
  params.beam_width = 2;
  CHECK_THAT(engine.generate("Tell me", params).error, Contains("token_masks need an end token"));
}
