// Fields of vLLM's requests that change an answer: each is served as vLLM does, or refused by name.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "api/serve/scripted_engine.hpp"
#include "catch.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/text/tokenizer.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using Catch::Matchers::Contains;
using nanovllm::test::Script;
using nanovllm::test::ScriptedEngine;

namespace {

const std::string kChat = R"("messages": [{"role": "user", "content": "Tell me a story"}])";

/// A service whose engine says "A König" to everything.
struct Served {
  Served() {
    engine.script = [](std::size_t, std::int32_t) { return Script{"A König"}; };
  }

  HttpReply post(const std::string& target, const std::string& fields) {
    const auto exchange =
        service.handle({.method = "POST", .target = target, .body = "{" + fields + "}"});
    while (engine.step()) {
    }
    HttpReply reply{.head = *exchange->head()};
    while (exchange->take(reply.body)) {
    }
    return reply;
  }
  Json chat(const std::string& fields) {
    return parse_json(post("/v1/chat/completions", kChat + ", " + fields).body);
  }
  Json complete(const std::string& fields) {
    return parse_json(post("/v1/completions", fields).body);
  }

  ScriptedEngine engine;
  OpenAiService service{engine};
};

void check_refused(const Json& reply, const std::string& param, const std::string& says) {
  INFO(reply.dump());
  const Json* error = reply.find("error");
  REQUIRE(error != nullptr);
  CHECK((*error)["param"] == param);
  CHECK_THAT((*error)["message"].string(), Contains(says));
}

}  // namespace

TEST_CASE("truncate_prompt_tokens keeps the last tokens of a prompt", "[serve]") {
  Served served;
  const std::vector<TokenId> ids = {5, 6, 7, 8, 9};
  SECTION("of token ids and texts") {
    const Json reply = served.complete(R"("prompt": [5, 6, 7, 8, 9], "truncate_prompt_tokens": 2)");
    CHECK(served.engine.last_prompt() == std::vector<TokenId>{8, 9});
    CHECK(reply["usage"]["prompt_tokens"] == 2);
    const std::string text = "There was once a poor man who had a daughter";
    const std::vector<TokenId> tokens = served.engine.text().tokenizer->encode(text);
    REQUIRE(tokens.size() > 4);
    (void)served.complete(R"("truncate_prompt_tokens": 4, "prompt": ")" + text + '"');
    CHECK(served.engine.last_prompt() == std::vector<TokenId>(tokens.end() - 4, tokens.end()));
  }
  SECTION("a shorter prompt stays as it is") {
    (void)served.complete(R"("prompt": [5, 6, 7, 8, 9], "truncate_prompt_tokens": 50)");
    CHECK(served.engine.last_prompt() == ids);
    (void)served.complete(R"("prompt": [5, 6, 7, 8, 9], "truncate_prompt_tokens": null)");
    CHECK(served.engine.last_prompt() == ids);
  }
  SECTION("-1 keeps what leaves room for max_tokens in the context") {
    served.engine.max_tokens_in_all = 64;
    std::string words;
    for (int i = 0; i < 5000; ++i) words += " time";
    const std::string fields = R"("truncate_prompt_tokens": -1, "max_tokens": 10, )";
    const Json reply = served.complete(fields + R"("prompt": ")" + words + '"');
    CHECK_FALSE(reply.contains("error"));
    CHECK(served.engine.last_prompt().size() == 54);
    const Json chat = served.chat(R"("truncate_prompt_tokens": -1)");
    CHECK_FALSE(chat.contains("error"));
    (void)served.post("/v1/chat/completions", R"("truncate_prompt_tokens": -1, "messages":
        [{"role": "user", "content": ")" + words + R"("}])");
    CHECK(served.engine.last_prompt().size() == 63);
    CHECK(served.engine.last_params().max_tokens == 1);
  }
  SECTION("of a chat, after the template") {
    (void)served.chat(R"("max_tokens": 4)");
    const std::vector<TokenId> all = served.engine.last_prompt();
    const Json reply = served.chat(R"("max_tokens": 4, "truncate_prompt_tokens": 3)");
    CHECK(served.engine.last_prompt() == std::vector<TokenId>(all.end() - 3, all.end()));
    CHECK(reply["usage"]["prompt_tokens"] == 3);
  }
  SECTION("an echo has what was kept") {
    const Json reply = served.complete(
        R"("prompt": "Once upon", "echo": true, "logprobs": 0, "truncate_prompt_tokens": 1)");
    CHECK(reply["choices"][0]["text"] == " uponA König");
    CHECK(reply["choices"][0]["logprobs"]["tokens"][0] == " upon");
  }
  SECTION("what is out of range is refused") {
    for (const char* value : {"0", "-2", "1.5", "true"}) {
      const std::string field = std::string(R"("truncate_prompt_tokens": )") + value;
      check_refused(served.chat(field), "truncate_prompt_tokens", "must be");
      check_refused(served.complete(R"("prompt": "A", )" + field), "truncate_prompt_tokens",
                    "must be");
    }
    check_refused(served.complete(R"("prompt": "A", "truncate_prompt_tokens": 4097)"),
                  "truncate_prompt_tokens", "at most 4096, the model's context length, got 4097");
  }
}

TEST_CASE("cache_salt goes to the engine with every prompt", "[serve]") {
  Served served;
  (void)served.chat(R"("cache_salt": "alice")");
  CHECK(served.engine.last_salt() == "alice");
  (void)served.chat(R"("cache_salt": "\u00e4\u0000b")");
  CHECK(served.engine.last_salt() == std::string("\xc3\xa4\0b", 4));
  (void)served.chat(R"("cache_salt": null)");
  CHECK(served.engine.last_salt().empty());
  std::vector<std::string> heard;
  served.engine.on_submit = [&](std::size_t) { heard.push_back(served.engine.salt_on_submit); };
  (void)served.complete(R"("prompt": ["A", "B", "C"], "cache_salt": "bob")");
  CHECK(heard == std::vector<std::string>{"bob", "bob", "bob"});
  (void)served.complete(R"("prompt": "A")");
  CHECK(heard.back().empty());
}

TEST_CASE("a cache_salt that is empty, too long or no text is refused", "[serve]") {
  Served served;
  const std::vector<std::pair<std::string, std::string>> table = {
      {R"("")", "cache_salt must not be empty"},
      {"7", "cache_salt must be a string, got 7"},
      {"true", "cache_salt must be a string"},
      {R"(["a"])", "cache_salt must be a string"},
      {'"' + std::string(513, 'x') + '"', "cache_salt must have at most 512 bytes, got 513"}};
  for (const auto& [value, says] : table) {
    const std::string field = R"("cache_salt": )" + value;
    check_refused(served.chat(field), "cache_salt", says);
    check_refused(served.complete(R"("prompt": "A", )" + field), "cache_salt", says);
  }
  CHECK(served.engine.num_submitted() == 0);
  (void)served.complete(R"("prompt": "A", "cache_salt": ")" + std::string(512, 'x') + '"');
  CHECK(served.engine.num_submitted() == 1);
}

TEST_CASE("return_tokens_as_token_ids names tokens by their ids", "[serve]") {
  Served served;
  const std::vector<TokenId> said = served.engine.text().tokenizer->encode("A König");
  const auto name = [](TokenId token) { return "token_id:" + std::to_string(token); };
  const std::string flag = R"(, "return_tokens_as_token_ids": true)";
  SECTION("in chats") {
    const std::string fields = R"("logprobs": true, "top_logprobs": 2)";
    const Json texts = served.chat(fields)["choices"][0]["logprobs"]["content"];
    const Json ids = served.chat(fields + flag)["choices"][0]["logprobs"]["content"];
    REQUIRE(ids.size() == said.size());
    for (std::size_t i = 0; i < said.size(); ++i) {
      CHECK(ids[i]["token"] == name(said[i]));
      CHECK(ids[i]["top_logprobs"][1]["token"] == name(said[i] + 1));
      CHECK(ids[i]["bytes"] == texts[i]["bytes"]);
      CHECK(ids[i]["logprob"] == texts[i]["logprob"]);
    }
  }
  SECTION("in completions, whose offsets are still those of the text") {
    const std::string fields = R"("prompt": "Once upon", "echo": true, "logprobs": 2)";
    const Json texts = served.complete(fields)["choices"][0]["logprobs"];
    const Json ids = served.complete(fields + flag)["choices"][0]["logprobs"];
    const std::vector<TokenId> prompt = served.engine.last_prompt();
    REQUIRE(ids["tokens"].size() == prompt.size() + said.size());
    CHECK(ids["tokens"][0] == name(prompt[0]));
    CHECK(ids["tokens"][prompt.size()] == name(said[0]));
    CHECK(ids["top_logprobs"][prompt.size()].contains(name(said[0] + 1)));
    CHECK(ids["text_offset"] == texts["text_offset"]);
  }
}

TEST_CASE("prompt_logprobs of chats, 0 included", "[serve]") {
  Served served;
  for (const int count : {0, 2}) {
    const Json reply = served.chat(R"("prompt_logprobs": )" + std::to_string(count));
    const Json* list = reply.find("prompt_logprobs");
    REQUIRE(list != nullptr);
    const std::vector<TokenId> prompt = served.engine.last_prompt();
    REQUIRE(list->size() == prompt.size());
    CHECK((*list)[0].is_null());
    CHECK((*list)[1].contains(std::to_string(prompt[1])));
    CHECK((*list)[1].items().size() == (count == 0 ? 1 : 2));
  }
  CHECK_FALSE(served.chat(R"("prompt_logprobs": null)").contains("prompt_logprobs"));
  check_refused(served.chat(R"("prompt_logprobs": 0, "stream": true)"), "prompt_logprobs",
                "cannot be streamed");
}

TEST_CASE("templates get documents, and completions refuse what is of chats", "[serve]") {
  Served served;
  const std::string documents = R"("documents": [{"title": "a", "text": "b"}])";
  CHECK_FALSE(served.chat(documents).contains("error"));
  CHECK_FALSE(served.chat(R"("documents": [])").contains("error"));
  CHECK(served.post("/tokenize", kChat + ", " + documents).head.status == 200);
  const std::string prompt = R"("prompt": "Once upon", )";
  check_refused(served.complete(prompt + R"("chat_template": "{{ messages }}")"), "chat_template",
                "completions");
  check_refused(served.complete(prompt + documents), "documents", "completions");
}

namespace {

/// A service whose tokeniser adds a token before a text, as Llama 3's does, and one after it.
struct ServedWithTemplate : Served {
  ServedWithTemplate() {
    std::ifstream stream("examples/models/fairytale/tokenizer.json");
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    Json file = parse_json(text);
    file["post_processor"] = parse_json(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
       "pair": [], "special_tokens": {
         "<|im_start|>": {"id": "<|im_start|>", "ids": [4092], "tokens": ["<|im_start|>"]},
         "<|endoftext|>": {"id": "<|endoftext|>", "ids": [4091], "tokens": ["<|endoftext|>"]}}}]})");
    engine.set_tokenizer(Tokenizer::from_json(file.dump()));
  }
  std::vector<TokenId> tokenize(const std::string& target, const std::string& fields) {
    const Json reply = parse_json(post(target, fields).body);
    INFO(reply.dump());
    std::vector<TokenId> ids;
    for (const Json& id : reply["tokens"]) ids.push_back(id.get<TokenId>());
    CHECK(reply["count"] == ids.size());
    return ids;
  }
};

std::vector<TokenId> wrapped(std::vector<TokenId> ids) {
  ids.insert(ids.begin(), 4092);
  ids.push_back(4091);
  return ids;
}

const std::string kYes = R"(, "add_special_tokens": true)";
const std::string kNo = R"(, "add_special_tokens": false)";

}  // namespace

TEST_CASE("add_special_tokens: texts have them unless false, conversations if true", "[serve]") {
  ServedWithTemplate served;
  const std::string prompt = R"("prompt": "Once upon")";
  const std::vector<TokenId> text = served.engine.text().tokenizer->encode("Once upon");
  SECTION("/tokenize") {
    for (const char* target : {"/tokenize", "/v1/tokenize"}) {
      CHECK(served.tokenize(target, prompt + kNo) == text);
      CHECK(served.tokenize(target, prompt + kYes) == wrapped(text));
      CHECK(served.tokenize(target, prompt) == wrapped(text));
      CHECK(served.tokenize(target, prompt + R"(, "add_special_tokens": null)") == wrapped(text));
      const std::vector<TokenId> chat = served.tokenize(target, kChat);
      CHECK(chat.front() == 4092);  // the template's own
      CHECK(chat.back() != 4091);
      CHECK(served.tokenize(target, kChat + kNo) == chat);
      CHECK(served.tokenize(target, kChat + kYes) == wrapped(chat));
    }
  }
  SECTION("/v1/completions") {
    (void)served.complete(prompt);
    CHECK(served.engine.last_prompt() == wrapped(text));
    (void)served.complete(prompt + kYes);
    CHECK(served.engine.last_prompt() == wrapped(text));
    const Json reply = served.complete(prompt + kNo);
    CHECK(served.engine.last_prompt() == text);
    CHECK(reply["usage"]["prompt_tokens"] == text.size());
    (void)served.complete(R"("prompt": [5, 6])" + kYes);  // ids are the client's own
    CHECK(served.engine.last_prompt() == std::vector<TokenId>{5, 6});
    (void)served.complete(prompt + kYes + R"(, "truncate_prompt_tokens": 3)");
    CHECK(served.engine.last_prompt() == wrapped({text.back()}));
    (void)served.complete(prompt + kNo + R"(, "truncate_prompt_tokens": 1)");
    CHECK(served.engine.last_prompt() == std::vector<TokenId>{text.back()});
  }
  SECTION("/v1/chat/completions") {
    (void)served.chat(R"("max_tokens": 4)");
    const std::vector<TokenId> chat = served.engine.last_prompt();
    CHECK(chat == served.tokenize("/tokenize", kChat));
    (void)served.chat(R"("max_tokens": 4)" + kNo);
    CHECK(served.engine.last_prompt() == chat);
    const Json reply = served.chat(R"("max_tokens": 4)" + kYes);
    CHECK(served.engine.last_prompt() == wrapped(chat));
    CHECK(reply["usage"]["prompt_tokens"] == chat.size() + 2);
  }
}

TEST_CASE("add_special_tokens without such tokens, and of a wrong type", "[serve]") {
  Served served;
  const auto tokens = [&](const std::string& fields) {
    return parse_json(served.post("/tokenize", fields).body)["tokens"];
  };
  CHECK(tokens(R"("prompt": "Once upon")" + kYes) == tokens(R"("prompt": "Once upon")" + kNo));
  CHECK(tokens(kChat + kYes) == tokens(kChat));
  for (const char* value : {"1", "\"false\"", "[true]", "{}"}) {
    const std::string field = std::string(R"("add_special_tokens": )") + value;
    const std::string says = "add_special_tokens must be true or false, got";
    check_refused(served.chat(field), "add_special_tokens", says);
    check_refused(served.complete(R"("prompt": "A", )" + field), "add_special_tokens", says);
    for (const std::string& body : {kChat, std::string(R"("prompt": "A")")}) {
      const HttpReply reply = served.post("/tokenize", body + ", " + field);
      CHECK(reply.head.status == 400);
      check_refused(parse_json(reply.body), "add_special_tokens", says);
    }
  }
}

TEST_CASE("special tokens of /detokenize, and without them", "[serve]") {
  Served served;
  const auto text = [&](const std::string& fields) {
    return parse_json(served.post("/detokenize", R"("tokens": [4092, 40, 4091])" + fields).body);
  };
  const std::string letter = served.engine.text().tokenizer->decode(std::vector<TokenId>{40});
  CHECK(text("")["prompt"] == "<|im_start|>" + letter + "<|endoftext|>");
  CHECK(text(R"(, "skip_special_tokens": false)") == text(""));
  CHECK(text(R"(, "skip_special_tokens": true)")["prompt"] == letter);
  check_refused(text(R"(, "skip_special_tokens": 1)"), "skip_special_tokens", "true or false");
}

TEST_CASE("fields of vLLM that would change an answer are refused by name", "[serve]") {
  Served served;
  // A field, values that ask for nothing, and one that asks for something.
  struct Row {
    const char* field;
    std::vector<const char*> idle;
    const char* asked;
  };
  const std::vector<Row> table = {{"truncation_side", {R"("left")"}, R"("right")"},
                                  {"padding", {R"("do_not_pad")"}, R"("max_length")"},
                                  {"audio", {}, R"({"voice": "alloy"})"},
                                  {"modalities", {R"(["text"])"}, R"(["text", "audio"])"},
                                  {"web_search_options", {}, "{}"},
                                  {"prompt_embeds", {}, R"("AAAA")"},
                                  {"include_reasoning", {"true"}, "false"},
                                  {"thinking_token_budget", {"-1"}, "100"},
                                  {"logprob_token_ids", {"[]"}, "[5]"},
                                  {"logits_processors", {"[]"}, R"(["a.B"])"},
                                  {"vllm_xargs", {"{}"}, R"({"a": 1})"},
                                  {"kv_transfer_params", {"{}"}, R"({"do_remote_decode": true})"},
                                  {"ec_transfer_params", {"{}"}, R"({"a": 1})"},
                                  {"repetition_detection", {}, R"({"max_pattern_size": 3})"},
                                  {"watermarking", {"false"}, "true"},
                                  {"return_prompt_text", {"false"}, "true"},
                                  {"guided_whitespace_pattern", {}, R"(" ?")"}};
  for (const Row& row : table) {
    const std::string name = std::string("\"") + row.field + "\": ";
    check_refused(served.chat(name + row.asked), row.field, row.field);
    check_refused(served.complete(R"("prompt": "A", )" + name + row.asked), row.field, row.field);
    std::vector<const char*> idle = row.idle;
    idle.push_back("null");
    for (const char* value : idle) {
      INFO(name << value);
      CHECK_FALSE(served.chat(name + value).contains("error"));
      CHECK_FALSE(served.complete(R"("prompt": "A", )" + name + value).contains("error"));
    }
  }
  check_refused(
      served.chat(R"("structured_outputs": {"json": {}, "disable_additional_properties": true})"),
      "structured_outputs.disable_additional_properties", "additionalProperties");
}
