#include "nanovllm/api/serve/reply/chat_reply.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/text/tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/serve/replies.hpp"
#include "catch.hpp"
#include "nanovllm/api/chat/chat_parser.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::EndsWith;

namespace {

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

TEST_CASE("a forced call that is cut off leaves no scraps of it in the content", "[serve]") {
  const std::string thought = "<think>\nCall it.\n</think>\n\n", answer = kCall1 + "\n" + kCall2;
  const std::string named =
      R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})";
  ScriptedEngine engine;
  OpenAiService service(engine, {.constraints = std::make_shared<AnyForm>()});
  for (std::size_t i = 0; i <= answer.size(); i += 3) {
    while ((answer[i] & 0xC0) == 0x80) ++i;  // not inside of a character
    const std::string cut = answer.substr(0, i);
    CAPTURE(cut);
    engine.script = [&](std::size_t, std::int32_t) -> Script {
      return {thought + cut, FinishReason::length};
    };
    for (const std::string& choice : {R"(, "tool_choice": "required")" + std::string(), named}) {
      const Message message = whole(engine, service, chat_request(kTools + choice)).messages.at(0);
      CHECK(message.content.empty());
      CHECK(message.reasoning == "Call it.");
      CHECK(message.finish_reason == "length");
      CHECK(message.calls.size() >= (i >= kCall1.size() ? 1u : 0u));
      const std::string fields = kTools + choice + R"(, "stream": true)";
      CHECK(stream(engine, service, chat_request(fields), 2).messages.at(0) == message);
    }
    // Where the model was free, nothing is dropped.
    const Message message = whole(engine, service, chat_request(kTools)).messages.at(0);
    if (i < kCall1.size()) CHECK(message.content == cut);
    // A stop string may cut a call off, too: then it is no call that one could make.
    engine.script = [&](std::size_t, std::int32_t) { return Script{thought + cut}; };
    const Message stopped =
        whole(engine, service, chat_request(kTools + R"(, "tool_choice": "required")"))
            .messages.at(0);
    const bool are_whole = std::ranges::all_of(stopped.calls, [](const auto& call) {
      try {
        return parse_json_value(call.second).is_object();
      } catch (const JsonError&) {
        return false;
      }
    });
    CAPTURE(stopped.calls.size(), are_whole);
    // Its arguments may be whole where the call is not.
    if (stopped.calls.empty() || !are_whole) CHECK(stopped.finish_reason == "stop");
    if (i == kCall1.size() || i == answer.size()) CHECK(stopped.finish_reason == "tool_calls");
  }
  // Without a parser of thoughts a thought is content.
  OpenAiService plain(engine,
                      {.constraints = std::make_shared<AnyForm>(), .parse_reasoning = false});
  engine.script = [&](std::size_t, std::int32_t) { return Script{thought + kCall1}; };
  const std::string fields = kTools + R"(, "tool_choice": "required")";
  const Message message = whole(engine, plain, chat_request(fields)).messages.at(0);
  CHECK(message.content.starts_with("<think>"));
  CHECK(message.calls.size() == 1);
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

TEST_CASE("the tokens of a thought that the prompt begins are counted", "[serve]") {
  ScriptedEngine engine(ChatTemplate::from_text(
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n"
      "{% endif %}"));
  OpenAiService service(engine);
  for (const std::string thought : {"</think>", "\n</think>", "Hm.</think>"}) {
    INFO(thought);
    engine.script = [&](std::size_t, std::int32_t) { return Script{thought + "\n\nYes"}; };
    const Answer answer = whole(engine, service, chat_request(""));
    CHECK(answer.messages.at(0).content == "Yes");
    CHECK(answer.usage["completion_tokens_details"]["reasoning_tokens"] ==
          engine.text().tokenizer->encode(thought).size());
  }
}

TEST_CASE("a message of the assistant is continued", "[serve]") {
  ScriptedEngine engine(ChatTemplate::chatml());
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
