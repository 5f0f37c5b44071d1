// The OpenAI API on an engine that follows a script, and on one that does not.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/chat/chat_parser.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/serve/reply/logprobs.hpp"
#include "nanovllm/serve/reply/pending_output.hpp"
#include "nanovllm/serve/reply/stop_reason.hpp"
#include "nanovllm/serve/service.hpp"
#include "nanovllm/serve/service_load.hpp"
#include "serve/scripted_engine.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using nanovllm::test::Script;
using nanovllm::test::ScriptedEngine;

namespace {

HttpRequest chat_request(const std::string& fields) {
  return {.method = "POST",
          .target = "/v1/chat/completions",
          .body = R"({"messages": [{"role": "user", "content": "Tell me a story"}])" +
                  (fields.empty() ? "" : ", " + fields) + "}"};
}

HttpRequest completion_request(const std::string& fields) {
  return {.method = "POST", .target = "/v1/completions", .body = "{" + fields + "}"};
}

const std::string kTools =
    R"("tools": [{"type": "function", "function": {"name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}])";

/// What a client makes of one choice.
struct Message {
  std::string role{}, reasoning{}, content{};
  std::vector<std::pair<std::string, std::string>> calls{};  // names and arguments
  std::string finish_reason{};
  Json stop_reason = nullptr;
  Json logprobs = Json::array(), token_ids = Json::array();

  friend bool operator==(const Message&, const Message&) = default;
};

struct Answer {
  std::vector<Message> messages{};
  Json usage = nullptr, error = nullptr;
  std::map<std::string, int> ids{};  // of replies and calls
  int num_chunks = 0;
  bool is_done = false;
};

std::string text_of(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? "" : value->string();
}

void append_all(Json& list, const Json* more) {
  if (more == nullptr) return;
  for (const Json& element : *more) list.push_back(element);
}

/// Adds what a delta of a chunk, or a message, says.
void add_delta(Message& message, const Json& delta, Answer& answer) {
  message.role += text_of(delta, "role");
  message.content += text_of(delta, "content");
  const std::string reasoning = text_of(delta, "reasoning_content");
  CHECK(text_of(delta, "reasoning") == reasoning);
  message.reasoning += reasoning;
  const Json* calls = delta.find("tool_calls");
  if (calls == nullptr) return;
  for (const Json& call : *calls) {
    const Json* index = call.find("index");
    const std::size_t i = index != nullptr ? index->get<std::size_t>() : message.calls.size();
    if (const Json* id = call.find("id")) {
      CHECK(id->string().size() == 5 + 24);
      CHECK(id->string().starts_with("call_"));
      ++answer.ids[id->string()];
      CHECK(call["type"].string() == "function");
      CHECK(i == message.calls.size());
      message.calls.emplace_back();
    }
    REQUIRE(i < message.calls.size());
    message.calls[i].first += text_of(call["function"], "name");
    message.calls[i].second += text_of(call["function"], "arguments");
  }
}

void add_choice(Answer& answer, const Json& choice) {
  const auto index = choice["index"].get<std::size_t>();
  if (answer.messages.size() <= index) answer.messages.resize(index + 1);
  Message& message = answer.messages[index];
  if (const Json* delta = choice.find("delta")) add_delta(message, *delta, answer);
  if (const Json* whole = choice.find("message")) add_delta(message, *whole, answer);
  message.content += text_of(choice, "text");
  if (const Json* list = choice.find("logprobs"); list != nullptr && !list->is_null()) {
    if (const Json* content = list->find("content")) {
      append_all(message.logprobs, content);
    } else {
      for (const char* key : {"tokens", "token_logprobs", "text_offset", "top_logprobs"}) {
        message.logprobs.push_back(Json::object({{key, nullptr}}));
        append_all(message.logprobs, list->find(key));
      }
    }
  }
  append_all(message.token_ids, choice.find("token_ids"));
  if (!choice["finish_reason"].is_null()) {
    CHECK(message.finish_reason.empty());
    message.finish_reason = choice["finish_reason"].string();
  }
  if (const Json* reason = choice.find("stop_reason"); reason != nullptr && !reason->is_null())
    message.stop_reason = *reason;
}

Answer read_reply(const std::string& body) {
  Answer answer{.is_done = true};
  const Json reply = parse_json(body);
  if (const Json* error = reply.find("error")) {
    answer.error = *error;
    return answer;
  }
  ++answer.ids[reply["id"].string()];
  for (const Json& choice : reply["choices"]) add_choice(answer, choice);
  answer.usage = reply["usage"];
  return answer;
}

Answer read_stream(const std::string& body) {
  Answer answer;
  std::size_t begin = 0;
  while (begin < body.size()) {
    const std::size_t end = body.find("\n\n", begin);
    REQUIRE(end != std::string::npos);
    REQUIRE(body.compare(begin, 6, "data: ") == 0);
    const std::string data = body.substr(begin + 6, end - begin - 6);
    begin = end + 2;
    REQUIRE_FALSE(answer.is_done);
    if (data == "[DONE]") {
      answer.is_done = true;
      continue;
    }
    const Json chunk = parse_json(data);
    if (const Json* error = chunk.find("error")) {
      answer.error = *error;
      continue;
    }
    ++answer.num_chunks;
    ++answer.ids[chunk["id"].string()];
    CHECK(chunk["object"].string().ends_with("chunk") == chunk["id"].string().starts_with("chat"));
    CHECK(chunk["choices"].size() <= 1);
    for (const Json& choice : chunk["choices"]) add_choice(answer, choice);
    if (const Json* usage = chunk.find("usage")) answer.usage = *usage;
  }
  return answer;
}

/// Lets the engine go on, and takes what is there every `steps` steps, to the end.
std::string follow(ScriptedEngine& engine, Exchange& exchange, int steps = 1) {
  std::string body;
  for (int i = 0; i < 1'000'000; ++i) {
    const bool more = engine.step();
    if (more && (i + 1) % steps != 0) continue;
    if (exchange.head() != nullptr && !exchange.take(body)) return body;
    if (more) continue;
    bool has_rest = false;  // of a stream that is long
    exchange.notify([&] { has_rest = true; });
    if (!has_rest) break;
  }
  FAIL("the exchange has no end");
  return body;
}

Answer stream(ScriptedEngine& engine, OpenAiService& service, const HttpRequest& request,
              int steps = 1) {
  const auto exchange = service.handle(request);
  REQUIRE(exchange->head() != nullptr);
  INFO(request.body);
  const HttpHead head = *exchange->head();
  std::string body = follow(engine, *exchange, steps);
  if (head.status != 200) return read_reply(body);
  CHECK(head.content_type == "text/event-stream");
  CHECK(head.is_stream);
  return read_stream(body);
}

Answer whole(ScriptedEngine& engine, OpenAiService& service, const HttpRequest& request) {
  const auto exchange = service.handle(request);
  return read_reply(follow(engine, *exchange));
}

/// A compiler that takes what it is asked for, and lets everything through.
class AnyForm final : public ConstraintCompiler {
 public:
  std::shared_ptr<const TokenMaskSource> compile(const OutputConstraint& constraint) override {
    last = constraint;
    if (constraint.text.find("refuse") != std::string::npos)
      throw RequestError("the keyword 'refuse' is not supported");
    return nullptr;
  }
  OutputConstraint last{};
};

const std::string kCall1 =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>";
const std::string kCall2 = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

/// `message` has what parsers make of `text` for a request with `field`.
void check_parts(const Message& message, const std::string& text, const std::string& field) {
  const bool may_call = field.starts_with("\"tools") && field.find("none") == std::string::npos;
  if (may_call && field.find("tool_choice") != std::string::npos) return;  // calls may be cut off
  const ToolCallFormat format = may_call ? ToolCallFormat::hermes : ToolCallFormat::none;
  const ChatMessageParts parts =
      parse_chat_message(text, {.reasoning = Reasoning::optional,
                                .tool_call_format = format,
                                .tools = parse_json("[{\"function\": {\"name\": \"weather\"}}, "
                                                    "{\"function\": {\"name\": \"time\"}}]")});
  CHECK(message.role == "assistant");
  CHECK(message.reasoning == parts.reasoning);
  CHECK(message.content == parts.content);
  REQUIRE(message.calls.size() == parts.tool_calls.size());
  for (std::size_t i = 0; i < message.calls.size(); ++i) {
    CHECK(message.calls[i].first == parts.tool_calls[i].name);
    CHECK(message.calls[i].second == parts.tool_calls[i].arguments);
  }
}

}  // namespace

TEST_CASE("a stream, put together, is the whole reply", "[serve]") {
  const std::vector<std::string> texts = {
      "Once upon a time.",
      "",
      "Grüße, 世界! 🙂 \" \\ \n\t",
      "<think>\nHmm, 🙂.\n</think>\n\nYes.",
      "<think>\nnever ends",
      "<think></think>",
      "Let me see. " + kCall1 + "\n" + kCall2,
      "<think>\nCall?\n</think>\n\n" + kCall1,
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": ",
      "<tool_call>\n{\"name\": \"nobody\", \"arguments\": {}}\n</tool_call> <tool",
      "<thi",
  };
  const std::vector<std::string> fields = {
      "",
      R"("logprobs": true, "top_logprobs": 2, "return_token_ids": true)",
      kTools,
      kTools + R"(, "tool_choice": "required", "logprobs": true)",
      kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})",
      kTools + R"(, "tool_choice": "none")",
      R"("n": 3)",
      R"("n": 3, "logprobs": true, "stop": ["never"], "return_token_ids": true)",
  };
  ScriptedEngine engine;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.constraints = compiler});
  for (const std::string& text : texts) {
    for (const FinishReason end : {FinishReason::stop, FinishReason::length}) {
      engine.script = [&](std::size_t, std::int32_t sample) -> Script {
        if (sample == 1) return {text + text, FinishReason::stop};
        if (sample == 2) return {"A", FinishReason::length};
        return {text, end};
      };
      for (const std::string& field : fields) {
        INFO(text << " / " << field);
        const Answer expected = whole(engine, service, chat_request(field));
        check_parts(expected.messages.at(0), text, field);
        const std::string streamed = (field.empty() ? "" : field + ", ") +
                                     R"("stream": true, "stream_options": {"include_usage": true})";
        for (const int steps : {1, 3, 1000}) {
          const Answer answer = stream(engine, service, chat_request(streamed), steps);
          REQUIRE(answer.messages == expected.messages);
          REQUIRE(answer.usage == expected.usage);
          CHECK(answer.is_done);
          CHECK(answer.ids.size() ==
                1 + expected.ids.size() - 1);  // the same number of calls, and one reply
          for (const auto& [id, count] : answer.ids)
            CHECK((count == 1 || id.starts_with("chatcm")));
        }
      }
    }
  }
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("a chat's whole reply, field by field", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.model_names = {"tales", "gpt-4"}});
  const auto ask = [&](const std::string& fields) {
    const auto exchange = service.handle(chat_request(fields));
    CHECK(exchange->head() == nullptr);
    std::string body;
    CHECK(exchange->take(body));
    body += follow(engine, *exchange);
    CHECK(exchange->head()->status == 200);
    CHECK(exchange->head()->content_type == "application/json");
    CHECK_FALSE(exchange->head()->is_stream);
    return parse_json(body);
  };
  SECTION("text") {
    const Json reply = ask(R"("max_tokens": 9)");
    CHECK(reply["id"].string().starts_with("chatcmpl-"));
    CHECK(reply["object"] == "chat.completion");
    CHECK(reply["created"].get<std::int64_t>() > 1'600'000'000);
    CHECK(reply["model"] == "tales");
    REQUIRE(reply["choices"].size() == 1);
    const Json& choice = reply["choices"][0];
    CHECK(choice["index"] == 0);
    CHECK(choice["message"].dump() ==
          R"({"role": "assistant", "content": "Once upon a time.", "refusal": null})");
    CHECK(choice["logprobs"].is_null());
    CHECK(choice["finish_reason"] == "stop");
    CHECK(choice["stop_reason"].is_null());
    const auto num_prompt_tokens = static_cast<std::int64_t>(engine.last_prompt().size());
    CHECK(reply["usage"].dump() ==
          concat(R"({"prompt_tokens": )", num_prompt_tokens, R"(, "total_tokens": )",
                 num_prompt_tokens + 5, R"(, "completion_tokens": 5, )",
                 R"("prompt_tokens_details": {"cached_tokens": 3}, )",
                 R"("completion_tokens_details": )", R"({"reasoning_tokens": 0}})"));
    CHECK(engine.last_params().max_tokens == 9);
  }
  SECTION("the context is the limit where there is none") {
    static_cast<void>(ask(R"("model": "gpt-4")"));
    CHECK(engine.last_params().max_tokens ==
          4096 - static_cast<std::int32_t>(engine.last_prompt().size()));
  }
  SECTION("names of the model") { CHECK(ask(R"("model": "gpt-4")")["model"] == "gpt-4"); }
  SECTION("calls alone") {
    engine.script = [](std::size_t, std::int32_t) { return Script{kCall1 + "\n" + kCall2}; };
    const Json reply = ask(kTools);
    const Json& choice = reply["choices"][0];
    CHECK(choice["finish_reason"] == "tool_calls");
    CHECK(choice["message"]["content"].is_null());
    CHECK_FALSE(choice["message"].contains("reasoning_content"));
    const Json& calls = choice["message"]["tool_calls"];
    REQUIRE(calls.size() == 2);
    CHECK(calls[0]["function"]["name"] == "weather");
    CHECK(parse_json(calls[0]["function"]["arguments"].string())["city"] == "Köln");
    CHECK(calls[0]["id"].string() != calls[1]["id"].string());
    CHECK(calls[1]["function"].dump() == R"({"name": "time", "arguments": "{}"})");
  }
  SECTION("a thought") {
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"<think>\nHm\n</think>\n\nYes"};
    };
    const Json message = ask("")["choices"][0]["message"];
    CHECK(message["reasoning_content"] == "Hm");
    CHECK(message["reasoning"] == "Hm");
    CHECK(message["content"] == "Yes");
  }
  SECTION("log-probabilities") {
    engine.script = [](std::size_t, std::int32_t) { return Script{"A"}; };
    const Json logprobs = ask(R"("logprobs": true, "top_logprobs": 2)")["choices"][0]["logprobs"];
    CHECK(logprobs["content"].size() == 1);
    const Json& token = logprobs["content"][0];
    CHECK(token["token"] == "A");
    CHECK(token["logprob"] == -1.0);
    CHECK(token["bytes"].dump() == "[65]");
    REQUIRE(token["top_logprobs"].size() == 2);
    CHECK(token["top_logprobs"][1].dump() == R"({"token": "B", "logprob": -2.0, "bytes": [66]})");
  }
}

TEST_CASE("a chat's stream, chunk by chunk", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  engine.script = [](std::size_t, std::int32_t) {
    return Script{"Once upon", FinishReason::length};
  };
  const auto exchange = service.handle(chat_request(
      R"("stream": true,
         "stream_options": {"include_usage": true, "continuous_usage_stats": true})"));
  CHECK(exchange->head()->status == 200);
  std::string body;
  CHECK(exchange->take(body));
  CHECK(body.empty());
  body = follow(engine, *exchange);
  std::vector<Json> chunks;
  for (std::size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at)
    chunks.push_back(parse_json(body.substr(at + 6, body.find('\n', at) - at - 6)));
  REQUIRE(chunks.size() == 4);
  const auto choice = [&](std::size_t i) { return chunks[i]["choices"][0].dump(); };
  CHECK(choice(0) == R"({"index": 0, "delta": {"role": "assistant", "content": ""}, )"
                     R"("logprobs": null, "finish_reason": null})");
  CHECK(choice(1) == R"({"index": 0, "delta": {"content": "Once"}, "logprobs": null, )"
                     R"("finish_reason": null})");
  CHECK(choice(2) == R"({"index": 0, "delta": {"content": " upon"}, "logprobs": null, )"
                     R"("finish_reason": "length", "stop_reason": null})");
  CHECK(chunks[3]["choices"].dump() == "[]");
  CHECK(chunks[1]["usage"]["completion_tokens"] == 1);
  CHECK(chunks[1]["usage"]["prompt_tokens_details"].is_null());
  CHECK(chunks[3]["usage"]["completion_tokens"] == 2);
  CHECK(chunks[3]["usage"]["prompt_tokens_details"]["cached_tokens"] == 3);
  for (const Json& chunk : chunks) {
    CHECK(chunk["id"] == chunks[0]["id"]);
    CHECK(chunk["created"] == chunks[0]["created"]);
    CHECK(chunk["object"] == "chat.completion.chunk");
  }
  CHECK(body.ends_with("}\n\ndata: [DONE]\n\n"));
  const ExchangeSummary summary = exchange->summary();
  CHECK(summary.kind == "chat");
  CHECK(summary.outcome == "length");
  CHECK(summary.num_generated_tokens == 2);
  CHECK(summary.num_cached_tokens == 3);
  CHECK(summary.first_token_seconds.value_or(0) > 0);
}

TEST_CASE("a stream begins with the prompt's tokens, if they are wanted", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const std::string fields = R"("stream": true, "return_token_ids": true, "n": 2)";
  std::string body = follow(engine, *service.handle(chat_request(fields)));
  const auto count = [&] {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = body.find("\"prompt_token_ids\": [", at)) != body.npos; ++at)
      ++found;
    return found;
  };
  CHECK(count() == 1);
  const auto first = [&] { return parse_json(body.substr(6, body.find('\n') - 6)); };
  CHECK(first()["prompt_token_ids"] == Json(engine.last_prompt()));
  CHECK(first()["choices"][0]["delta"]["role"] == "assistant");
  body = follow(engine, *service.handle(completion_request(R"("prompt": "Once upon", )" + fields)));
  CHECK(count() == 2);  // of each choice
  CHECK(first()["choices"][0]["prompt_token_ids"] == Json(engine.last_prompt()));
}

TEST_CASE("calls that a form makes well-formed come as they are written", "[serve]") {
  ScriptedEngine engine;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.constraints = compiler});
  engine.script = [](std::size_t, std::int32_t) { return Script{kCall1}; };
  const auto num_pieces = [&](const std::string& choice) {
    const Answer answer =
        stream(engine, service, chat_request(kTools + choice + R"(, "stream": true)"));
    REQUIRE(answer.messages.at(0).calls.size() == 1);
    CHECK(answer.messages[0].finish_reason == "tool_calls");
    return answer.num_chunks;
  };
  CHECK(num_pieces("") <= 3);  // the role, the call, the end
  CHECK(num_pieces(R"(, "tool_choice": "required")") > 4);
  CHECK(compiler->last.kind == OutputConstraint::Kind::tool_calls);
  CHECK(compiler->last.after_reasoning);
  CHECK(num_pieces(
            R"(, "tool_choice": "required", "chat_template_kwargs": {"enable_thinking": false})") >
        4);
  CHECK_FALSE(compiler->last.after_reasoning);
}

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
  const Tokenizer tokenizer = Tokenizer::from_file("examples/models/fairytale");
  const std::vector<TokenId> tokens = tokenizer.encode("Once upon a time");
  const std::vector<TokenId> eos{4093};
  StopRules rules = StopRules::of({.stop = {"nothing", "pon a"}}, eos);
  CHECK(rules.need_tokens());
  CHECK(rules.reason(tokenizer, tokens, std::string("Once u").size()) == "pon a");
  rules.include_stop_str_in_output = true;
  CHECK(rules.reason(tokenizer, tokens, std::string("Once upon a").size()) == "pon a");
  CHECK(StopRules::of({.stop_token_ids = {tokens.back()}}, eos).reason(tokenizer, tokens, 16) ==
        tokens.back());
  CHECK(StopRules::of({.stop_token_ids = {4093}}, eos)
            .reason(tokenizer, std::vector<TokenId>{1, 4093}, 1)
            .is_null());
  CHECK_FALSE(StopRules::of({}, eos).need_tokens());
}

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

TEST_CASE("the tokens of thoughts are counted", "[serve]") {
  struct Case {
    std::string text, fields;
    std::int64_t num_reasoning;
  };
  const Tokenizer tokenizer = Tokenizer::from_file("examples/models/fairytale");
  const auto count = [&](const std::string& text) {
    return static_cast<std::int64_t>(tokenizer.encode(text).size());
  };
  const std::string thought = "<think>\nA fox, a queen.\n</think>", answer = "\n\nOnce upon a time";
  REQUIRE(count(thought) + count(answer) == count(thought + answer));
  const std::vector<Case> cases = {
      {thought + answer, "", count(thought)},
      {thought + answer, R"("n": 3)", 3 * count(thought)},
      {thought, "", count(thought)},
      {"<think>\nnever ends", "", count("<think>\nnever ends")},
      {"No thought. </think>", "", 0},
      {"", "", 0},
  };
  ScriptedEngine engine;
  OpenAiService service(engine);
  for (const Case& one : cases) {
    INFO(one.text);
    engine.script = [&](std::size_t, std::int32_t) { return Script{one.text}; };
    const Json usage = whole(engine, service, chat_request(one.fields)).usage;
    CHECK(usage["completion_tokens_details"]["reasoning_tokens"] == one.num_reasoning);
    const std::string streamed = (one.fields.empty() ? "" : one.fields + ", ") +
                                 R"("stream": true, "stream_options": {"include_usage": true})";
    for (const int steps : {1, 3, 1000})
      CHECK(stream(engine, service, chat_request(streamed), steps).usage == usage);
  }
  const std::string off = R"("chat_template_kwargs": {"enable_thinking": false})";
  CHECK_FALSE(
      whole(engine, service, chat_request(off)).usage.contains("completion_tokens_details"));
}

TEST_CASE("a message of the assistant is continued", "[serve]") {
  ScriptedEngine engine(ChatTemplateKind::chatml_hybrid);
  OpenAiService service(engine);
  const auto ask = [&](const std::string& content, const std::string& fields) {
    return HttpRequest{.method = "POST",
                       .target = "/v1/chat/completions",
                       .body = concat(R"({"messages": [{"role": "user", "content": "Tell"}, )",
                                      R"({"role": "assistant", "content": )", Json(content).dump(),
                                      "}], ", R"("continue_final_message": true)", fields, "}")};
  };
  const auto prompt = [&] { return engine.text().tokenizer->decode(engine.last_prompt(), false); };
  engine.script = [](std::size_t, std::int32_t) { return Script{" there was a fox."}; };
  Answer answer = whole(engine, service, ask("Once ", R"(, "add_generation_prompt": false)"));
  CHECK(answer.messages.at(0).content == " there was a fox.");
  CHECK_THAT(prompt(), EndsWith("<|im_start|>assistant\nOnce "));

  engine.script = [](std::size_t, std::int32_t) { return Script{"fox.\n</think>\n\nA fox."}; };
  answer = whole(engine, service, ask("<think>\nOf a ", ""));
  CHECK(answer.messages.at(0).reasoning == "fox.");
  CHECK(answer.messages.at(0).content == "A fox.");
  CHECK_THAT(prompt(), EndsWith("<think>\nOf a "));
  answer = whole(engine, service, ask("<think>\nDone\n</think>\n\nA ", ""));
  CHECK(answer.messages.at(0).content == "fox.\n</think>\n\nA fox.");

  const auto refuse = [&](const HttpRequest& request, const std::string& param) {
    const HttpReply reply = service.answer(request);
    CHECK(reply.head.status == 400);
    CHECK(text_of(parse_json(reply.body)["error"], "param") == param);
  };
  refuse(chat_request(R"("continue_final_message": true)"), "messages");
  refuse(ask("Once", R"(, "add_generation_prompt": true)"), "add_generation_prompt");
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

TEST_CASE("an engine's errors become the reply's, wherever they come", "[serve]") {
  const std::int32_t failing = GENERATE(0, 1);
  for (const std::size_t behind : {1, 2, 3}) {
    ScriptedEngine engine;
    OpenAiService service(engine);
    engine.script = [&](std::size_t index, std::int32_t sample) {
      if (sample != failing) return Script{"Once"};  // ends by itself before
      return Script{"Once upon a time.", FinishReason::stop, index % 2 == 1 ? behind : 100};
    };
    const std::string fields = R"("prompt": ["A", "B"], "n": 2)";
    {
      const auto exchange = service.handle(completion_request(fields));
      const Json error = parse_json(follow(engine, *exchange))["error"];
      CHECK(exchange->head()->status == 500);
      CHECK(error["type"] == "server_error");
      CHECK_THAT(error["message"].string(), Contains("on fire"));
      CHECK(exchange->summary().outcome == "error");
    }
    const Answer answer =
        stream(engine, service, completion_request(fields + R"(, "stream": true)"));
    CHECK(answer.is_done);
    CHECK_THAT(text_of(answer.error, "message"), Contains("on fire"));
    for (const Message& message : answer.messages) CHECK(message.content.size() < 18);
    while (engine.step()) {
    }
    CHECK(service.num_unfinished() == 0);
  }
}

TEST_CASE("an engine that shuts down says so", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto exchange = service.handle(chat_request(""));
  const auto streamed = service.handle(chat_request(R"("stream": true)"));
  engine.step();
  engine.end_all(FinishReason::abort);
  CHECK(exchange->head()->status == 503);
  std::string body;
  CHECK_FALSE(streamed->take(body));
  const Answer answer = read_stream(body);
  CHECK(answer.messages.at(0).content == "Once");
  CHECK_THAT(text_of(answer.error, "message"), Contains("shutting down"));
}

TEST_CASE("what cannot be submitted takes back what was", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const std::size_t failing = GENERATE(0, 1, 2);
  const bool is_request = GENERATE(true, false);
  engine.on_submit = [&](std::size_t index) {
    if (index != failing) return;
    if (is_request) throw RequestError("this one cannot be served");
    throw std::runtime_error("what is this");
  };
  const auto exchange = service.handle(completion_request(R"("prompt": ["A", "B", "C"])"));
  CHECK(exchange->head()->status == (is_request ? 400 : 500));
  CHECK(engine.num_aborted() == failing);
  engine.step();
  CHECK(engine.num_alive() == 0);
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("requests that are refused", "[serve]") {
  ScriptedEngine engine;
  engine.max_tokens_in_all = 64;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.model_names = {"a/b"}, .constraints = compiler});
  ScriptedEngine large;
  OpenAiService plain(large);
  const auto refuse = [&](OpenAiService& by, const HttpRequest& request, int status,
                          const std::string& code, const std::string& param) {
    INFO(request.target << " " << request.body.substr(0, 200));
    const HttpReply reply = by.answer(request);
    CHECK(reply.head.status == status);
    CHECK(reply.head.content_type == "application/json");
    const Json error = parse_json(reply.body)["error"];
    CHECK(text_of(error, "code") == code);
    CHECK(text_of(error, "param") == param);
    return error["message"].string();
  };
  std::string words;
  for (int i = 0; i < 62; ++i) words += " time";
  const std::string overflow = "context_length_exceeded";
  CHECK_THAT(refuse(service, completion_request(R"("prompt": "time )" + words + words + "\""), 400,
                    overflow, "prompt"),
             Contains("maximum context length is 64 tokens. However, your request has 12"));
  for (int i = 0; i < 6; ++i) words += words;
  CHECK_THAT(
      refuse(service, completion_request(R"("prompt": ")" + words + "\""), 400, overflow, "prompt"),
      Contains("has at least "));
  CHECK_THAT(refuse(service, completion_request(R"("prompt": "Once", "max_tokens": 64)"), 400,
                    overflow, "max_tokens"),
             Contains("64 tokens") && Contains("65 tokens"));
  refuse(service, chat_request(R"("max_completion_tokens": 64)"), 400, overflow, "max_tokens");
  refuse(service, chat_request(R"("model": "b")"), 404, "model_not_found", "model");
  refuse(service, chat_request(R"("n": 0)"), 400, "", "n");
  for (const std::string field : {"stop_token_ids", "allowed_token_ids"})
    refuse(service, chat_request('"' + field + R"(": [999999])"), 400, "", field);
  refuse(service, chat_request(R"("logit_bias": {"999999": 1})"), 400, "", "logit_bias");
  refuse(service, completion_request(R"("prompt": [999999])"), 400, "", "prompt");
  refuse(service, {.method = "POST", .target = "/v1/chat/completions", .body = "{"}, 400, "", "");
  refuse(service, {.target = "/v1/models/b"}, 404, "model_not_found", "model");
  refuse(service, {.target = "/v2"}, 404, "", "");
  refuse(service, {.method = "DELETE", .target = "/v1/models/a%2Fb"}, 405, "", "");
  refuse(service, {.target = "/v1/chat/completions"}, 405, "", "");
  const std::string schema = R"("response_format": {"type": "json_schema", "json_schema":
      {"name": "x", "schema": {"type": "object", "refuse": 1}}})";
  CHECK_THAT(refuse(service, chat_request(schema), 400, "", "response_format"),
             Contains("'refuse' is not supported"));
  refuse(plain, chat_request(schema), 400, "", "response_format");
  refuse(plain, chat_request(kTools + R"(, "tool_choice": "required")"), 400, "", "tool_choice");
  OpenAiService callless(large,
                         {.constraints = compiler, .tool_call_format = ToolCallFormat::none});
  refuse(callless, chat_request(kTools + R"(, "tool_choice": "required")"), 400, "", "tool_choice");
  CHECK(engine.num_submitted() == 0);
  CHECK(service.num_unfinished() == 0);
  CHECK(service.answer({.method = "PUT", .target = "/health"}).head.headers.at(0).second ==
        "GET, HEAD");
}

TEST_CASE("a queue that is full, and a service that drains", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_num_seqs = 2, .max_queue = 1});
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 3; ++i) exchanges.push_back(service.handle(chat_request("")));
  const auto refused = service.handle(chat_request(""));
  CHECK(refused->head()->status == 429);
  CHECK(refused->head()->headers.at(0) == std::pair<std::string, std::string>{"Retry-After", "1"});
  CHECK(service.num_unfinished() == 3);
  exchanges[0]->cancel();
  engine.step();
  CHECK(service.num_unfinished() == 2);
  exchanges[0] = service.handle(chat_request(""));
  CHECK(exchanges[0]->head() == nullptr);
  service.drain();
  CHECK(service.handle(chat_request(""))->head()->status == 503);
  CHECK(service.answer({.target = "/health"}).head.status == 503);
  for (const auto& exchange : exchanges) CHECK(follow(engine, *exchange).size() > 100);
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("models, tokens, health and metrics", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.model_names = {"org/tales", "tales"}});
  const auto get = [&](const std::string& target) { return service.answer({.target = target}); };
  const Json models = parse_json(get("/v1/models?x=1").body);
  CHECK(models["object"] == "list");
  REQUIRE(models["data"].size() == 2);
  const Json& model = models["data"][1];
  CHECK(model["id"] == "tales");
  CHECK(model["object"] == "model");
  CHECK(model["root"] == "org/tales");
  CHECK(model["max_model_len"] == 4096);
  CHECK(parse_json(get("/v1/models/org/tales").body)["id"] == "org/tales");
  CHECK(parse_json(get("/v1/models/org%2Ftales").body)["id"] == "org/tales");
  CHECK(parse_json(get("HTTP://any.host:80/v1/models/tales?x=1").body)["id"] == "tales");
  CHECK(get("https://any.host/health").head.status == 200);
  CHECK(get("http://any.host").head.status == 404);
  CHECK(get("/health").head.status == 200);
  CHECK(get("/ping").head.status == 200);
  engine.state = {.state = Health::State::hung, .reason = "a step", .seconds = 9};
  CHECK(get("/health").head.status == 503);
  CHECK(parse_json(get("/version").body)["version"].is_string());
  CHECK_THAT(get("/metrics").body,
             Contains("vllm:num_requests_running{") && Contains("model_name=\"org/tales\""));
  const auto post = [&](const std::string& target, const std::string& body) {
    return parse_json(service.answer({.method = "POST", .target = target, .body = body}).body);
  };
  const Json tokens = post("/tokenize", R"({"prompt": "Once upon", "return_token_strs": true})");
  CHECK(tokens["count"] == 2);
  CHECK(tokens["max_model_len"] == 4096);
  CHECK(tokens["token_strs"].dump() == R"(["Once", " upon"])");
  CHECK(post("/detokenize", R"({"tokens": )" + tokens["tokens"].dump() + "}").dump() ==
        R"({"prompt": "Once upon"})");
  CHECK(post("/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})")["count"]
            .get<int>() > 5);
}

TEST_CASE("requests are counted once, however many choices they have", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto count = [&](const std::string& name) {
    const std::string text = service.answer({.target = "/metrics"}).body;
    double sum = 0;
    for (std::size_t at = 0; (at = text.find('\n' + name + '{', at)) != std::string::npos; ++at)
      sum += std::stod(text.substr(text.find("} ", at) + 2));
    return sum;
  };
  for (const std::string fields :
       {R"("n": 3)", R"("n": 2, "stream": true)", R"("n": 1, "best_of": 2)"}) {
    INFO(fields);
    const double before = count("vllm:request_success_total");
    static_cast<void>(
        follow(engine, *service.handle(completion_request(R"("prompt": "A", )" + fields))));
    CHECK(count("vllm:request_success_total") == before + 1);
    CHECK(count("nanovllm:requests_finished_total") == before + 1);
  }
  static_cast<void>(
      follow(engine, *service.handle(completion_request(R"("prompt": ["A", "B"], "n": 2)"))));
  CHECK(count("vllm:request_success_total") == 5);  // a prompt is a request to the engine
  service.handle(completion_request(R"("prompt": "A", "n": 2)"))->cancel();
  engine.step();
  CHECK(count("vllm:request_success_total") == 6);
  CHECK_THAT(service.answer({.target = "/metrics"}).body,
             Contains("finished_reason=\"abort\"} 1\n"));
}

TEST_CASE("ids without a token are refused by /detokenize", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const HttpReply reply = service.answer(
      {.method = "POST", .target = "/detokenize", .body = R"({"tokens": [5, 999999]})"});
  CHECK(reply.head.status == 400);
  const Json error = parse_json(reply.body)["error"];
  CHECK(error["param"] == "tokens[1]");
  CHECK_THAT(error["message"].string(), Contains("got 999999"));
}

TEST_CASE("many threads, some of which leave", "[serve]") {
  ScriptedEngine engine;
  engine.script = [](std::size_t index, std::int32_t) {
    return Script{index % 3 == 0 ? "<think>\nHm\n</think>\n\nYes. " + kCall1
                                 : "Once upon a time there was a king."};
  };
  OpenAiService service(engine, {.max_num_seqs = 4, .max_queue = 8});
  const HttpRequest streamed = chat_request(kTools + R"(, "stream": true, "n": 2)");
  const HttpRequest request = completion_request(R"("prompt": ["A", "B"], "logprobs": 1)");
  std::atomic<int> num_whole = 0, num_refused = 0;
  {
    const std::jthread runner([&](const std::stop_token& stop) { engine.run(stop); });
    std::vector<std::jthread> clients;
    for (int client = 0; client < 8; ++client) {
      clients.emplace_back([&, client] {
        for (int i = 0; i < 30; ++i) {
          if (client % 2 == 0) {
            const HttpReply reply = service.answer(i % 2 == 0 ? streamed : request);
            (reply.head.status == 200 ? num_whole : num_refused) += 1;
            continue;
          }
          const auto exchange = service.handle(streamed);
          static_cast<void>(exchange->head());
          std::string body;
          for (int k = 0; k < i % 5 && exchange->take(body); ++k) {
            const auto woken = std::make_shared<std::atomic<bool>>(false);
            exchange->notify([woken] {
              *woken = true;
              woken->notify_one();
            });
            woken->wait(false);
          }
          if (i % 3 == 0) {
            const std::jthread canceller([&] { exchange->cancel(); });
            while (exchange->take(body)) std::this_thread::yield();
          }
          static_cast<void>(exchange->summary());
          static_cast<void>(service.num_unfinished());
        }
      });
    }
    clients.clear();
    while (service.num_unfinished() > 0) std::this_thread::yield();
  }
  CHECK(num_whole + num_refused == 120);
  CHECK(num_whole > 0);
  CHECK(engine.num_alive() == 0);
}

TEST_CASE("the fairytale model answers", "[serve]") {
  EngineAdapter<Engine<Qwen3<shapes::qwen3_any>>> engine(
      EngineConfig{.model = "examples/models/fairytale", .num_threads = 1});
  const auto vocabulary =
      std::make_shared<GrammarVocabulary>(*engine.text().tokenizer, engine.eos_token_ids());
  const auto compiler = std::make_shared<CachedConstraintCompiler>(
      std::make_shared<OutputConstraintCompiler>(vocabulary));
  OpenAiService service(engine, {.model_names = {"fairytale"}, .constraints = compiler});
  const std::jthread runner([&](const std::stop_token& stop) { engine.run(stop); });
  const auto ask = [&](const HttpRequest& request) {
    const HttpReply reply = service.answer(request);
    INFO(reply.body);
    REQUIRE(reply.head.status == 200);
    return reply.head.is_stream ? read_stream(reply.body) : read_reply(reply.body);
  };
  const std::string seeded = R"("max_tokens": 24, "seed": 7, "logprobs": true, "n": 2)";
  const Answer expected = ask(chat_request(seeded));
  const Answer answer =
      ask(chat_request(seeded + R"(, "stream": true, "stream_options": {"include_usage": true})"));
  CHECK(answer.messages == expected.messages);
  CHECK(answer.usage["completion_tokens"] == expected.usage["completion_tokens"]);
  CHECK(expected.messages[0].logprobs.size() +
            static_cast<std::size_t>(expected.messages[1].logprobs.size()) ==
        expected.usage["completion_tokens"].get<std::size_t>());

  const Answer stopped = ask(completion_request(
      R"("prompt": ["Once upon", "The wedding"], "temperature": 0, "max_tokens": 60,
         "stop": ["the", "xyz"])"));
  CHECK(stopped.messages[0].stop_reason == "the");
  CHECK(stopped.messages[0].content.find("the") == std::string::npos);
  const Answer best = ask(completion_request(
      R"("prompt": "Once upon", "best_of": 3, "n": 2, "max_tokens": 5, "logprobs": 0)"));
  CHECK(best.messages.size() == 2);
  CHECK(best.usage["completion_tokens"] == 10);
  const Answer beams = ask(completion_request(
      R"("prompt": "Once upon", "use_beam_search": true, "n": 2, "max_tokens": 5)"));
  CHECK(beams.messages.size() == 2);
  const Answer scored = ask(completion_request(
      R"("prompt": "Once upon a time", "echo": true, "logprobs": 1, "max_tokens": 0)"));
  CHECK(scored.messages[0].content == "Once upon a time");
  for (const char* thinking : {"", R"(, "chat_template_kwargs": {"enable_thinking": true})",
                               R"(, "chat_template_kwargs": {"enable_thinking": false})"}) {
    const Answer held = ask(chat_request(concat(
        R"("structured_outputs": {"choice": ["foxes", "ravens"]}, "temperature": 0)", thinking)));
    CHECK((held.messages[0].content == "foxes" || held.messages[0].content == "ravens"));
    CHECK(held.messages[0].finish_reason == "stop");
  }
  CHECK(service.answer(chat_request(R"("max_tokens": 5000)")).head.status == 400);
  CHECK(service.answer(chat_request(R"("min_tokens": 9, "max_tokens": 3)")).head.status == 400);
  const Json refused =
      parse_json(service.answer(chat_request(R"("logit_bias": {"9999": 1})")).body);
  CHECK_THAT(refused["error"]["message"].string(), Contains("9999"));
  CHECK(service.num_unfinished() == 0);
  engine.check_invariants();
}
