#include "nanovllm/api/serve/request/text_requests.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "api/serve/request/request_cases.hpp"
#include "catch.hpp"
#include "nanovllm/api/serve/request/chat_fields.hpp"
#include "nanovllm/chat/chat_template.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;

TEST_CASE("a chat's defaults") {
  const ChatCompletionRequest request = chat("");
  CHECK(request.model.empty());
  REQUIRE(request.messages.size() == 1);
  CHECK(request.options.tools.is_null());
  CHECK(request.options.add_generation_prompt);
  CHECK_FALSE(request.options.enable_thinking.has_value());
  CHECK_FALSE(request.max_tokens.has_value());
  CHECK(request.sampling.max_tokens == SamplingParams{}.max_tokens);
  CHECK_FALSE(request.sampling.temperature.has_value());
  CHECK_FALSE(request.sampling.logprobs.has_value());
  CHECK(request.constraint == OutputConstraint{});
  CHECK(request.tool_choice == ToolChoice{});
  CHECK(request.parallel_tool_calls);
  CHECK_FALSE((request.stream || request.include_usage || request.logprobs));
}

TEST_CASE("defaults that clients write out for what chats lack are let through") {
  (void)chat(R"("echo": false, "best_of": 1, "use_beam_search": false)");
  check_refused<ChatCompletionRequest>(
      kMessages, {{R"("echo": true)", "echo", "/v1/completions"},
                  {R"("best_of": 2)", "best_of", "/v1/completions"},
                  {R"("beam_width": 2)", "beam_width", "/v1/completions"},
                  {R"("use_beam_search": true)", "use_beam_search", "chats"}});
}

TEST_CASE("max_completion_tokens wins over max_tokens, and both are checked") {
  CHECK(chat(R"("max_tokens": 5, "max_completion_tokens": 7)").max_tokens == 7);
  CHECK(chat(R"("max_completion_tokens": 7)").sampling.max_tokens == 7);
  CHECK(chat(R"("min_tokens": 9999)").sampling.min_tokens == 9999);
  check_refused<ChatCompletionRequest>(
      kMessages,
      {{R"("max_tokens": 0, "max_completion_tokens": 7)", "max_tokens", "[1, 2147483647], got 0"},
       {R"("max_tokens": 1, "max_completion_tokens": 0)", "max_completion_tokens", "got 0"}});
}

TEST_CASE("log-probabilities of chats") {
  CHECK(chat(R"("logprobs": true)").sampling.logprobs == 0);
  CHECK(chat(R"("logprobs": true, "top_logprobs": 20)").top_logprobs == 20);
  CHECK(chat(R"("logprobs": true, "top_logprobs": 20)").sampling.logprobs == 20);
  CHECK_FALSE(chat(R"("logprobs": false, "top_logprobs": 0)").sampling.logprobs.has_value());
  check_refused<ChatCompletionRequest>(
      kMessages, {{R"("logprobs": 1)", "logprobs", "true or false, got 1"},
                  {R"("top_logprobs": 2)", "top_logprobs", "'logprobs': true"},
                  {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "[0, 20], got 21"}});
}

TEST_CASE("streams") {
  const auto request = chat(R"("stream": true, "stream_options": {"include_usage": true,
                               "continuous_usage_stats": true})");
  CHECK((request.stream && request.include_usage && request.continuous_usage_stats));
  CHECK_FALSE(chat(R"("stream": true, "stream_options": {"continuous_usage_stats": true})")
                  .continuous_usage_stats);
  const auto text = completion(R"("stream": true, "stream_options": {"include_usage": true})");
  CHECK((text.stream && text.include_usage && !text.continuous_usage_stats));
}

TEST_CASE("messages are made ready to be rendered") {
  const auto second = [](const std::string& message) {
    return ChatCompletionRequest::parse(with(second_message(message), "")).messages.at(1).fields();
  };
  const auto field = [&](const std::string& message, const char* name) {
    return second(message).at(name).dump();
  };
  CHECK(field(R"({"role": "developer", "content": "x"})", "role") == R"("system")");
  CHECK(field(R"({"role": "user", "content": null})", "content") == R"("")");
  CHECK(field(R"({"role": "assistant"})", "content") == R"("")");
  CHECK(field(R"({"role": "user", "content": []})", "content") == R"("")");
  CHECK(field(R"({"role": "user", "content": [{"type": "text", "text": "a"},
                                              {"type": "text", "text": "b"}]})",
              "content") == R"("a\nb")");
  CHECK(field(R"({"role": "assistant", "reasoning": "r"})", "reasoning_content") == R"("r")");
  CHECK(field(R"({"role": "assistant", "reasoning": "r", "reasoning_content": "c"})",
              "reasoning_content") == R"("c")");
  CHECK(field(R"({"role": "user", "name": "Ada", "content": "x"})", "name") == R"("Ada")");

  const auto arguments = [&](const std::string& value) {
    const Json message = second(R"({"role": "assistant", "content": null, "tool_calls": [{"id": "1",
      "type": "function", "function": {"name": "f")" +
                                value + "}}]}");
    return message["tool_calls"][0]["function"]["arguments"].dump();
  };
  CHECK(arguments(R"(, "arguments": "{\"a\": 1.0, \"b\": [2]}")") == R"({"a": 1.0, "b": [2]})");
  CHECK(arguments(R"(, "arguments": {"a": 1})") == R"({"a": 1})");
  CHECK(arguments(R"(, "arguments": "")") == "{}");
  CHECK(arguments(R"(, "arguments": null)") == "{}");
  CHECK(arguments("") == "{}");
  CHECK(arguments(R"(, "arguments": "{\"a\":")") == R"("{\"a\":")");
  CHECK(arguments(R"(, "arguments": "[1]")") == R"("[1]")");
}

TEST_CASE("messages that are wrong are named") {
  std::string many;
  for (std::size_t i = 0; i <= kMaxMessages; ++i) many += i == 0 ? "1" : ",1";
  const auto assistant = [](const std::string& calls) {
    return second_message(R"({"role": "assistant", "tool_calls": )" + calls + "}");
  };
  for (const auto& [fields, param, says] : std::vector<Refusal>{
           {R"("model": "m")", "messages", "messages is missing"},
           {R"("messages": null)", "messages", "is missing"},
           {R"("messages": {})", "messages", "a list, got an object of 0"},
           {R"("messages": [])", "messages", "must not be empty"},
           {"\"messages\": [" + many + "]", "messages", "at most 16384 elements, got 16385"},
           {second_message("1"), "messages[1]", "an object, got 1"},
           {second_message(R"({"content": "x"})"), "messages[1].role", "is missing"},
           {second_message(R"({"role": 1, "content": "x"})"), "messages[1].role", "got 1"},
           {second_message(R"({"role": "robot", "content": "x"})"), "messages[1].role",
            R"('assistant' or 'tool', got "robot")"},
           {second_message(R"({"role": "user"})"), "messages[1].content", "is missing"},
           {second_message(R"({"role": "tool"})"), "messages[1].content", "is missing"},
           {second_message(R"({"role": "user", "content": 1})"), "messages[1].content",
            "a string or a list of text parts, got 1"},
           {second_message(R"({"role": "user", "content": ["x"]})"), "messages[1].content[0]",
            R"(an object, got "x")"},
           {second_message(R"({"role": "user", "content": [{"type": "text", "text": "x"},
                               {"type": "image_url", "image_url": {}}]})"),
            "messages[1].content[1].type", R"(got "image_url")"},
           {second_message(R"({"role": "user", "content": [{"type": "text"}]})"),
            "messages[1].content[0].text", "is missing"},
           {second_message(R"({"role": "user", "content": [{"text": "x"}]})"),
            "messages[1].content[0].type", "is missing"},
           {second_message(R"({"role": "assistant", "reasoning_content": 1})"),
            "messages[1].reasoning_content", "a string, got 1"},
           {assistant("1"), "messages[1].tool_calls", "a list of tool calls, got 1"},
           {assistant("[1]"), "messages[1].tool_calls[0]", "an object, got 1"},
           {assistant("[{}]"), "messages[1].tool_calls[0].function", "is missing"},
           {assistant(R"([{"function": {}}])"), "messages[1].tool_calls[0].function.name",
            "is missing"},
           {assistant(R"([{"function": {"name": "f", "arguments": 1}}])"),
            "messages[1].tool_calls[0].function.arguments", "a string, got 1"}}) {
    INFO(fields.substr(0, 200));
    const ApiError error =
        refusal([&, text = fields] { (void)ChatCompletionRequest::parse(with(text, "")); });
    CHECK(error.param == param);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
}

TEST_CASE("what chat templates are told") {
  const auto thinks = [](const std::string& fields) {
    return chat(fields).options.enable_thinking;
  };
  CHECK(thinks(R"("chat_template_kwargs": {"enable_thinking": false})") == false);
  CHECK(thinks(R"("chat_template_kwargs": {"enable_thinking": true}, "enable_thinking": false)") ==
        true);
  CHECK(thinks(R"("enable_thinking": true, "reasoning_effort": "none")") == true);
  CHECK(thinks(R"("reasoning_effort": "none")") == false);
  CHECK(thinks(R"("reasoning_effort": "high")") == std::nullopt);
  CHECK(thinks(R"("chat_template_kwargs": {"other": 1})") == std::nullopt);
  const ChatOptions told = chat(R"("chat_template_kwargs": {"enable_thinking": true, "a": [1]},
                                   "reasoning_effort": "low", "documents": [{"text": "t"}])")
                               .options;
  CHECK(told.template_kwargs == parse_json(R"({"reasoning_effort": "low", "a": [1]})"));
  CHECK(told.documents == parse_json(R"([{"text": "t"}])"));
  CHECK(chat(R"("documents": [])").options.documents.empty());
  CHECK_FALSE(chat(R"("add_generation_prompt": false)").options.add_generation_prompt);
  CHECK(chat(R"("continue_final_message": false)").options.add_generation_prompt);
  for (const std::string also : {"", R"(, "add_generation_prompt": false)"}) {
    const ChatOptions options = chat(R"("continue_final_message": true)" + also).options;
    CHECK(options.continue_final_message);
    CHECK_FALSE(options.add_generation_prompt);
  }
  check_refused<ChatCompletionRequest>(
      kMessages, {{R"("chat_template_kwargs": 1)", "chat_template_kwargs", "an object, got 1"},
                  {R"("chat_template_kwargs": {"enable_thinking": 1})",
                   "chat_template_kwargs.enable_thinking", "true or false, got 1"},
                  {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs.messages",
                   "is a field of the request itself"},
                  {R"("documents": "a")", "documents", "a list, got"},
                  {R"("documents": ["a"])", "documents[0]", "an object, got"},
                  {R"("enable_thinking": "no")", "enable_thinking", "true or false"},
                  {R"("reasoning_effort": 1)", "reasoning_effort", "a string, got 1"},
                  {R"("add_generation_prompt": 1)", "add_generation_prompt", "true or false"},
                  {R"("continue_final_message": true, "add_generation_prompt": true)",
                   "add_generation_prompt", "cannot be true together with continue_final_message"},
                  {R"("chat_template": "{{ x }}")", "chat_template", "is not supported"}});
}
