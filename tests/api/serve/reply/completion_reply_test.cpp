#include "nanovllm/api/serve/reply/completion_reply.hpp"
#include "nanovllm/text/tokenizer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "nanovllm/api/serve/reply/chat_reply.hpp"
#include "nanovllm/api/serve/reply/reply_writer.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

TEST_CASE("completions, whole and as streams", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  engine.script = [](std::size_t index, std::int32_t sample) {
    return Script{concat(" text ", index % 2, " ", sample, " Grüße"),
                  sample == 0 ? FinishReason::stop : FinishReason::length};
  };
  const std::string prompts = R"("prompt": ["Once upon", "The König"])";
  for (const std::string fields :
       {"", R"(, "n": 2)", R"(, "echo": true)", R"(, "logprobs": 2, "n": 2)",
        R"(, "return_token_ids": true, "n": 2)", R"(, "stop": "nothing")"}) {
    INFO(fields);
    Answer expected = whole(engine, service, completion_request(prompts + fields));
    for (const int steps : {1, 2, 100}) {
      const Answer answer = stream(
          engine, service,
          completion_request(prompts + fields +
                             R"(, "stream": true, "stream_options": {"include_usage": true})"),
          steps);
      if (fields.find("logprobs") == std::string::npos) CHECK(answer.messages == expected.messages);
      CHECK(answer.usage == expected.usage);
      CHECK(answer.messages.size() == expected.messages.size());
    }
  }
  const Answer two =
      whole(engine, service, completion_request(prompts + R"(, "n": 2, "echo": true)"));
  REQUIRE(two.messages.size() == 4);
  CHECK(two.messages[0].content == "Once upon text 0 0 Grüße");
  CHECK(two.messages[3].content == "The König text 1 1 Grüße");
  CHECK(two.messages[3].finish_reason == "length");
}

TEST_CASE("log-probabilities of completions", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  engine.script = [](std::size_t, std::int32_t) { return Script{" König"}; };
  const auto ask = [&](const std::string& fields) {
    const auto exchange = service.handle(completion_request(fields));
    return parse_json(follow(engine, *exchange));
  };
  SECTION("of an echo, offsets count characters") {
    const Json reply = ask(R"("prompt": "Grüße", "echo": true, "logprobs": 1)");
    const Json& choice = reply["choices"][0];
    CHECK(choice["text"] == "Grüße König");
    const Json& logprobs = choice["logprobs"];
    const std::size_t count = logprobs["tokens"].size();
    CHECK(logprobs["token_logprobs"].size() == count);
    CHECK(logprobs["top_logprobs"].size() == count);
    CHECK(logprobs["token_logprobs"][0].is_null());
    CHECK(logprobs["top_logprobs"][0].is_null());
    CHECK(logprobs["token_logprobs"][1] == -1.0);
    std::string text;
    std::int64_t characters = 0;
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(logprobs["text_offset"][i] == characters);
      for (const char c : logprobs["tokens"][i].string()) characters += (c & 0xC0) != 0x80;
      if (i > 0) CHECK(logprobs["top_logprobs"][i].contains(logprobs["tokens"][i].string()));
    }
  }
  SECTION("of a prompt alone") {
    const Json reply =
        ask(R"("prompt": "Once upon", "echo": true, "logprobs": 0, "max_tokens": 0)");
    CHECK(reply["choices"][0]["text"] == "Once upon");
    CHECK(reply["choices"][0]["logprobs"]["tokens"].dump() == R"(["Once", " upon"])");
    CHECK(reply["choices"][0]["finish_reason"] == "length");
    CHECK(reply["usage"]["completion_tokens"] == 0);
  }
  SECTION("by vLLM's field") {
    const Json reply = ask(R"("prompt": "Once upon", "prompt_logprobs": 1)");
    const Json& list = reply["choices"][0]["prompt_logprobs"];
    REQUIRE(list.size() == 2);
    CHECK(list[0].is_null());
    REQUIRE(list[1].items().size() == 1);
    CHECK(list[1].items()[0].value.dump() ==
          R"({"logprob": -1.0, "rank": 1, "decoded_token": " upon"})");
  }
  SECTION("of a stream they come before the rest of a choice") {
    const std::string fields =
        R"("prompt": ["Grüße", "Once upon"], "n": 2, "echo": true, "logprobs": 1)";
    const Json reply = ask(fields);
    for (const int steps : {1, 3}) {
      const auto exchange = service.handle(completion_request(fields + R"(, "stream": true)"));
      const std::string body = follow(engine, *exchange, steps);
      std::vector<Json> joined(4, Json::object());
      for (std::size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
        const Json chunk = parse_json(body.substr(at + 6, body.find('\n', at) - at - 6));
        for (const Json& choice : chunk["choices"]) {
          Json& all = joined[choice["index"].get<std::size_t>()];
          all["text"] = text_of(all, "text") + choice["text"].string();
          for (const auto& [key, list] : choice["logprobs"].items()) {
            if (!all.contains(key)) all[key] = Json::array();
            append_all(all[key], &list);
          }
        }
      }
      for (std::size_t i = 0; i < joined.size(); ++i) {
        const Json& choice = reply["choices"][i];
        CHECK(joined[i]["text"] == choice["text"]);
        for (const auto& [key, list] : choice["logprobs"].items()) CHECK(joined[i][key] == list);
      }
    }
    const Json refused = ask(R"("prompt": "Once", "prompt_logprobs": 1, "stream": true)");
    CHECK(refused["error"]["param"] == "prompt_logprobs");
  }
  SECTION("of a stream whose prompt is all there is") {
    const std::string body =
        follow(engine, *service.handle(completion_request(
                           R"("prompt": "Once upon", "echo": true, "logprobs": 0, "max_tokens": 0,
                       "stream": true)")));
    const Answer answer = read_stream(body);
    CHECK(answer.messages.at(0).content == "Once upon");
    CHECK(answer.messages.at(0).finish_reason == "length");
    CHECK_THAT(body, Contains(R"("tokens": ["Once", " upon"])"));
  }
}

TEST_CASE("minus infinity is written as a number, and tokens that are no text with their bytes",
          "[serve]") {
  const Tokenizer tokenizer = Tokenizer::from_file("examples/models/fairytale");
  TokenId part = -1;
  for (TokenId id = 0; id < 512 && part < 0; ++id) {
    if (tokenizer.token_bytes(id) == "\xC3") part = id;
  }
  REQUIRE(part >= 0);
  TokenLogprobs token{.token_id = part, .logprob = -std::numeric_limits<float>::infinity()};
  token.top = {{part, token.logprob}};
  const Json chat = chat_logprobs(tokenizer, token, 1);
  CHECK(chat["logprob"] == -9999.0);
  CHECK(chat["token"] == "\xEF\xBF\xBD");
  CHECK(chat["bytes"].dump() == "[195]");
  CompletionLogprobs list;
  list.add(tokenizer, token);
  CHECK(list.to_json()["token_logprobs"].dump() == "[-9999.0]");
  CHECK(list.offset() == 1);
}

TEST_CASE("what ended a choice", "[serve]") {
  const std::vector<TokenId> eos{4093};
  ReplySetup setup{.stop_tokens = StopTokens::of({.stop_token_ids = {7, 4093}}, eos)};
  const auto reason = [&](const ChoiceUpdate& update) {
    ReplyChoice choice;
    choice.add({.text = "a", .num_tokens = 1, .last_token = 7}, setup);
    choice.add(update, setup);
    choice.finish_reason = "stop";
    return choice.stop_reason(setup);
  };
  CHECK(reason({.last_token = 5, .stop_string = "pon a"}) == "pon a");
  CHECK(reason({.last_token = 7}) == 7);
  CHECK(reason({}) == 7);  // an end without a new token
  CHECK(reason({.last_token = 5}).is_null());
  CHECK(reason({.last_token = 4093}).is_null());
  setup.stop_tokens = StopTokens::of({.ignore_eos = true, .stop_token_ids = {4093}}, eos);
  CHECK(reason({.last_token = 4093}) == 4093);
}
