#include "nanovllm/api/serve/engine_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "nanovllm/api/serve/reply/pending_output.hpp"
#include "nanovllm/api/serve/service_load.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;

TEST_CASE("a slow reader costs the text and gets it in one chunk a choice", "[serve]") {
  ScriptedEngine engine;
  engine.max_tokens_in_all = 1'000'000;
  OpenAiService service(engine);
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += " time";
  engine.script = [&](std::size_t, std::int32_t) { return Script{text}; };
  const auto exchange = service.handle(chat_request(R"("stream": true, "n": 2)"));
  std::string body;
  for (int i = 0; i < 9'999; ++i) engine.step();
  CHECK(exchange->head() != nullptr);
  const auto has_rest = std::make_shared<bool>(true);
  while (std::exchange(*has_rest, false)) {
    const std::size_t before = body.size();
    CHECK(exchange->take(body));
    exchange->notify([has_rest] { *has_rest = true; });
    CHECK(body.size() - before < 64 * 1024 + 2048 * 5 + 1'000);  // the bound, and a chunk
  }
  const std::string events = body + "data: [DONE]\n\n";
  Answer answer = read_stream(events);
  CHECK(answer.num_chunks == 2 + 2 * 5);  // two with the role
  CHECK(answer.messages[0].content.size() == text.size() - 5);
  CHECK(answer.messages[1].content.size() == text.size() - 5);
  CHECK(body.size() < 2 * text.size() + 4'000);
  body.clear();
  CHECK(exchange->take(body));
  CHECK(body.empty());
  body += follow(engine, *exchange);
  CHECK(read_stream(body).messages[1].content == " time");
}

TEST_CASE("one take of a stream is bounded, and all of it comes in order", "[serve]") {
  ScriptedEngine engine;
  engine.max_tokens_in_all = 1'000'000;
  OpenAiService service(engine);
  std::string text;
  for (int i = 0; i < 500; ++i) text += concat(" König ", i);
  engine.script = [&](std::size_t, std::int32_t) { return Script{text, FinishReason::length}; };
  const std::string streamed = R"(, "stream": true, "stream_options": {"include_usage": true})";
  const std::string echo =
      concat(R"("prompt": ")", text, R"(", "echo": true, "logprobs": 20, "n": 2)");
  const std::string chat = R"("logprobs": true, "top_logprobs": 20, "n": 3)";
  for (const bool is_chat : {true, false}) {
    const auto request = [&](const std::string& further) {
      return is_chat ? chat_request(chat + further) : completion_request(echo + further);
    };
    const Answer expected = whole(engine, service, request(""));
    const auto exchange = service.handle(request(streamed));
    while (engine.step()) {
    }
    std::string body;
    int num_takes = 0;
    for (bool has_more = true; has_more; ++num_takes) {
      bool is_woken = false;
      exchange->notify([&] { is_woken = true; });
      REQUIRE(is_woken);
      std::string piece;
      has_more = exchange->take(piece);
      CHECK(piece.size() < 128 * 1024);
      body += piece;
    }
    CHECK(num_takes > 10);
    const Answer answer = read_stream(body);
    CHECK(answer.is_done);
    CHECK(answer.usage == expected.usage);
    REQUIRE(answer.messages.size() == expected.messages.size());
    for (std::size_t i = 0; i < expected.messages.size(); ++i) {
      CHECK(answer.messages[i].content == expected.messages[i].content);
      CHECK(answer.messages[i].finish_reason == "length");
      if (is_chat) CHECK(answer.messages[i].logprobs == expected.messages[i].logprobs);
    }
    const auto cancelled = service.handle(request(streamed));
    while (engine.step()) {
    }
    CHECK(cancelled->take(body));
    cancelled->cancel();
    CHECK_FALSE(cancelled->take(body));
  }
}

TEST_CASE("a reply that is to fail ends with the error", "[serve]") {
  const ApiError error(503, "the server ends");
  for (const std::string path : {"/v1/chat/completions", "/v1/messages", "/v1/responses"}) {
    for (const bool is_stream : {true, false}) {
      INFO(path << is_stream);
      ScriptedEngine engine;
      OpenAiService service(engine);
      const std::string fields =
          R"("messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "max_tokens": 9)";
      const auto exchange =
          service.handle({.method = "POST",
                          .target = path,
                          .body = concat("{", fields, is_stream ? R"(, "stream": true})" : "}")});
      engine.step();
      std::string body;
      if (is_stream) CHECK(exchange->take(body));
      CHECK((exchange->head() != nullptr) == is_stream);
      exchange->fail(error);
      CHECK(engine.num_aborted() == 1);
      bool is_woken = false;
      exchange->notify([&] { is_woken = true; });
      CHECK(is_woken);
      REQUIRE(exchange->head() != nullptr);
      CHECK(exchange->head()->status == (is_stream ? 200 : 503));
      const std::pair<std::string, std::string> retry{"Retry-After", "1"};
      CHECK(std::ranges::count(exchange->head()->headers, retry) == (is_stream ? 0 : 1));
      body.clear();
      CHECK_FALSE(exchange->take(body));
      CHECK_THAT(body, Catch::Contains("the server ends"));
      if (is_stream && path == "/v1/chat/completions")
        CHECK_THAT(body, Catch::EndsWith("data: [DONE]\n\n"));
      CHECK(exchange->summary().outcome == "error");
      exchange->fail(error);  // no second error
      body.clear();
      CHECK_FALSE(exchange->take(body));
      CHECK(body.empty());
    }
  }
  // What is complete stays as it is.
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto exchange = service.handle(chat_request(""));
  const Answer expected = read_reply(follow(engine, *exchange));
  exchange->fail(error);
  CHECK(exchange->head()->status == 200);
  CHECK(expected.messages[0].finish_reason == "stop");
}

TEST_CASE("choices wait for their prompt's log-probabilities where these come first", "[serve]") {
  PendingOutput pending(
      {.num_prompts = 2, .num_choices = 2, .is_stream = true, .prompts_first = true},
      std::make_shared<ServiceLoad>());
  const TokenId token = 7;
  const PromptLogprobs prompt(3);
  OutputUpdate update;
  pending.hear(1, {.sample = 1, .token = &token, .text = "B"});
  pending.take(update);
  for (const ChoiceUpdate& choice : update.choices) CHECK(choice.empty());
  pending.hear(1, {.sample = 0, .token = &token, .text = "A", .prompt_logprobs = &prompt});
  pending.take(update);
  CHECK(update.prompt_logprobs.at(0).empty());
  CHECK(update.prompt_logprobs.at(1).size() == 3);
  CHECK(update.choices.at(2).text == "A");
  CHECK(update.choices.at(3).text == "B");
  pending.hear(1, {.sample = 0, .token = &token, .text = "C", .prompt_logprobs = &prompt});
  pending.take(update);
  CHECK(update.prompt_logprobs.at(1).empty());  // once
  CHECK(update.choices.at(2).text == "C");
}

TEST_CASE("a client that leaves takes its requests back, whenever it does", "[serve]") {
  const bool streams = GENERATE(true, false);
  const bool destroys = GENERATE(true, false);
  const std::string text = "Once upon a time.";
  for (int steps = 0; steps <= 6; ++steps) {
    ScriptedEngine engine;
    engine.script = [&](std::size_t, std::int32_t) { return Script{text}; };
    OpenAiService service(engine);
    auto exchange = service.handle(
        completion_request(concat(R"("prompt": ["A", "B"], "n": 2, "stream": )", streams)));
    CHECK(service.num_unfinished() == 4);
    for (int i = 0; i < steps; ++i) engine.step();
    std::atomic<int> num_woken = 0;
    static_cast<void>(exchange->head());
    std::string body;
    if (steps % 2 == 0) static_cast<void>(exchange->take(body));
    exchange->notify([&] { ++num_woken; });
    if (destroys) {
      const int before = num_woken;
      exchange.reset();
      CHECK(num_woken == before);
    } else {
      exchange->cancel();
      exchange->cancel();
      CHECK(num_woken == 1);
      std::string rest;
      CHECK_FALSE(exchange->take(rest));
      CHECK(rest.empty());
      if (steps < 5) CHECK(exchange->summary().outcome == "abort");
    }
    CHECK(engine.num_aborted() == (steps < 5 ? 2 : 0));
    engine.step();
    CHECK(engine.num_alive() == 0);
    CHECK(service.num_unfinished() == 0);
    if (exchange && !streams && steps < 5) CHECK(exchange->head() == nullptr);
  }
}

TEST_CASE("a transport whose wake-up fails is woken by what comes next", "[serve]") {
  int num_calls = 0;
  const auto fails_once = [&] {
    if (++num_calls == 1) throw std::bad_alloc();
  };
  PendingOutput pending({.is_stream = true}, std::make_shared<ServiceLoad>());
  pending.mark_head();
  const TokenId token = 5;
  const TokenEvent event{.token = &token, .text = "a"};
  pending.notify(fails_once);
  CHECK_THROWS_AS(pending.hear(0, event), std::bad_alloc);  // which ends the request
  pending.hear(0, event);
  CHECK(num_calls == 2);

  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto exchange = service.handle(chat_request(""));
  num_calls = 0;
  exchange->notify(fails_once);
  exchange->cancel();
  CHECK(num_calls == 1);
  engine.step();
  CHECK(num_calls == 2);
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("a callback may cancel, and callbacks may come when exchange and service are gone",
          "[serve]") {
  ScriptedEngine engine;
  auto service = std::make_unique<OpenAiService>(engine);
  auto exchange = service->handle(chat_request(R"("stream": true)"));
  static_cast<void>(exchange->head());
  exchange->notify([&] { exchange->cancel(); });
  engine.step();
  CHECK(engine.num_aborted() == 1);
  auto other = service->handle(chat_request(""));
  exchange.reset();
  other.reset();
  service.reset();
  while (engine.step()) {
  }
  CHECK(engine.num_alive() == 0);
}
