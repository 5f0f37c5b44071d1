#pragma once
/// What the tests of the service share: requests, what a client makes of replies, whole and streamed,
/// and how an engine that follows a script gets there.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/serve/scripted_engine.hpp"
#include "catch.hpp"
#include "nanovllm/api/serve/constraint/output_constraint.hpp"
#include "nanovllm/api/serve/exchange.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/core/error.hpp"
#include "nanovllm/io/json.hpp"

namespace nanovllm::test {

using namespace nanovllm::serve;

inline HttpRequest chat_request(const std::string& fields) {
  return {.method = "POST",
          .target = "/v1/chat/completions",
          .body = R"({"messages": [{"role": "user", "content": "Tell me a story"}])" +
                  (fields.empty() ? "" : ", " + fields) + "}"};
}

inline HttpRequest completion_request(const std::string& fields) {
  return {.method = "POST", .target = "/v1/completions", .body = "{" + fields + "}"};
}

inline const std::string kTools =
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

inline std::string text_of(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value == nullptr || value->is_null() ? "" : value->string();
}

inline void append_all(Json& list, const Json* more) {
  if (more == nullptr) return;
  for (const Json& element : *more) list.push_back(element);
}

/// Adds what a delta of a chunk, or a message, says.
inline void add_delta(Message& message, const Json& delta, Answer& answer) {
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

inline void add_choice(Answer& answer, const Json& choice) {
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

inline Answer read_reply(const std::string& body) {
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

inline Answer read_stream(const std::string& body) {
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
inline std::string follow(ScriptedEngine& engine, Exchange& exchange, int steps = 1) {
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

inline Answer stream(ScriptedEngine& engine, OpenAiService& service, const HttpRequest& request,
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

inline Answer whole(ScriptedEngine& engine, OpenAiService& service, const HttpRequest& request) {
  const auto exchange = service.handle(request);
  return read_reply(follow(engine, *exchange));
}

/// A compiler that takes what it is asked for, and lets everything through.
class AnyForm final : public ConstraintCompiler {
 public:
  std::shared_ptr<const TokenMaskSource> compile(const OutputConstraint& constraint,
                                                 std::stop_token = {}) override {
    last = constraint;
    if (constraint.text.find("refuse") != std::string::npos)
      throw RequestError("the keyword 'refuse' is not supported");
    return nullptr;
  }
  OutputConstraint last{};
};

inline const std::string kCall1 =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>";
inline const std::string kCall2 =
    "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

}  // namespace nanovllm::test
