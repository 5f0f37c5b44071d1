#include "nanovllm/api/serve/translated_chats.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "nanovllm/core/finish_reason.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

const std::string kUser = R"("messages": [{"role": "user", "content": "Tell me a story"}])";
const std::string kMessageTools =
    R"("tools": [{"name": "weather", "input_schema":
        {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"name": "time", "input_schema": {"type": "object"}}])";
const std::string kResponseTools =
    R"("tools": [{"type": "function", "name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}}},
        {"type": "function", "name": "time", "parameters": {"type": "object"}}])";

HttpRequest post(const std::string& target, const std::string& fields) {
  return {.method = "POST", .target = target, .body = "{" + fields + "}"};
}
HttpRequest message_request(const std::string& fields) {
  return post("/v1/messages",
              kUser + R"(, "max_tokens": 1000)" + (fields.empty() ? "" : ", " + fields));
}
HttpRequest response_request(const std::string& fields) {
  return post("/v1/responses",
              R"("input": "Tell me a story")" + (fields.empty() ? "" : ", " + fields));
}

struct Whole {
  int status = 0;
  Json body{};
};
Whole ask(ScriptedEngine& engine, OpenAiService& service, const HttpRequest& request) {
  INFO(request.body);
  const auto exchange = service.handle(request);
  const Json body = parse_json(follow(engine, *exchange));
  return {exchange->head()->status, body};
}

/// The events of a stream. Each has a line with its type, and there is no [DONE].
std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t line = body.find('\n', begin), end = body.find("\n\n", begin);
    REQUIRE(end != std::string::npos);
    REQUIRE(body.compare(begin, 7, "event: ") == 0);
    REQUIRE(body.compare(line + 1, 6, "data: ") == 0);
    events.push_back(parse_json(body.substr(line + 7, end - line - 7)));
    CHECK(events.back()["type"] == body.substr(begin + 7, line - begin - 7));
    begin = end + 2;
  }
  return events;
}
std::vector<Json> stream_of(ScriptedEngine& engine, OpenAiService& service,
                            const HttpRequest& request, int steps = 1) {
  INFO(request.body);
  const auto exchange = service.handle(request);
  REQUIRE(exchange->head() != nullptr);
  CHECK(exchange->head()->content_type == "text/event-stream");
  return events_of(follow(engine, *exchange, steps));
}

/// The message that a client makes of a stream of Anthropic's.
Json message_of(const std::vector<Json>& events) {
  REQUIRE(events.size() >= 5);
  REQUIRE(events[0]["type"] == "message_start");
  Json message = events[0]["message"];
  CHECK(message["stop_reason"].is_null());
  CHECK(message["usage"]["output_tokens"] == 0);
  std::string arguments;
  bool is_open = false;
  for (std::size_t i = 1; i + 2 < events.size(); ++i) {
    const Json& event = events[i];
    const bool begins = event["type"] == "content_block_start";
    CHECK(is_open != begins);
    if (begins) message["content"].push_back(event["content_block"]);
    is_open = event["type"] != "content_block_stop";
    CHECK(event["index"] == message["content"].size() - 1);
    Json& block = message["content"][message["content"].size() - 1];
    if (begins) {
      arguments.clear();
    } else if (!is_open) {
      if (block["type"] == "tool_use" && !arguments.empty()) {
        try {
          block["input"] = parse_json_value(arguments);
        } catch (const JsonError&) {  // it was cut off
        }
      }
    } else {
      const Json& delta = event["delta"];
      const std::string type = delta["type"].string();
      if (type == "input_json_delta") {
        arguments += delta["partial_json"].string();
      } else {
        const std::string name = type.substr(0, type.find('_'));
        block[name] = block[name].string() + delta[name].string();
      }
    }
  }
  CHECK_FALSE(is_open);
  const Json& end = events[events.size() - 2];
  REQUIRE(end["type"] == "message_delta");
  CHECK(events.back()["type"] == "message_stop");
  for (const auto& [name, value] : end["delta"].items()) message[name] = value;
  message["usage"] = end["usage"];
  return message;
}

/// The response that ends a stream of OpenAI's; all that came before is compared with it.
Json response_of(const std::vector<Json>& events) {
  REQUIRE(events.size() >= 3);
  CHECK(events[0]["type"] == "response.created");
  CHECK(events[1]["type"] == "response.in_progress");
  const Json& response = events.back()["response"];
  CHECK(events.back()["type"].string() == "response." + response["status"].string());
  std::vector<std::string> texts;
  std::vector<Json> logprobs;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    CHECK(event["sequence_number"] == i);
    if (i < 2) {
      CHECK(event["response"]["status"] == "in_progress");
      CHECK(event["response"]["id"] == response["id"]);
      CHECK(event["response"]["output"].empty());
    }
    if (i < 2 || i + 1 == events.size()) continue;
    const std::string type = event["type"].string();
    const auto index = event["output_index"].get<std::size_t>();
    INFO(type);
    const Json& item = response["output"][index];
    if (type == "response.output_item.added") {
      REQUIRE(index == texts.size());
      texts.emplace_back();
      logprobs.push_back(Json::array());
      CHECK(event["item"]["id"] == item["id"]);
      CHECK(event["item"]["status"] == "in_progress");
      continue;
    }
    REQUIRE(index + 1 == texts.size());
    const bool is_call = item["type"] == "function_call";
    if (type == "response.output_item.done") {
      CHECK(event["item"] == item);
      CHECK((is_call ? item["arguments"] : item["content"][0]["text"]) == texts[index]);
      continue;
    }
    CHECK(event["item_id"] == item["id"]);
    if (!is_call) CHECK(event["content_index"] == 0);
    if (type.ends_with(".delta")) {
      texts[index] += event["delta"].string();
      if (const Json* list = event.find("logprobs")) append_all(logprobs[index], list);
    } else if (type.ends_with("text.done")) {
      CHECK(event["text"] == texts[index]);
    } else if (type.ends_with("arguments.done")) {
      CHECK(event["arguments"] == texts[index]);
    } else if (type.ends_with("part.done")) {
      CHECK(event["part"] == item["content"][0]);
      if (const Json* list = event["part"].find("logprobs")) CHECK(*list == logprobs[index]);
    } else {
      CHECK(type == "response.content_part.added");
      CHECK(event["part"]["text"] == "");
    }
  }
  CHECK(texts.size() == response["output"].size());
  return response;
}

/// `answer` without what differs from one request to the next.
Json stripped(const Json& answer) {
  if (answer.is_array()) {
    Json out = Json::array();
    for (const Json& element : answer) out.push_back(stripped(element));
    return out;
  }
  if (!answer.is_object()) return answer;
  Json out = Json::object();
  for (const auto& [name, value] : answer.items()) {
    const bool is_name = name == "id" || name == "call_id" || name == "signature";
    if (is_name && !value.is_null()) CHECK_FALSE(value.string().empty());
    if (!is_name && name != "created_at" && name != "completed_at") out[name] = stripped(value);
  }
  return out;
}

const std::vector<std::string> kTexts = {
    "Once upon a time.",
    "",
    "Grüße, 世界! 🙂 \" \\ \n\t",
    "<think>\nHmm, 🙂.\n</think>\n\nYes.",
    "<think>\nnever ends",
    "<think></think>",
    "Let me see. " + kCall1 + "\n" + kCall2,
    "<think>\nCall?\n</think>\n\n" + kCall1 + "\nThere.",
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": ",
};

}  // namespace

TEST_CASE("a stream of Messages and Responses, put together, is the whole reply", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.constraints = std::make_shared<AnyForm>()});
  const std::vector<std::pair<std::string, std::vector<std::string>>> fields = {
      {"/v1/messages",
       {"", R"("stop_sequences": ["never"])", kMessageTools,
        kMessageTools + R"(, "tool_choice": {"type": "any"})",
        kMessageTools + R"(, "tool_choice": {"type": "tool", "name": "weather"})",
        R"("thinking": {"type": "adaptive"})"}},
      {"/v1/responses",
       {"", R"("top_logprobs": 2)", kResponseTools, kResponseTools + R"(, "top_logprobs": 1)",
        kResponseTools + R"(, "tool_choice": "required")",
        kResponseTools + R"(, "tool_choice": {"type": "function", "name": "weather"})"}}};
  for (const std::string& text : kTexts) {
    for (const FinishReason end : {FinishReason::stop, FinishReason::length}) {
      engine.script = [&](std::size_t, std::int32_t) { return Script{text, end}; };
      for (const auto& [target, list] : fields) {
        const bool is_message = target == "/v1/messages";
        const auto request = is_message ? message_request : response_request;
        for (const std::string& field : list) {
          INFO(text << " / " << target << " / " << field);
          const Whole whole = ask(engine, service, request(field));
          REQUIRE(whole.status == 200);
          CHECK_FALSE((is_message ? whole.body["content"] : whole.body["output"]).empty());
          for (const int steps : {1, 3, 1000}) {
            const std::vector<Json> events = stream_of(
                engine, service, request((field.empty() ? "" : field + ", ") + R"("stream": true)"),
                steps);
            const Json streamed = is_message ? message_of(events) : response_of(events);
            REQUIRE(stripped(streamed).dump() == stripped(whole.body).dump());
          }
        }
      }
    }
  }
  CHECK(service.num_unfinished() == 0);
}

TEST_CASE("the three protocols give one answer", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  for (const std::string& text : kTexts) {
    INFO(text);
    engine.script = [&](std::size_t, std::int32_t) { return Script{text}; };
    const Message chat = whole(engine, service, chat_request(kTools)).messages.at(0);
    const auto prompt = engine.last_prompt();
    Message message, response;
    const Json anthropic = ask(engine, service, message_request(kMessageTools)).body;
    CHECK(engine.last_prompt() == prompt);
    for (const Json& block : anthropic["content"]) {
      message.content += text_of(block, "text");
      message.reasoning += text_of(block, "thinking");
      if (block["type"] == "tool_use")
        message.calls.emplace_back(block["name"].string(), block["input"].dump());
    }
    const Json openai = ask(engine, service, response_request(kResponseTools)).body;
    CHECK(engine.last_prompt() == prompt);
    for (const Json& item : openai["output"]) {
      if (item["type"] == "function_call")
        response.calls.emplace_back(item["name"].string(), item["arguments"].string());
      else
        (item["type"] == "message" ? response.content : response.reasoning) +=
            item["content"][0]["text"].string();
    }
    CHECK(message.content == chat.content);
    CHECK(response.content == chat.content);
    CHECK(message.reasoning == chat.reasoning);
    CHECK(response.reasoning == chat.reasoning);
    CHECK(message.calls == chat.calls);
    CHECK(response.calls == chat.calls);
  }
}

TEST_CASE("a conversation is the same prompt in each protocol", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  static_cast<void>(ask(engine, service, post("/v1/chat/completions", kTools + R"(,
      "messages": [{"role": "system", "content": "Be short."},
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.", "tool_calls": [
          {"id": "a", "type": "function", "function": {"name": "weather",
           "arguments": {"city": "Köln"}}},
          {"id": "b", "type": "function", "function": {"name": "time", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "a", "content": "Rain\nand wind"},
        {"role": "tool", "tool_call_id": "b", "content": "Error:\nno clock"},
        {"role": "user", "content": "And now?"}])")));
  const auto expected = engine.last_prompt();
  const std::string conversation = R"("messages": [
        {"role": "user", "content": [{"type": "text", "text": "How is it?",
                                      "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "Hm.", "signature": "x"},
          {"type": "redacted_thinking", "data": "x"},
          {"type": "text", "text": "Let me see."},
          {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Köln"}},
          {"type": "tool_use", "id": "b", "name": "time", "input": {}}]},
        {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "text", "text": "Rain"}, {"type": "text", "text": "and wind"}]},
          {"type": "tool_result", "tool_use_id": "b", "content": "no clock", "is_error": true},
          {"type": "text", "text": "And now?"}]}])";
  const std::vector<std::string> systems = {
      R"("Be short.")", R"([{"type": "text", "text": "Be short."}])",
      R"([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"},
          {"type": "text", "text": "Be short."}])",
      R"("x-anthropic-billing-header: cc_version=2; cch=99999;\nBe short.")"};
  for (const std::string& system : systems) {
    const std::string fields = kMessageTools + ", " + conversation + R"(, "system": )" + system;
    REQUIRE(ask(engine, service, post("/v1/messages", fields + R"(, "max_tokens": 9)")).status ==
            200);
    CHECK(engine.last_prompt() == expected);
    CHECK(ask(engine, service, post("/v1/messages/count_tokens", fields)).body.dump() ==
          concat(R"({"input_tokens": )", expected.size(), "}"));
  }
  const std::string items = R"("input": [
        {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "call_id": "a", "name": "weather",
         "arguments": "{\"city\": \"Köln\"}"},
        {"type": "function_call", "call_id": "b", "name": "time", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": [
         {"type": "input_text", "text": "Rain"}, {"type": "input_text", "text": "and wind"}]},
        {"type": "function_call_output", "call_id": "b", "output": "Error:\nno clock"},
        {"type": "message", "role": "user", "content": "And now?"}])";
  const Whole whole = ask(
      engine, service,
      post("/v1/responses", kResponseTools + ", " + items + R"(, "instructions": "Be short.")"));
  INFO(whole.body.dump());
  REQUIRE(whole.status == 200);
  CHECK(engine.last_prompt() == expected);
}

TEST_CASE("the tokens that are counted of a conversation are those of its prompt", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const auto check = [&](const std::string& fields, int status) {
    INFO(fields);
    const std::string body =
        R"("messages": [{"role": "user", "content": "How is the weather in Kyoto?"}])" + fields;
    const Whole counted = ask(engine, service, post("/v1/messages/count_tokens", body));
    REQUIRE(counted.status == 200);
    CHECK(ask(engine, service, post("/v1/messages", body)).status == status);
    const Json& count = counted.body["input_tokens"];
    if (status == 200) CHECK(count == engine.last_prompt().size());
    return count.get<int>();
  };
  const int whole = check(R"(, "max_tokens": 9)", 200);
  CHECK(check(R"(, "max_tokens": 9, "truncate_prompt_tokens": 5)", 200) == 5);
  CHECK(check(R"(, "max_tokens": 9, "truncate_prompt_tokens": 100)", 200) == whole);
  engine.max_tokens_in_all = 12;
  CHECK(check(R"(, "max_tokens": 9, "truncate_prompt_tokens": -1)", 200) == 3);
  CHECK(check(R"(, "max_tokens": 9)", 400) == whole);  // whether or not they fit
  const std::string kept =
      R"("messages": [{"role": "user", "content": "Hi"}], "truncate_prompt_tokens": )";
  const auto count = [&](const char* number) {
    return ask(engine, service, post("/v1/messages/count_tokens", kept + number));
  };
  CHECK(count("-1").body["input_tokens"] == 11);  // of one token that is generated
  CHECK(count("13").status == 400);
}

TEST_CASE("what is wrong with a message is refused where its tokens are counted, too", "[serve]") {
  ScriptedEngine engine;
  const auto check = [&](OpenAiService& service, const std::string& fields, int status) {
    INFO(fields);
    const std::string body =
        R"("max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], )" + fields;
    const Whole asked = ask(engine, service, post("/v1/messages", body));
    const Whole counted = ask(engine, service, post("/v1/messages/count_tokens", body));
    CHECK(asked.status == status);
    CHECK(counted.status == status);
    if (status != 200) CHECK(counted.body.dump() == asked.body.dump());
  };
  const std::string beyond = std::to_string(engine.vocab_size());
  const std::string format =
      R"("output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}})";
  const std::string call = kMessageTools + R"(, "tool_choice": {"type": "any"})";
  OpenAiService plain(engine);
  for (const std::string& wrong :
       {R"("logit_bias": {")" + beyond + R"(": 1})", R"("stop_token_ids": [)" + beyond + "]",
        R"("allowed_token_ids": [)" + beyond + "]", std::string(R"("temperature": -1)"), format,
        call, std::string(R"("thinking": {"type": "enabled", "budget_tokens": 3})")})
    check(plain, wrong, 400);
  check(plain, R"("model": "nobody's")", 404);
  check(plain, R"("stop_token_ids": [1], "logit_bias": {"1": 2})", 200);
  OpenAiService forming(engine, {.constraints = std::make_shared<AnyForm>(),
                                 .tool_call_format = ToolCallFormat::hermes});
  check(forming, format, 200);
  check(forming, call, 200);
  check(forming, format + R"(, "logit_bias": {")" + beyond + R"(": 1})", 400);
}

TEST_CASE("a message, field by field", "[serve]") {
  ScriptedEngine engine;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.model_names = {"tales", "other"}, .constraints = compiler});
  SECTION("text") {
    const Json reply = ask(engine, service, message_request(R"("model": "other")")).body;
    CHECK_THAT(reply["id"].string(), StartsWith("msg_"));
    CHECK(reply["model"] == "other");
    CHECK(reply["content"].dump() == R"([{"type": "text", "text": "Once upon a time."}])");
    CHECK(reply["stop_reason"] == "end_turn");
    CHECK(reply["stop_sequence"].is_null());
    CHECK(reply["usage"].dump() ==
          concat(R"({"input_tokens": )", engine.last_prompt().size() - 3,
                 R"(, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, )",
                 R"("output_tokens": 5})"));
    CHECK(engine.last_params().max_tokens == 1000);
  }
  SECTION("a call") {
    engine.script = [](std::size_t, std::int32_t) { return Script{kCall1}; };
    const Json reply = ask(engine, service, message_request(kMessageTools)).body;
    CHECK(reply["stop_reason"] == "tool_use");
    CHECK_THAT(reply["content"][0]["id"].string(), StartsWith("toolu_"));
    CHECK(reply["content"][0]["input"].dump() == R"({"city": "Köln"})");
  }
  SECTION("the limit comes before all else") {
    engine.script = [](std::size_t, std::int32_t) { return Script{kCall1, FinishReason::length}; };
    CHECK(ask(engine, service, message_request(kMessageTools)).body["stop_reason"] == "max_tokens");
  }
  SECTION("settings") {
    const Whole whole = ask(engine, service, message_request(R"("temperature": 0.5, "top_p": 0.9,
        "top_k": 7, "stop_sequences": ["END"], "metadata": {"user_id": "x"}, "n": 3,
        "cache_salt": "mine")"));
    REQUIRE(whole.status == 200);
    const SamplingParams params = engine.last_params();
    CHECK(params.temperature == 0.5f);
    CHECK(params.top_p == 0.9f);
    CHECK(params.top_k == 7);
    CHECK(params.n == 1);
    CHECK(params.stop == std::vector<std::string>{"END"});
    CHECK(engine.last_salt() == "mine");
  }
  SECTION("whether to think") {
    const auto prompt = [&](const std::string& fields) {
      REQUIRE(ask(engine, service, message_request(fields)).status == 200);
      return engine.text().tokenizer->decode(engine.last_prompt(), false);
    };
    const std::string usual = prompt("");
    CHECK(prompt(R"("thinking": {"type": "adaptive"})") == usual);
    CHECK(prompt(R"("thinking": {"type": "enabled", "budget_tokens": 1024})") == usual);
    CHECK_THAT(prompt(R"("thinking": {"type": "disabled"})"), Contains("</think>"));
    CHECK(usual.find("</think>") == std::string::npos);
  }
  SECTION("a last message of the assistant is continued") {
    const Whole whole = ask(engine, service, post("/v1/messages", R"("max_tokens": 9, "messages": [
        {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The best is ("}])"));
    REQUIRE(whole.status == 200);
    CHECK_THAT(engine.text().tokenizer->decode(engine.last_prompt(), false),
               Catch::Matchers::EndsWith("The best is ("));
  }
  SECTION("a form") {
    REQUIRE(ask(engine, service, message_request(R"("output_config": {"effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "integer"}}})"))
                .status == 200);
    CHECK(compiler->last.kind == OutputConstraint::Kind::json_schema);
    CHECK(compiler->last.text == R"({"type": "integer"})");
    const Json error = ask(engine, service, message_request(R"("output_config":
        {"format": {"type": "json_schema", "schema": {"refuse": 1}}})"))
                           .body;
    CHECK_THAT(error["error"]["message"].string(), StartsWith("output_config.format: "));
  }
  SECTION("choices of tools") {
    const auto constraint = [&](const std::string& choice) {
      compiler->last = {};
      REQUIRE(ask(engine, service, message_request(kMessageTools + R"(, "tool_choice": )" + choice))
                  .status == 200);
      return compiler->last;
    };
    using Kind = OutputConstraint::Kind;
    CHECK(constraint(R"({"type": "auto"})").kind == Kind::none);
    CHECK(constraint(R"({"type": "none"})").kind == Kind::none);
    CHECK(constraint(R"({"type": "any"})").parallel_tool_calls);
    CHECK_FALSE(
        constraint(R"({"type": "any", "disable_parallel_tool_use": true})").parallel_tool_calls);
    const OutputConstraint named = constraint(R"({"type": "tool", "name": "time"})");
    CHECK(named.kind == Kind::tool_calls);
    CHECK(named.tools.size() == 1);
  }
}

TEST_CASE("a response, field by field", "[serve]") {
  ScriptedEngine engine;
  const auto compiler = std::make_shared<AnyForm>();
  OpenAiService service(engine, {.constraints = compiler});
  SECTION("text") {
    const Json reply = ask(engine, service, response_request(R"("instructions": "Be short.",
        "max_output_tokens": 50, "metadata": {"a": "b"}, "temperature": 0, "store": true)"))
                           .body;
    CHECK_THAT(reply["id"].string(), StartsWith("resp_"));
    CHECK(reply["object"] == "response");
    CHECK(reply["status"] == "completed");
    CHECK(reply["store"] == false);
    CHECK(reply["instructions"] == "Be short.");
    CHECK(reply["max_output_tokens"] == 50);
    CHECK(reply["temperature"] == 0);
    CHECK(reply["tool_choice"] == "auto");
    CHECK(reply["metadata"].dump() == R"({"a": "b"})");
    CHECK(stripped(reply["output"]).dump() ==
          R"([{"type": "message", "status": "completed", "role": "assistant", )"
          R"("content": [{"type": "output_text", "text": "Once upon a time.", )"
          R"("annotations": [], "logprobs": []}]}])");
    const std::size_t size = engine.last_prompt().size();
    CHECK(reply["usage"].dump() ==
          concat(R"({"input_tokens": )", size,
                 R"(, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0}, )",
                 R"("output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0}, )",
                 R"("total_tokens": )", size + 5, "}"));
    CHECK(engine.last_params().max_tokens == 50);
  }
  SECTION("a prompt that fits is not truncated for the sake of a large limit") {
    static_cast<void>(ask(engine, service, response_request("")));
    const auto prompt = engine.last_prompt();
    const auto left = static_cast<std::int64_t>(engine.max_total_tokens()) -
                      static_cast<std::int64_t>(prompt.size());
    for (const std::int64_t limit : {std::int64_t{5}, left, left + 1, left + 1000}) {
      CAPTURE(limit, left);
      REQUIRE(ask(engine, service,
                  response_request(R"("truncation": "auto", "max_output_tokens": )" +
                                   std::to_string(limit)))
                  .status == 200);
      CHECK(engine.last_prompt() == prompt);
      CHECK(engine.last_params().max_tokens == std::min(limit, left));
    }
  }
  SECTION("an answer that is cut off") {
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"<think>\nA\n</think>\n\nB", FinishReason::length};
    };
    const Json reply = ask(engine, service, response_request("")).body;
    CHECK(reply["status"] == "incomplete");
    CHECK(reply["incomplete_details"]["reason"] == "max_output_tokens");
    CHECK(reply["output"][0]["status"] == "completed");
    CHECK(reply["output"][1]["status"] == "incomplete");
    CHECK(reply["usage"]["output_tokens_details"]["reasoning_tokens"].get<int>() > 2);
  }
  SECTION("log-probabilities are those of texts") {
    const std::string text = "Once upon a time.";
    engine.script = [&](std::size_t, std::int32_t) {
      return Script{"<think>\nHm.\n</think>\n\n" + text};
    };
    const Json reply = ask(engine, service, response_request(R"("top_logprobs": 2)")).body;
    std::string joined;
    for (const Json& token : reply["output"][1]["content"][0]["logprobs"]) {
      joined += token["token"].string();
      CHECK(token["top_logprobs"].size() == 2);
    }
    CHECK_THAT(joined, Catch::Matchers::EndsWith(text));
    CHECK(joined.find("Hm") == std::string::npos);
  }
  SECTION("forms and choices") {
    using Kind = OutputConstraint::Kind;
    const auto constraint = [&](const std::string& fields) {
      compiler->last = {};
      REQUIRE(ask(engine, service, response_request(fields)).status == 200);
      return compiler->last;
    };
    CHECK(constraint(R"("text": {"format": {"type": "text"}})").kind == Kind::none);
    CHECK(constraint(R"("text": {"format": {"type": "json_object"}})").kind == Kind::json_object);
    CHECK(constraint(R"("text": {"format": {"type": "json_schema", "name": "x",
                         "schema": {"type": "integer"}}})")
              .text == R"({"type": "integer"})");
    CHECK(constraint(kResponseTools + R"(, "tool_choice": {"type": "allowed_tools",
          "mode": "required", "tools": [{"type": "function", "name": "time"}]})")
              .tools.size() == 1);
    CHECK_FALSE(constraint(kResponseTools + R"(, "tool_choice": "required",
                            "parallel_tool_calls": false)")
                    .parallel_tool_calls);
  }
}

TEST_CASE("requests in other forms that are wrong", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.constraints = std::make_shared<AnyForm>()});
  struct Case {
    std::string fields;
    std::string says;
  };
  const std::string text = R"("messages": [{"role": "user", "content": "x"}])";
  const std::string limit = R"("max_tokens": 9, )";
  const auto user = [&](const std::string& content) {
    return limit + R"("messages": [{"role": "user", "content": )" + content + "}]";
  };
  const auto assistant = [&](const std::string& block) {
    return limit + R"("messages": [{"role": "assistant", "content": [)" + block + "]}]";
  };
  const std::vector<Case> messages = {
      {text, "max_tokens is missing"},
      {text + R"(, "max_tokens": 0)", "max_tokens must be an integer in [1, "},
      {text + R"(, "max_tokens": 1000000)", "'max_tokens' is too large"},
      {R"("max_tokens": 9)", "messages is missing"},
      {limit + R"("messages": [])", "messages must not be empty"},
      {limit + R"("messages": "x")", "messages must be a list, got \"x\""},
      {limit + R"("messages": [5])", "messages[0] must be an object, got 5"},
      {limit + R"("messages": [{"content": "x"}])", "messages[0].role is missing"},
      {limit + R"("messages": [{"role": "tool", "content": "x"}])",
       "messages[0].role must be 'user', 'assistant' or 'system', got \"tool\""},
      {user("5"), "messages[0].content must be a string or a list of blocks, got 5"},
      {user("[]"), "messages[0].content must not be empty"},
      {user(R"([{"text": "x"}])"), "messages[0].content[0].type is missing"},
      {user(R"([{"type": "text"}])"), "messages[0].content[0].text is missing"},
      {user(R"([{"type": "image", "source": {}}])"),
       "messages[0].content[0].type must be 'text' or 'tool_result', as this model reads nothing "
       "else, got \"image\""},
      {user(R"([{"type": "tool_result", "content": "x"}])"),
       "messages[0].content[0].tool_use_id is missing"},
      {user(R"([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}])"),
       "messages[0].content[0].content[0].type must be 'text', as this model reads nothing else, "
       "got \"image\""},
      {user(R"([{"type": "tool_result", "tool_use_id": "a", "is_error": 1}])"),
       "messages[0].content[0].is_error must be true or false, got 1"},
      {assistant(R"({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})"),
       "messages[0].content[0].input must be an object, got \"{}\""},
      {assistant(R"({"type": "tool_use", "name": "f", "input": {}})"),
       "messages[0].content[0].id is missing"},
      {assistant(R"({"type": "document"})"), "messages[0].content[0].type must be 'text', "},
      {limit + text + R"(, "system": 5)", "system must be a string or a list of text parts, got 5"},
      {limit + text + R"(, "system": [{"type": "image"}])", "system[0].type must be 'text'"},
      {limit + text + R"(, "temperature": -1)", "temperature must be a number in "},
      {limit + text + R"(, "stop_sequences": "x")", "stop_sequences must be a list, got \"x\""},
      {limit + text + R"(, "stop_sequences": [5])", "stop_sequences[0] must be a string, got 5"},
      {limit + text + R"(, "stop_sequences": [""])", "stop_sequences"},
      {limit + text + R"(, "thinking": {"type": "on"})",
       "thinking.type must be 'enabled', 'disabled' or 'adaptive', got \"on\""},
      {limit + text + R"(, "thinking": {"type": "enabled"})", "thinking.budget_tokens is missing"},
      {limit + text + R"(, "thinking": {"type": "enabled", "budget_tokens": 5})",
       "thinking.budget_tokens must be an integer in [1024, "},
      {limit + text + R"(, "tools": [{"input_schema": {}}])", "tools[0].name is missing"},
      {limit + text + R"(, "tools": [{"name": "f"}])", "tools[0].input_schema is missing"},
      {limit + text + R"(, "tools": [{"name": "a b", "input_schema": {}}])",
       "tools[0].name must be 1 to 64 "},
      {limit + text + R"(, "tools": [{"name": "f", "input_schema": 5}])",
       "tools[0].input_schema must be a JSON Schema, an object, got 5"},
      {limit + text + R"(, "tools": [{"name": "f", "type": "web_search_20250305"}])",
       "tools[0].type must be 'custom'"},
      {limit + text + R"(, "tool_choice": {"type": "any"})", "tool_choice needs tools"},
      {limit + text + ", " + kMessageTools + R"(, "tool_choice": {"type": "tool", "name": "f"})",
       "tool_choice.name must be the name of one of the tools, got \"f\""},
      {limit + text + ", " + kMessageTools + R"(, "tool_choice": {"type": "required"})",
       "tool_choice.type must be 'auto', 'any', 'tool' or 'none', got \"required\""},
      {limit + text + R"(, "output_config": {"effort": "none"})", "output_config.effort must be "},
      {limit + text + R"(, "output_config": {"format": {"type": "json"}})",
       "output_config.format.type must be 'json_schema', got \"json\""},
      {limit + text + R"(, "mcp_servers": [])", "mcp_servers is not supported"},
  };
  for (const Case& wrong : messages) {
    const Whole whole = ask(engine, service, post("/v1/messages", wrong.fields));
    INFO(wrong.fields << "\n" << whole.body.dump());
    CHECK(whole.status == 400);
    CHECK(whole.body["type"] == "error");
    CHECK(whole.body["error"]["type"] == "invalid_request_error");
    CHECK_THAT(whole.body["error"]["message"].string(), Contains(wrong.says));
  }
  const std::string input = R"("input": "x")";
  const auto item = [](const std::string& fields) { return R"("input": [{)" + fields + "}]"; };
  struct Named : Case {
    std::string param;
  };
  const std::vector<Named> responses = {
      {{"", "input is missing"}, "input"},
      {{R"("input": 5)", "input must be a string or a list of items, got 5"}, "input"},
      {{R"("input": [])", "input must not be empty"}, "input"},
      {{R"("input": [5])", "input[0] must be an object, got 5"}, "input[0]"},
      {{item(R"("content": "x")"), "input[0].role is missing"}, "input[0].role"},
      {{item(R"("role": "king", "content": "x")"), "got \"king\""}, "input[0].role"},
      {{item(R"("role": "user", "content": [{"type": "input_image"}])"),
        "or 'text', as this model reads nothing else, got "
        "\"input_image\""},
       "input[0].content[0].type"},
      {{item(R"("type": "web_search_call")"), "got \"web_search_call\""}, "input[0].type"},
      {{item(R"("type": "function_call", "name": "f", "arguments": "{}")"), "is missing"},
       "input[0].call_id"},
      {{item(R"("type": "function_call", "call_id": "a", "name": "f", "arguments": {})"),
        "must be a string, got an object of 0"},
       "input[0].arguments"},
      {{item(R"("type": "function_call_output", "call_id": "a")"), "is missing"},
       "input[0].output"},
      {{input + R"(, "max_output_tokens": 0)", "max_output_tokens must be an integer in [1, "},
       "max_output_tokens"},
      {{input + R"(, "max_output_tokens": 1000000)", "'max_output_tokens' is too large"},
       "max_output_tokens"},
      {{input + R"(, "tools": [{"type": "web_search"}])", "must be 'function'"}, "tools[0].type"},
      {{input + R"(, "tools": [{"type": "function"}])", "tools[0].name is missing"},
       "tools[0].name"},
      {{input + R"(, "tools": [{"type": "function", "name": "f", "parameters": 5}])",
        "tools[0].parameters must be a JSON Schema"},
       "tools[0].parameters"},
      {{input + ", " + kResponseTools + R"(, "tool_choice": {"type": "function", "name": "f"})",
        "tool_choice.name must be the name of one of the tools, got \"f\""},
       "tool_choice.name"},
      {{input + ", " + kResponseTools + R"(, "tool_choice": {"type": "file_search"})",
        "must be 'function' or 'allowed_tools'"},
       "tool_choice.type"},
      {{input + R"(, "tool_choice": "required")", "tool_choice needs tools"}, "tool_choice"},
      {{input + R"(, "reasoning": {"effort": 5})", "reasoning.effort must be a string, got 5"},
       "reasoning.effort"},
      {{input + R"(, "reasoning": {"effort": "zz"})", "'high' or 'xhigh', got \"zz\""},
       "reasoning.effort"},
      {{input + R"(, "include": ["x", 1])", "include[1] must be a string, got 1"}, "include[1]"},
      {{input + R"(, "metadata": true)", "metadata must be an object, got true"}, "metadata"},
      {{R"("input": [{"type": "reasoning", "summary": []}])", "must have an item besides thoughts"},
       "input"},
      {{input + ", " + kResponseTools + R"(, "tool_choice": {"type": "allowed_tools",
          "mode": "zz", "tools": [{"type": "function", "name": "time"}]})",
        "tool_choice.mode must be "},
       "tool_choice.mode"},
      {{input + R"(, "text": {"format": {"type": "xml"}})", "got \"xml\""}, "text.format.type"},
      {{input + R"(, "text": {"format": {"type": "json_schema"}})", "is missing"},
       "text.format.schema"},
      {{input + R"(, "text": {"format": {"type": "json_schema", "schema": {"refuse": 1}}})",
        "text.format: "},
       "text.format"},
      {{input + R"(, "top_logprobs": 500)", "top_logprobs must be an integer in "}, "top_logprobs"},
      {{input + R"(, "truncation": "left")", "must be 'auto' or 'disabled', got \"left\""},
       "truncation"},
      {{input + R"(, "background": true)", "background must be false"}, "background"},
      {{input + R"(, "previous_response_id": "resp_1")", "keeps no responses"},
       "previous_response_id"},
      {{input + R"(, "conversation": "c")", "is not supported"}, "conversation"},
      {{input + R"(, "temperature": "hot")", "temperature must be "}, "temperature"},
  };
  for (const Named& wrong : responses) {
    const Whole whole = ask(engine, service, post("/v1/responses", wrong.fields));
    INFO(wrong.fields << "\n" << whole.body.dump());
    CHECK(whole.status == 400);
    CHECK(whole.body["error"]["type"] == "invalid_request_error");
    CHECK(whole.body["error"]["param"] == wrong.param);
    CHECK_THAT(whole.body["error"]["message"].string(), Contains(wrong.says));
  }
  CHECK(engine.num_submitted() == 0);
}

TEST_CASE("errors have the form of their protocol", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_num_seqs = 1, .max_queue = 0});
  const auto check_error = [&](const HttpRequest& request, int status, const std::string& type) {
    const Whole whole = ask(engine, service, request);
    INFO(whole.body.dump());
    CHECK(whole.status == status);
    if (request.target.starts_with("/v1/messages")) {
      CHECK(whole.body["type"] == "error");
      CHECK(whole.body["error"].size() == 2);
    } else {
      CHECK(whole.body["error"].size() == 4);
    }
    CHECK(whole.body["error"]["type"] == type);
    CHECK_FALSE(whole.body["error"]["message"].string().empty());
  };
  SECTION("before the engine") {
    check_error(message_request(R"("model": "gpt-4")"), 404, "not_found_error");
    check_error(response_request(R"("model": "gpt-4")"), 404, "invalid_request_error");
    check_error(post("/v1/messages/batches", ""), 404, "not_found_error");
    check_error({.method = "POST", .target = "/v1/messages", .body = "{"}, 400,
                "invalid_request_error");
    check_error({.method = "GET", .target = "/v1/messages"}, 405, "invalid_request_error");
    for (const auto& request : {message_request(""), response_request("")}) {
      const auto first = service.handle(request);
      check_error(request, 429, "rate_limit_error");
      CHECK(service.arrive(request).exchange != nullptr);
      first->cancel();
      while (engine.step()) {
      }
    }
    service.drain();
    check_error(message_request(""), 503, "overloaded_error");
    check_error(response_request(""), 503, "server_error");
  }
  SECTION("of a step") {
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"Once upon a time.", FinishReason::error, 3};
    };
    check_error(message_request(""), 500, "api_error");
    check_error(response_request(""), 500, "server_error");
    const std::vector<Json> message =
        stream_of(engine, service, message_request(R"("stream": true)"));
    CHECK(message.front()["type"] == "message_start");
    CHECK(message.back()["type"] == "error");
    CHECK(message.back()["error"]["type"] == "api_error");
    const std::vector<Json> response =
        stream_of(engine, service, response_request(R"("stream": true)"));
    CHECK(response.back()["type"] == "response.failed");
    CHECK(response.back()["sequence_number"] == response.size() - 1);
    CHECK(response.back()["response"]["status"] == "failed");
    CHECK(response.back()["response"]["error"]["code"] == "server_error");
    for (const auto& events : {message, response})
      for (std::size_t i = 0; i + 1 < events.size(); ++i)
        CHECK(events[i]["type"].string().find("completed") == std::string::npos);
  }
  SECTION("of a step before the first token") {
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"Once.", FinishReason::error, 0};
    };
    const auto message = stream_of(engine, service, message_request(R"("stream": true)"));
    REQUIRE(message.size() == 2);
    CHECK(message[1]["type"] == "error");
    const auto events = stream_of(engine, service, response_request(R"("stream": true)"));
    REQUIRE(events.size() == 3);
    CHECK(events[0]["type"] == "response.created");
    CHECK(events[2]["type"] == "response.failed");
  }
}

TEST_CASE("a client that leaves ends its message or response", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_stored_responses = 4});
  for (const auto& request :
       {message_request(R"("stream": true)"), response_request(R"("stream": true)")}) {
    const std::size_t before = engine.num_aborted();
    const auto exchange = service.handle(request);
    engine.step();
    engine.step();
    std::string body;
    REQUIRE(exchange->take(body));
    CHECK_FALSE(body.empty());
    exchange->cancel();
    CHECK(engine.num_aborted() == before + 1);
    body.clear();
    CHECK_FALSE(exchange->take(body));
    CHECK(body.empty());
    while (engine.step()) {
    }
    CHECK(service.num_unfinished() == 0);
    CHECK(exchange->summary().outcome == "abort");
  }
}

TEST_CASE("responses that are kept", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine, {.max_stored_responses = 2, .max_stored_response_bytes = 1 << 16});
  const auto at = [&](const char* method, const std::string& path) {
    return ask(engine, service, {.method = method, .target = "/v1/responses/" + path});
  };
  const auto make = [&](const std::string& fields) {
    const Whole whole = ask(engine, service, response_request(fields));
    INFO(whole.body.dump());
    REQUIRE(whole.status == 200);
    return whole.body;
  };
  SECTION("are shown and deleted") {
    const Json first = make("");
    const std::string id = first["id"].string();
    CHECK(first["store"] == true);
    CHECK(at("GET", id).body == first);
    CHECK(at("GET", id + "?stream=true").status == 400);
    CHECK(at("POST", id + "/cancel").status == 400);
    CHECK(at("POST", id).status == 405);
    CHECK(at("DELETE", id).body.dump() ==
          concat(R"({"id": ")", id, R"(", "object": "response", "deleted": true})"));
    for (const Whole& whole : {at("GET", id), at("DELETE", id), at("POST", id + "/cancel")})
      CHECK(whole.status == 404);
    CHECK(at("POST", "cancel").status == 405);
    CHECK(at("GET", id + "/input_items").body["error"]["message"] ==
          "there is nothing at this path");
    const Json large = make(R"("metadata": {"a": ")" + std::string(70'000, 'x') + "\"}");
    CHECK(large["store"] == false);
    CHECK(at("GET", large["id"].string()).status == 404);
    CHECK(at("GET", make(R"("store": false)")["id"].string()).status == 404);
  }
  SECTION("are continued") {
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"<think>\nHm.\n</think>\n\nLet me see. " + kCall1};
    };
    const Json first = make(kResponseTools + R"(, "instructions": "Once only.")");
    const std::string next = kResponseTools + R"(, "input": [{"type": "function_call_output",
        "call_id": ")" + first["output"][2]["call_id"].string() +
                             R"(", "output": "Rain."}],
        "previous_response_id": ")" +
                             first["id"].string() + "\"";
    const Whole second = ask(engine, service, post("/v1/responses", next));
    REQUIRE(second.status == 200);
    CHECK(second.body["previous_response_id"] == first["id"]);
    const auto prompt = engine.last_prompt();
    Json input = Json::array({Json::object({{"role", "user"}, {"content", "Tell me a story"}})});
    for (const Json& item : first["output"]) input.push_back(item);
    input.push_back(Json::object({{"type", "function_call_output"},
                                  {"call_id", first["output"][2]["call_id"]},
                                  {"output", "Rain."}}));
    REQUIRE(ask(engine, service,
                post("/v1/responses", kResponseTools + R"(, "input": )" + input.dump()))
                .status == 200);
    CHECK(engine.last_prompt() == prompt);
    const Whole unknown =
        ask(engine, service, response_request(R"("previous_response_id": "resp_0")"));
    CHECK(unknown.status == 404);
    CHECK(unknown.body["error"]["code"] == "previous_response_not_found");
  }
  SECTION("long ones are continued on a thread that may take long") {
    std::string words;
    for (int i = 0; i < 3500; ++i) words += "king ";
    const Whole first = ask(engine, service, post("/v1/responses", R"("input": ")" + words + "\""));
    INFO(first.body.dump());
    REQUIRE(first.status == 200);
    const HttpRequest next =
        response_request(R"("previous_response_id": ")" + first.body["id"].string() + "\"");
    CHECK(service.try_handle(next) == nullptr);
    CHECK(ask(engine, service, next).status == 200);
  }
  SECTION("are dropped when there are more") {
    const std::string a = make("")["id"].string(), b = make("")["id"].string();
    CHECK(at("GET", a).status == 200);
    const std::string c = make(R"("stream": false)")["id"].string();
    CHECK(at("GET", b).status == 404);
    CHECK(at("GET", a).status == 200);
    CHECK(at("GET", c).status == 200);
  }
  SECTION("streamed ones too, but not those that failed") {
    const auto events = stream_of(engine, service, response_request(R"("stream": true)"));
    const Json& response = events.back()["response"];
    CHECK(at("GET", response["id"].string()).body == response);
    engine.script = [](std::size_t, std::int32_t) {
      return Script{"Once upon a time.", FinishReason::error, 3};
    };
    const auto failed = stream_of(engine, service, response_request(R"("stream": true)"));
    CHECK(failed.back()["response"]["store"] == false);
    CHECK(at("GET", failed.back()["response"]["id"].string()).status == 404);
  }
}

TEST_CASE("a store of responses is bounded", "[serve]") {
  ResponseStore store(3, 100);
  store.put("a", {std::string(30, 'x'), ""});
  store.put("b", {std::string(30, 'x'), ""});
  store.put("c", {std::string(30, 'x'), ""});
  CHECK(store.num_bytes() == 93);
  CHECK(store.find("a"));
  store.put("d", {std::string(30, 'x'), ""});
  CHECK_FALSE(store.find("b"));
  CHECK(store.find("a"));
  store.put("e", {std::string(60, 'x'), ""});
  CHECK(store.num_bytes() == 31 + 61);
  CHECK(store.find("a"));
  store.put("f", {std::string(200, 'x'), ""});
  CHECK_FALSE(store.find("f"));
  CHECK(store.find("e"));
  CHECK(store.erase("e"));
  CHECK_FALSE(store.erase("e"));
  CHECK(store.erase("a"));
  CHECK(store.num_bytes() == 0);
}

TEST_CASE("without a store there are no responses to ask for", "[serve]") {
  ScriptedEngine engine;
  OpenAiService service(engine);
  const std::string id = ask(engine, service, response_request("")).body["id"].string();
  const Whole whole = ask(engine, service, {.target = "/v1/responses/" + id});
  CHECK(whole.status == 404);
  CHECK_THAT(whole.body["error"]["message"].string(), Contains("keeps no responses"));
}
