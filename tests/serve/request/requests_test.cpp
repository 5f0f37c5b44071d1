// The request side of serve/: every field of a body, right, of a wrong type, out of range.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "nanovllm/chat/chat_template.hpp"
#include "nanovllm/serve/request/api_error.hpp"
#include "nanovllm/serve/request/chat_fields.hpp"
#include "nanovllm/serve/request/chat_request.hpp"
#include "nanovllm/serve/request/completion_request.hpp"
#include "nanovllm/serve/request/output_format.hpp"
#include "nanovllm/serve/request/request_fields.hpp"
#include "nanovllm/serve/request/tokenize_request.hpp"
#include "serve/request/param_path.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using FormatKind = OutputConstraint::Kind;
using ChoiceKind = ToolChoice::Kind;

namespace {

const std::string kMessages = R"("messages": [{"role": "user", "content": "hi"}])";
const std::string kPrompt = R"("prompt": "hi")";
const std::string kTools = R"("tools": [{"type": "function", "function": {"name": "f"}},
  {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}])";

Json with(const std::string& first, const std::string& fields) {
  return parse_request_body("{" + first + (fields.empty() ? "" : ", ") + fields + "}");
}
ChatCompletionRequest chat(const std::string& fields) {
  return ChatCompletionRequest::parse(with(kMessages, fields));
}
CompletionRequest completion(const std::string& fields) {
  return CompletionRequest::parse(with(kPrompt, fields));
}

/// The error that `parse` throws, which must be an ApiError of status 400.
template <class Parse>
ApiError refusal(Parse&& parse) {
  try {
    parse();
  } catch (const ApiError& error) {
    CHECK(error.status == 400);
    CHECK(error.type == "invalid_request_error");
    return error;
  }
  FAIL("nothing was refused");
  throw Error("unreachable");
}

/// A body's fields, the `param` of the error, and what its message says.
struct Refusal {
  std::string fields, param, says;
};

template <class Request>
void check_refused(const std::string& first, const std::vector<Refusal>& table) {
  for (const auto& [fields, param, says] : table) {
    INFO(fields);
    const ApiError error = refusal([&, text = fields] { (void)Request::parse(with(first, text)); });
    CHECK(error.param == param);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
}

/// One message and then `rest`; the second message is the one that is looked at.
std::string second_message(const std::string& message) {
  return R"("messages": [{"role": "user", "content": "hi"}, )" + message + "]";
}

}  // namespace

TEST_CASE("errors have OpenAI's shape") {
  const auto body = [](const ApiError& error) { return error.body(); };
  CHECK(body(ApiError(400, "n must be 1", "n")) ==
        R"({"error": {"message": "n must be 1", "type": "invalid_request_error", )"
        R"("param": "n", "code": null}})");
  CHECK(body(ApiError::model_not_found("x")) ==
        R"({"error": {"message": "The model `x` does not exist.", )"
        R"("type": "invalid_request_error", "param": "model", "code": "model_not_found"}})");
  CHECK(ApiError::model_not_found("x").status == 404);
  CHECK(ApiError(401, "").type == "authentication_error");
  CHECK(ApiError(413, "").type == "invalid_request_error");
  CHECK(ApiError(429, "").type == "rate_limit_error");
  CHECK(ApiError(500, "").type == "server_error");
  CHECK(ApiError(503, "").type == "server_error");
  CHECK(parse_json(ApiError(400, "\xff\x01").body())["error"]["message"] ==
        Json("\xef\xbf\xbd\x01"));
}

TEST_CASE("a body that is no JSON object is refused, with the place") {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "the body is not valid JSON (byte 1)"},
           {"{\"model\": }", "the body is not valid JSON (byte 11)"},
           {"{\"a\": \"\xff\"}", "the body is not valid JSON (byte 8)"},
           {"{\"a\": NaN}", "the body is not valid JSON (byte 7)"},
           {"{} {}", "the body is not valid JSON (byte 4)"},
           {std::string(300, '['), "nested"},
           {"[1]", "the body must be a JSON object, got an array of 1"},
           {"null", "the body must be a JSON object, got null"}}) {
    INFO(text);
    const ApiError error = refusal([&, body = text] { (void)parse_request_body(body); });
    CHECK_FALSE(error.param.has_value());
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
  CHECK_THROWS_AS(ChatCompletionRequest::parse(Json(1)), ApiError);
}

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

TEST_CASE("sampling fields of chats and completions are read") {
  using P = const SamplingParams&;
  const std::vector<std::pair<std::string, std::function<bool(P)>>> table = {
      {R"("temperature": 0)", [](P p) { return p.temperature == 0.f; }},
      {R"("temperature": 1e6)", [](P p) { return p.temperature == 1e6f; }},
      {R"("top_p": 0.5)", [](P p) { return p.top_p == 0.5f; }},
      {R"("top_p": 1)", [](P p) { return p.top_p == 1.f; }},
      {R"("top_k": -1)", [](P p) { return p.top_k == -1; }},
      {R"("top_k": 20.0)", [](P p) { return p.top_k == 20; }},
      {R"("min_p": 0.1)", [](P p) { return p.min_p == 0.1f; }},
      {R"("repetition_penalty": 1.5)", [](P p) { return p.repetition_penalty == 1.5f; }},
      {R"("frequency_penalty": -2)", [](P p) { return p.frequency_penalty == -2; }},
      {R"("presence_penalty": 2)", [](P p) { return p.presence_penalty == 2; }},
      {R"("logit_bias": {"7": -100, "3": 0.5})",
       [](P p) {
         return p.logit_bias == std::vector<TokenBias>{{7, -100}, {3, 0.5f}};
       }},
      {R"("logit_bias": {})", [](P p) { return p.logit_bias.empty(); }},
      {R"("allowed_token_ids": [1, 2])",
       [](P p) {
         return p.allowed_token_ids == std::vector<TokenId>{1, 2};
       }},
      {R"("bad_words": ["a", "b"])",
       [](P p) {
         return p.bad_words == std::vector<std::string>{"a", "b"};
       }},
      {R"("seed": 18446744073709551615)", [](P p) { return p.seed == ~std::uint64_t{0}; }},
      {R"("seed": -1)", [](P p) { return p.seed == ~std::uint64_t{0}; }},
      {R"("seed": 0)", [](P p) { return p.seed == std::uint64_t{0}; }},
      {R"("n": 128)", [](P p) { return p.n == kMaxSamples; }},
      {R"("max_tokens": 5)", [](P p) { return p.max_tokens == 5; }},
      {R"("min_tokens": 3, "max_tokens": 3)", [](P p) { return p.min_tokens == 3; }},
      {R"("ignore_eos": true)", [](P p) { return p.ignore_eos; }},
      {R"("stop": "END")", [](P p) { return p.stop == std::vector<std::string>{"END"}; }},
      {R"("stop": ["1", "2", "3", "4", "5"])", [](P p) { return p.stop.size() == 5; }},
      {R"("stop": [])", [](P p) { return p.stop.empty(); }},
      {R"("stop_token_ids": [0, 2147483647])",
       [](P p) {
         return p.stop_token_ids == std::vector<TokenId>{0, 2147483647};
       }},
      {R"("include_stop_str_in_output": true)", [](P p) { return p.include_stop_str_in_output; }},
      {R"("skip_special_tokens": false)", [](P p) { return !p.skip_special_tokens; }},
      {R"("priority": -5)", [](P p) { return p.priority == -5; }},
  };
  for (const auto& [fields, holds] : table) {
    INFO(fields);
    CHECK(holds(chat(fields).sampling));
    CHECK(holds(completion(fields).sampling));
  }
}

TEST_CASE("sampling fields that are wrong are named") {
  const std::string long_text =
      nanovllm::concat('"', std::string(kMaxStopStringBytes + 1, 'x'), '"');
  std::string many = "\"a\"", biases = "\"0\": 1";
  for (std::size_t i = 0; i < kMaxStopStrings; ++i) many += ", \"a\"";
  for (std::size_t i = 1; i <= kMaxLogitBiases; ++i) biases += concat(", \"", i, "\": 1");
  const std::vector<Refusal> table = {
      {R"("model": 1)", "model", "a string, got 1"},
      {R"("temperature": "hot")", "temperature", R"(a number in [0, 1000000], got "hot")"},
      {R"("temperature": -0.1)", "temperature", "a number in [0, 1000000], got -0.1"},
      {R"("temperature": true)", "temperature", "got true"},
      {R"("temperature": 1e300)", "temperature", "got 1e+300"},
      {R"("temperature": 123456789012345678901234567890)", "temperature", "got 12345678901234"},
      {R"("top_p": 0)", "top_p", "a number in (0, 1], got 0"},
      {R"("top_p": 1e-60)", "top_p", "got 1e-60"},
      {R"("top_p": 1.01)", "top_p", "got 1.01"},
      {R"("top_k": -2)", "top_k", "an integer in [-1, 2147483647], got -2"},
      {R"("top_k": 1.5)", "top_k", "got 1.5"},
      {R"("top_k": 2147483648)", "top_k", "got 2147483648"},
      {R"("min_p": -1)", "min_p", "a number in [0, 1], got -1"},
      {R"("min_p": [])", "min_p", "got an array of 0"},
      {R"("repetition_penalty": 0)", "repetition_penalty", "a number > 0, got 0"},
      {R"("frequency_penalty": 2.5)", "frequency_penalty", "a number in [-2, 2], got 2.5"},
      {R"("presence_penalty": -3)", "presence_penalty", "a number in [-2, 2], got -3"},
      {R"("logit_bias": [1])", "logit_bias", "an object from token ids to numbers"},
      {R"("logit_bias": {"x": 1})", "logit_bias", R"(keys are token ids, got "x")"},
      {R"("logit_bias": {"": 1})", "logit_bias", R"(got "")"},
      {R"("logit_bias": {"-1": 1})", "logit_bias", R"(got "-1")"},
      {R"("logit_bias": {"4294967297": 1})", "logit_bias", R"(got "4294967297")"},
      {R"("logit_bias": {"1": 101})", "logit_bias", "a number in [-100, 100], got 101"},
      {R"("logit_bias": {"1": "1"})", "logit_bias", R"(got "1")"},
      {R"("logit_bias": {"1": 1, "01": 1})", "logit_bias", "got token 1 twice"},
      {"\"logit_bias\": {" + biases + "}", "logit_bias", "at most 4096 tokens, got 4097"},
      {R"("allowed_token_ids": [])", "allowed_token_ids", "must not be empty"},
      {R"("allowed_token_ids": [1, -1])", "allowed_token_ids[1]", "got -1"},
      {R"("allowed_token_ids": 1)", "allowed_token_ids", "a list of token ids, got 1"},
      {R"("bad_words": [""])", "bad_words[0]", "must not be empty"},
      {R"("bad_words": ["a", 1])", "bad_words[1]", "a string, got 1"},
      {R"("seed": 1.5)", "seed", "an integer of 64 bits, got 1.5"},
      {R"("seed": 18446744073709551616)", "seed", "got 18446744073709551616"},
      {R"("seed": "1")", "seed", R"(got "1")"},
      {R"("n": 0)", "n", "an integer in [1, 128], got 0"},
      {R"("n": 129)", "n", "got 129"},
      {R"("max_tokens": -1)", "max_tokens", "got -1"},
      {R"("max_tokens": "5")", "max_tokens", R"(got "5")"},
      {R"("min_tokens": -1)", "min_tokens", "got -1"},
      {R"("min_tokens": 4, "max_tokens": 3)", "min_tokens", "max_tokens = 3], got 4"},
      {R"("ignore_eos": 1)", "ignore_eos", "true or false, got 1"},
      {R"("stop": 1)", "stop", "a string or a list of strings, got 1"},
      {R"("stop": "")", "stop", "must not be empty"},
      {R"("stop": ["a", ""])", "stop[1]", "must not be empty"},
      {R"("stop": ["a", 2])", "stop[1]", "a string, got 2"},
      {"\"stop\": " + long_text, "stop", "at most 1024 bytes, got 1025"},
      {"\"stop\": [" + many + "]", "stop", "at most 64 strings, got 65"},
      {R"("stop_token_ids": [1, 2147483648])", "stop_token_ids[1]", "got 2147483648"},
      {R"("include_stop_str_in_output": "no")", "include_stop_str_in_output", R"(got "no")"},
      {R"("skip_special_tokens": 0)", "skip_special_tokens", "got 0"},
      {R"("priority": 1e10)", "priority", "got 10000000000.0"},
      {R"("stream": "yes")", "stream", "true or false"},
      {R"("stream_options": {"include_usage": true})", "stream_options", "'stream': true"},
      {R"("stream": true, "stream_options": 1)", "stream_options", "an object, got 1"},
      {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage",
       "true or false, got 1"},
      {R"("return_token_ids": 1)", "return_token_ids", "true or false"},
  };
  check_refused<ChatCompletionRequest>(kMessages, table);
  check_refused<CompletionRequest>(kPrompt, table);
}

TEST_CASE("null counts as absent, and unknown fields are ignored") {
  std::string nulls;
  for (const char* name : {"model",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "logit_bias",
                           "allowed_token_ids",
                           "bad_words",
                           "seed",
                           "n",
                           "max_tokens",
                           "stop",
                           "stop_token_ids",
                           "priority",
                           "stream",
                           "stream_options",
                           "max_completion_tokens",
                           "logprobs",
                           "top_logprobs",
                           "tools",
                           "tool_choice",
                           "functions",
                           "function_call",
                           "response_format",
                           "guided_json",
                           "guided_choice",
                           "chat_template",
                           "reasoning_effort",
                           "structured_outputs",
                           "echo",
                           "suffix",
                           "chat_template_kwargs",
                           "best_of",
                           "beam_width",
                           "prompt_logprobs"}) {
    nulls += concat('"', name, "\": null, ");
  }
  nulls += R"("user": "u", "metadata": {"a": 1}, "store": true, "service_tier": "auto",
              "no such field": [{}])";
  CHECK(chat(nulls).sampling.n == 1);
  CHECK(completion(nulls).sampling.max_tokens == 16);
}

TEST_CASE("defaults that clients write out for what chats lack are let through") {
  (void)chat(R"("echo": false, "best_of": 1, "use_beam_search": false)");
  check_refused<ChatCompletionRequest>(
      kMessages, {{R"("echo": true)", "echo", "/v1/completions"},
                  {R"("best_of": 2)", "best_of", "/v1/completions"},
                  {R"("beam_width": 2)", "beam_width", "/v1/completions"},
                  {R"("use_beam_search": true)", "use_beam_search", "chats"}});
}

TEST_CASE("cache_salt is refused by name, as the prefix cache is shared") {
  const std::vector<Refusal> table = {
      {R"("cache_salt": "alice")", "cache_salt", "share one prefix cache"},
      {R"("cache_salt": "")", "cache_salt", "not supported"}};
  check_refused<ChatCompletionRequest>(kMessages, table);
  check_refused<CompletionRequest>(kPrompt, table);
  (void)chat(R"("cache_salt": null)");
  (void)completion(R"("cache_salt": null)");
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
                  {R"("enable_thinking": "no")", "enable_thinking", "true or false"},
                  {R"("reasoning_effort": 1)", "reasoning_effort", "a string, got 1"},
                  {R"("add_generation_prompt": 1)", "add_generation_prompt", "true or false"},
                  {R"("continue_final_message": true, "add_generation_prompt": true)",
                   "add_generation_prompt", "cannot be true together with continue_final_message"},
                  {R"("chat_template": "{{ x }}")", "chat_template", "is not supported"}});
}

TEST_CASE("tools go to the prompt and to the constraint") {
  const auto automatic = chat(kTools);
  CHECK(automatic.tool_choice == ToolChoice{ChoiceKind::automatic});
  CHECK(automatic.constraint.kind == FormatKind::none);
  CHECK(automatic.options.tools.size() == 2);

  // Members come in the order that models know, whatever the client's is.
  const auto strict =
      chat(R"("tools": [{"function": {"strict": true, "parameters": {"b": 1, "a": 2},
      "x": 3, "name": "f", "description": "d"}, "type": "function"}], "parallel_tool_calls": false)");
  CHECK(strict.options.tools.dump() ==
        R"([{"type": "function", "function": {"name": "f", "description": "d", )"
        R"("parameters": {"b": 1, "a": 2}, "x": 3}}])");
  CHECK(strict.constraint.kind == FormatKind::free_tool_calls);
  CHECK(strict.constraint.tools.dump() ==
        R"([{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])");
  CHECK(strict.constraint_field == "tools");
  CHECK_FALSE((strict.constraint.parallel_tool_calls || strict.parallel_tool_calls));

  const auto required = chat(kTools + R"(, "tool_choice": "required")");
  CHECK(required.tool_choice.kind == ChoiceKind::required);
  CHECK(required.constraint.kind == FormatKind::tool_calls);
  CHECK(required.constraint.tools.size() == 2);
  CHECK(required.constraint.tools[0]["function"]["parameters"].dump() ==
        R"({"type": "object", "properties": {}})");
  CHECK(required.constraint.parallel_tool_calls);
  CHECK(required.constraint_field == "tool_choice");

  const auto named =
      chat(kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  CHECK(named.tool_choice == ToolChoice{ChoiceKind::named, "g"});
  CHECK(named.options.tools.size() == 2);
  REQUIRE(named.constraint.tools.size() == 1);
  CHECK(named.constraint.tools[0]["function"]["name"] == Json("g"));
  CHECK_FALSE(named.constraint.parallel_tool_calls);

  const auto none = chat(kTools + R"(, "tool_choice": "none", "response_format":
                                     {"type": "json_object"})");
  CHECK(none.tool_choice == ToolChoice{});
  CHECK(none.options.tools.is_null());
  CHECK(none.constraint.kind == FormatKind::json_object);

  CHECK(chat(R"("tools": [], "tool_choice": "auto")").tool_choice == ToolChoice{});
  CHECK(chat(kTools + R"(, "tool_choice": "auto")").tool_choice.kind == ChoiceKind::automatic);
  CHECK(chat(kTools + R"(, "response_format": {"type": "text"})").options.tools.size() == 2);

  // Calls that may come replace an answer in the form; calls that must come leave no room for one.
  const auto either = chat(kTools + R"(, "parallel_tool_calls": false,
                                       "response_format": {"type": "json_object"})");
  CHECK(either.constraint.kind == FormatKind::json_object);
  CHECK(either.constraint.or_tool_calls);
  CHECK_FALSE(either.constraint.parallel_tool_calls);
  CHECK(either.constraint.tools == either.options.tools);
  CHECK(either.constraint_field == "response_format");
  const auto must = chat(kTools + R"(, "tool_choice": "required", "guided_regex": "a")");
  CHECK(must.constraint.kind == FormatKind::tool_calls);
  CHECK_FALSE(must.constraint.or_tool_calls);
}

TEST_CASE("defect: tool_choice of type allowed_tools names the tools that may be called") {
  const auto allowed = [](const char* mode, const std::string& names,
                          const std::string& more = "") {
    return chat(kTools +
                R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")" + mode +
                R"(", "tools": [)" + names + "]}}" + more);
  };
  const auto tool = [](const std::string& name) {
    return R"({"type": "function", "function": {"name": ")" + name + "\"}}";
  };
  const auto required = allowed("required", tool("g"));
  CHECK(required.tool_choice.kind == ChoiceKind::required);
  CHECK(required.tool_choice.allowed == std::vector<std::string>{"g"});
  CHECK(required.options.tools.size() == 2);  // the prompt stays as it is
  CHECK(required.constraint.kind == FormatKind::tool_calls);
  REQUIRE(required.constraint.tools.size() == 1);
  CHECK(required.constraint.tools[0]["function"]["name"] == Json("g"));
  CHECK(required.constraint.parallel_tool_calls);
  CHECK(required.constraint_field == "tool_choice");

  const auto automatic = allowed("auto", tool("g"));
  CHECK(automatic.tool_choice.kind == ChoiceKind::automatic);
  CHECK(automatic.constraint.kind == FormatKind::free_tool_calls);
  CHECK(automatic.constraint.tools == required.constraint.tools);
  // Where all may be called, that is "auto".
  CHECK(allowed("auto", tool("g") + ", " + tool("f")).constraint.kind == FormatKind::none);
  CHECK(allowed("required", tool("g") + ", " + tool("f")).constraint.tools.size() == 2);

  const auto either = allowed("auto", tool("g"), R"(, "response_format": {"type": "json_object"})");
  CHECK(either.constraint.kind == FormatKind::json_object);
  CHECK(either.constraint.or_tool_calls);
  REQUIRE(either.constraint.tools.size() == 1);
  CHECK(either.constraint.tools[0]["function"]["name"] == Json("g"));

  const auto wrong = [](const std::string& members) {
    return kTools + R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": )" + members +
           "}";
  };
  const std::string path = "tool_choice.allowed_tools";
  check_refused<ChatCompletionRequest>(
      kMessages,
      {{kTools + R"(, "tool_choice": {"type": "allowed_tools"})", path, "is missing"},
       {kTools + R"(, "tool_choice": {"type": "custom"})", "tool_choice.type",
        "'function' or 'allowed_tools'"},
       {wrong("[]"), path, "an object"},
       {wrong(R"({"tools": []})"), path + ".mode", "is missing"},
       {wrong(R"({"mode": "none", "tools": []})"), path + ".mode", "'auto' or 'required'"},
       {wrong(R"({"mode": "auto"})"), path + ".tools", "is missing"},
       {wrong(R"({"mode": "auto", "tools": []})"), path + ".tools", "a list of 1 to 128 tools"},
       {wrong(R"({"mode": "auto", "tools": ["g"]})"), path + ".tools[0]", "an object"},
       {wrong(R"({"mode": "auto", "tools": [{"type": "mcp"}]})"), path + ".tools[0].type",
        R"('function', got "mcp")"},
       {wrong(R"({"mode": "auto", "tools": [)" + tool("g") + ", " + tool("h") + "]}"),
        path + ".tools[1].function.name", R"(the name of one of the tools, got "h")"},
       {R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {}})", "tool_choice",
        "needs tools"}});
}

TEST_CASE("tools that are wrong are named") {
  const auto tool = [](const std::string& value) { return "\"tools\": [" + value + "]"; };
  const auto function = [&](const std::string& members) {
    return tool(R"({"type": "function", "function": {)" + members + "}}");
  };
  std::string many, members = R"("name": "f")";
  for (std::size_t i = 0; i <= kMaxTools; ++i) many += i == 0 ? "1" : ",1";
  for (std::size_t i = 0; i < kMaxToolMembers; ++i) members += concat(", \"", i, "\": 1");
  const std::string prefix = "tools[0].function";
  check_refused<ChatCompletionRequest>(
      kMessages,
      {{R"("tools": {})", "tools", "a list, got an object of 0"},
       {tool(many), "tools", "at most 128 elements, got 129"},
       {tool("1"), "tools[0]", "an object, got 1"},
       {tool("{}"), "tools[0].type", "is missing"},
       {tool(R"({"type": "web_search"})"), "tools[0].type", R"('function', got "web_search")"},
       {tool(R"({"type": "function"})"), prefix, "is missing"},
       {function(""), prefix + ".name", "is missing"},
       {function(R"("name": "")"), prefix + ".name", R"(got "")"},
       {function(R"("name": "a b")"), prefix + ".name", R"(got "a b")"},
       {function("\"name\": \"" + std::string(65, 'a') + '"'), prefix + ".name", "1 to 64"},
       {function(R"("name": 1)"), prefix + ".name", "a string, got 1"},
       {function(R"("name": "f", "parameters": true)"), prefix + ".parameters", "got true"},
       {function(R"("name": "f", "description": 1)"), prefix + ".description", "a string, got 1"},
       {function(R"("name": "f", "strict": 1)"), prefix + ".strict", "true or false, got 1"},
       {function(members), prefix, "at most 64 members, got 65"},
       {tool(R"({"type": "function", "function": {"name": "f"}},
                {"type": "function", "function": {"name": "f"}})"),
        "tools[1].function.name", "an earlier tool is called 'f'"},
       {R"("tool_choice": "required")", "tool_choice", "needs tools"},
       {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice",
        "needs tools"},
       {kTools + R"(, "tool_choice": "always")", "tool_choice", R"(got "always")"},
       {kTools + R"(, "tool_choice": 1)", "tool_choice", "got 1"},
       {kTools + R"(, "tool_choice": {"type": "tool"})", "tool_choice.type", R"(got "tool")"},
       {kTools + R"(, "tool_choice": {"type": "function"})", "tool_choice.function", "is missing"},
       {kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})",
        "tool_choice.function.name", R"(the name of one of the tools, got "h")"},
       {kTools + R"(, "parallel_tool_calls": 1)", "parallel_tool_calls", "true or false"},
       {R"("functions": [])", "functions", "send 'tools'"},
       {R"("function_call": "auto")", "function_call", "send 'tools'"}});
}

TEST_CASE("the form of an answer") {
  struct Case {
    std::string fields;
    FormatKind kind;
    std::string text, field;
  };
  const std::string schema = R"({"type": "object"})";
  for (const auto& [fields, kind, text, field] : std::vector<Case>{
           {R"("response_format": {"type": "text"})", FormatKind::none, "", ""},
           {R"("response_format": {"type": "json_object"})", FormatKind::json_object, "",
            "response_format"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n",
               "strict": true, "schema": {"type": "object"}}})",
            FormatKind::json_schema, schema, "response_format"},
           {R"("guided_json": {"type":"object"})", FormatKind::json_schema, schema, "guided_json"},
           {R"("guided_json": "{\"type\":\"object\"}")", FormatKind::json_schema, schema,
            "guided_json"},
           {R"("guided_regex": "a+")", FormatKind::regex, "a+", "guided_regex"},
           {R"("guided_grammar": "root ::= \"a\"")", FormatKind::grammar, "root ::= \"a\"",
            "guided_grammar"},
           {R"("guided_choice": ["a", "b"])", FormatKind::choice, "", "guided_choice"},
           {R"("structured_outputs": {"json": {"type": "object"}, "regex": null})",
            FormatKind::json_schema, schema, "structured_outputs.json"},
           {R"("structured_outputs": {"regex": "a+"})", FormatKind::regex, "a+",
            "structured_outputs.regex"},
           {R"("structured_outputs": {"grammar": "g"})", FormatKind::grammar, "g",
            "structured_outputs.grammar"},
           {R"("structured_outputs": {"choice": ["a", "b"]})", FormatKind::choice, "",
            "structured_outputs.choice"},
           {R"("structured_outputs": {"json_object": true})", FormatKind::json_object, "",
            "structured_outputs.json_object"}}) {
    INFO(fields);
    const auto request = chat(fields);
    CHECK(request.constraint.kind == kind);
    CHECK(request.constraint.text == text);
    CHECK(request.constraint.choices.size() == (kind == FormatKind::choice ? 2 : 0));
    CHECK(request.constraint_field == field);
    CHECK(completion(fields).constraint == request.constraint);
    CHECK(completion(fields).constraint_field == field);
  }
}

TEST_CASE("defect: disable_any_whitespace says what white space JSON may have") {
  const auto space = [](const std::string& more) {
    return chat(R"("structured_outputs": {"json": {"type": "object"})" + more + "}")
        .constraint.json_space;
  };
  CHECK(space("") == JsonSpace::tidy);
  CHECK(space(R"(, "disable_any_whitespace": null)") == JsonSpace::tidy);
  CHECK(space(R"(, "disable_any_whitespace": true)") == JsonSpace::none);
  CHECK(space(R"(, "disable_any_whitespace": false)") == JsonSpace::any);
  CHECK(chat(R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})")
            .constraint.json_space == JsonSpace::none);
}

TEST_CASE("forms of an answer that are wrong are named") {
  std::string choices = "\"a\"";
  for (std::size_t i = 0; i < kMaxChoices; ++i) choices += ", \"a\"";
  const auto json_schema = [](const std::string& value) {
    return R"("response_format": {"type": "json_schema", "json_schema": )" + value + "}";
  };
  const std::vector<Refusal> table = {
      {R"("response_format": "json")", "response_format", "an object"},
      {R"("response_format": {})", "response_format.type", "is missing"},
      {R"("response_format": {"type": 1})", "response_format.type", "a string, got 1"},
      {R"("response_format": {"type": "xml"})", "response_format.type", R"(got "xml")"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema",
       "is missing"},
      {json_schema("1"), "response_format.json_schema", "an object, got 1"},
      {json_schema("{}"), "response_format.json_schema.schema", "is missing"},
      {json_schema(R"({"schema": "{}"})"), "response_format.json_schema.schema",
       "a JSON Schema, an object"},
      {json_schema(R"({"schema": {}, "name": 1})"), "response_format.json_schema.name", "a string"},
      {json_schema(R"({"schema": {}, "strict": 1})"), "response_format.json_schema.strict",
       "true or false"},
      {R"("guided_json": 1)", "guided_json", "an object or its text, got 1"},
      {R"("guided_json": "{")", "guided_json", "a text that is not valid JSON (byte 2)"},
      {R"("guided_json": "[]")", "guided_json", "got an array of 0"},
      {R"("guided_regex": 1)", "guided_regex", "a string, got 1"},
      {R"("guided_regex": "")", "guided_regex", "must not be empty"},
      {R"("guided_grammar": "")", "guided_grammar", "must not be empty"},
      {R"("guided_choice": [])", "guided_choice", "1 to 1024 strings, got an array of 0"},
      {"\"guided_choice\": [" + choices + "]", "guided_choice", "got an array of 1025"},
      {R"("guided_choice": ["a", 1])", "guided_choice[1]", "a string, got 1"},
      {R"("guided_choice": ["a", ""])", "guided_choice[1]", "must not be empty"},
      {R"("structured_outputs": 1)", "structured_outputs", "an object, got 1"},
      {R"("structured_outputs": {})", "structured_outputs", "must have one of"},
      {R"("structured_outputs": {"jsno": {}})", "structured_outputs", "must have one of"},
      {R"("structured_outputs": {"json_object": 1})", "structured_outputs.json_object",
       "true or false"},
      {R"("structured_outputs": {"choice": ["a", 1]})", "structured_outputs.choice[1]",
       "a string, got 1"},
      {R"("structured_outputs": {"structural_tag": "{}"})", "structured_outputs.structural_tag",
       "is not supported"},
      {R"("structured_outputs": {"json": {}, "disable_any_whitespace": 1})",
       "structured_outputs.disable_any_whitespace", "true or false, got 1"},
      {R"("structured_outputs": {"json": {}, "whitespace_pattern": " ?"})",
       "structured_outputs.whitespace_pattern", "is not supported"},
      {R"("structured_outputs": {"json": {}, "regex": "a"})", "structured_outputs.regex",
       "cannot be combined with structured_outputs.json"},
      {R"("structured_outputs": {"json": {}}, "guided_regex": "a")", "guided_regex",
       "cannot be combined with structured_outputs.json"},
      {R"("response_format": {"type": "json_object"}, "guided_choice": ["a"])", "guided_choice",
       "cannot be combined with response_format"},
  };
  check_refused<ChatCompletionRequest>(kMessages, table);
  check_refused<CompletionRequest>(kPrompt, table);
}

TEST_CASE("prompts of completions") {
  const auto prompts = [](const std::string& value) {
    return CompletionRequest::parse(with("\"prompt\": " + value, "")).prompts;
  };
  using Tokens = std::vector<TokenId>;
  CHECK(std::get<std::string>(prompts(R"("hi")").at(0)) == "hi");
  CHECK(std::get<Tokens>(prompts("[1, 2]").at(0)) == Tokens{1, 2});
  CHECK(prompts("[1, 2]").size() == 1);
  CHECK(std::get<std::string>(prompts(R"(["a", "b"])").at(1)) == "b");
  CHECK(std::get<Tokens>(prompts("[[1], [2, 3]]").at(1)) == Tokens{2, 3});

  std::string many = "\"a\"";
  for (std::size_t i = 0; i < kMaxPrompts; ++i) many += ", \"a\"";
  for (const auto& [value, param, says] : std::vector<Refusal>{
           {"null", "prompt", "is missing"},
           {R"("")", "prompt", "must not be empty"},
           {"[]", "prompt", "must not be empty"},
           {"1", "prompt", "a string, a list of token ids, or a list of those, got 1"},
           {R"(["a", ""])", "prompt[1]", "must not be empty"},
           {"[[1], []]", "prompt[1]", "must not be empty"},
           {R"(["a", [1]])", "prompt[1]", "the same type as the first prompt"},
           {R"([1, "a"])", "prompt[1]", "a token id"},
           {"[[1], [2, -3]]", "prompt[1][1]", "a token id, an integer from 0 on, got -3"},
           {"[1.5]", "prompt[0]", "got 1.5"},
           {"[{}]", "prompt[0]", "got an object of 0"},
           {"[" + many + "]", "prompt", "at most 128 prompts, got 129"}}) {
    INFO(value);
    const ApiError error = refusal([&, text = value] { (void)prompts(text); });
    CHECK(error.param == param);
    CHECK_THAT(error.what(), Catch::Matchers::Contains(says));
  }
}

TEST_CASE("what completions have of their own") {
  CHECK(completion("").sampling.max_tokens == 16);
  CHECK_FALSE(completion("").logprobs.has_value());

  const auto echoed = completion(R"("echo": true, "max_tokens": 0, "logprobs": 3)");
  CHECK((echoed.echo && echoed.prompt_only));
  CHECK(echoed.sampling.max_tokens == 1);
  CHECK(echoed.logprobs == 3);
  CHECK(echoed.sampling.logprobs == 3);
  CHECK(echoed.sampling.prompt_logprobs == 3);
  CHECK_FALSE(completion(R"("logprobs": 0)").sampling.prompt_logprobs.has_value());
  CHECK(completion(R"("prompt_logprobs": 2)").sampling.prompt_logprobs == 2);
  CHECK(completion(R"("suffix": "")").prompts.size() == 1);

  CHECK(completion(R"("n": 2, "best_of": 4)").sampling.best_of == 4);
  CHECK(completion(R"("stream": true, "n": 2, "best_of": 2)").stream);
  const auto beams = [](const std::string& fields) { return completion(fields).sampling; };
  CHECK(beams(R"("use_beam_search": true, "n": 3)").beam_width == 3);
  CHECK(beams(R"("use_beam_search": true, "best_of": 5)").beam_width == 5);
  CHECK_FALSE(beams(R"("use_beam_search": true, "best_of": 5)").best_of.has_value());
  CHECK(beams(R"("beam_width": 4, "n": 2)").beam_width == 4);
  CHECK(beams(R"("beam_width": 4, "length_penalty": 0.5)").length_penalty == 0.5f);
  CHECK(beams(R"("beam_width": 4, "early_stopping": true)").early_stopping == EarlyStopping::yes);
  CHECK(beams(R"("beam_width": 4, "early_stopping": "never")").early_stopping ==
        EarlyStopping::never);
  CHECK_FALSE(beams(R"("use_beam_search": false, "n": 3)").beam_width.has_value());

  check_refused<CompletionRequest>(
      kPrompt,
      {{R"("max_tokens": 0)", "max_tokens", "unless 'echo' is true"},
       {R"("echo": 1)", "echo", "true or false, got 1"},
       {R"("logprobs": 21)", "logprobs", "[0, 20], got 21"},
       {R"("logprobs": true)", "logprobs", "got true"},
       {R"("suffix": "x")", "suffix", "is not supported"},
       {R"("suffix": 1)", "suffix", "a string, got 1"},
       {R"("prompt_logprobs": -1)", "prompt_logprobs", "[0, 20], got -1"},
       {R"("prompt_logprobs": 1, "echo": true)", "prompt_logprobs", "combined with 'echo'"},
       {R"("best_of": 0)", "best_of", "[1, 128], got 0"},
       {R"("best_of": 2, "n": 3)", "best_of", "[n = 3, 128], got 2"},
       {R"("beam_width": 2, "n": 3)", "beam_width", "[n = 3, 128], got 2"},
       {R"("beam_width": 2, "top_p": 0.5)", "beam_width", "cannot be combined with top_p"},
       {R"("use_beam_search": true, "logprobs": 1)", "use_beam_search", "combined with logprobs"},
       {R"("beam_width": 2, "length_penalty": 1e39)", "length_penalty", "the range of a float"},
       {R"("beam_width": 2, "early_stopping": 1)", "early_stopping", R"("never", got 1)"},
       {R"("length_penalty": 2)", "length_penalty", "beam_width"},
       {R"("early_stopping": true)", "early_stopping", "beam_width"},
       {R"("use_beam_search": 1)", "use_beam_search", "true or false, got 1"},
       {R"("stream": true, "n": 1, "best_of": 2)", "stream", "best_of > n"},
       {R"("stream": true, "use_beam_search": true, "n": 2)", "stream", "a beam search"}});
  const std::string prompts = R"("prompt": ["a", "a", "a", "a", "a", "a", "a", "a", "a"])";
  check_refused<CompletionRequest>(prompts, {{R"("n": 128)", "prompt", "1024 prompts times"}});
}

TEST_CASE("tokenize and detokenize") {
  const auto tokenize = [](const std::string& fields) {
    return TokenizeRequest::parse(parse_request_body("{" + fields + "}"));
  };
  CHECK(std::get<std::string>(tokenize(R"("model": "m", "prompt": "")").prompt).empty());
  CHECK(tokenize(R"("model": "m", "prompt": "x")").model == "m");
  CHECK(tokenize(R"("prompt": "x", "return_token_strs": true)").return_token_strs);
  const auto request = tokenize(kMessages + ", " + kTools +
                                R"(, "add_generation_prompt": false,
                                   "chat_template_kwargs": {"enable_thinking": false})");
  const auto& prompt = std::get<ChatPrompt>(request.prompt);
  CHECK(prompt.messages.size() == 1);
  CHECK(prompt.options.tools.size() == 2);
  CHECK(prompt.options.enable_thinking == false);
  CHECK_FALSE(prompt.options.add_generation_prompt);
  check_refused<TokenizeRequest>(R"("model": "m")",
                                 {{"", "prompt", "is missing"},
                                  {R"("prompt": ["a"])", "prompt", "a string, got an array of 1"},
                                  {kPrompt + ", " + kMessages, "prompt", "cannot be combined"},
                                  {R"("messages": [])", "messages", "must not be empty"}});

  const auto ids = DetokenizeRequest::parse(parse_request_body(R"({"tokens": [3, 1]})")).tokens;
  CHECK(ids == std::vector<TokenId>{3, 1});
  check_refused<DetokenizeRequest>(R"("model": "m")",
                                   {{"", "tokens", "is missing"},
                                    {R"("tokens": "a")", "tokens", "a list of token ids"},
                                    {R"("tokens": [1, "a"])", "tokens[1]", "a token id"}});
}

namespace {

/// A body with as many fields as can go together.
const std::string kFullChat = R"({"model": "m", "messages": [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "1",
     "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "3"}],
  "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": true,
             "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
  "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": true,
  "response_format": {"type": "text", "json_schema": {"name": "n", "schema": {}, "strict": true}},
  "temperature": 1, "top_p": 0.5, "top_k": 5, "min_p": 0, "n": 2, "seed": 3, "max_tokens": 9,
  "max_completion_tokens": 8, "min_tokens": 2, "stop": ["x", "y"], "stop_token_ids": [1],
  "logit_bias": {"1": 2}, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1,
  "bad_words": ["b"], "allowed_token_ids": [1, 2], "logprobs": true, "top_logprobs": 2,
  "ignore_eos": false, "skip_special_tokens": true, "include_stop_str_in_output": false,
  "priority": 1, "stream": true, "stream_options": {"include_usage": true},
  "chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "low", "user": "u"})";
const std::string kFullCompletion = R"({"model": "m", "prompt": [[1, 2], [3]], "n": 2, "echo": true,
  "max_tokens": 0, "logprobs": 2, "stop": "x", "suffix": "", "best_of": 2, "use_beam_search": false,
  "length_penalty": 1, "early_stopping": false, "structured_outputs": {"choice": ["a", "b"]},
  "guided_json": null, "stream": true, "stream_options": {"continuous_usage_stats": true}})";

/// Some place in `value`, the whole included.
Json& random_place(Json& value, std::mt19937& random) {
  Json* at = &value;
  while (at->is_structured() && !at->empty() && random() % 5 != 0) {
    const std::size_t index = random() % at->size();
    at = at->is_array() ? &(*at)[index] : &(*at)[at->items()[index].key];
  }
  return *at;
}

Json random_value(std::mt19937& random) {
  static const std::vector<Json> kValues = {nullptr,
                                            true,
                                            false,
                                            0,
                                            1,
                                            -1,
                                            2.5,
                                            1e300,
                                            3000000000,
                                            Json::big_integer("123456789012345678901"),
                                            "",
                                            "x",
                                            "none",
                                            "text",
                                            "{}",
                                            "\xc3\xa9",
                                            Json::array(),
                                            Json::array({1}),
                                            Json::array({""}),
                                            Json::array({Json::array({1})}),
                                            Json::object(),
                                            Json::object({{"type", "function"}}),
                                            Json::object({{"type", "json_object"}}),
                                            Json::object({{"role", "user"}}),
                                            Json::object({{"name", "f"}}),
                                            Json::object({{"7", 1}})};
  return kValues[random() % kValues.size()];
}

/// Whether `body` is taken. If not, the error says what a client can find in its own body.
template <class Request>
bool is_taken(const Json& body) {
  try {
    (void)Request::parse(body);
    return true;
  } catch (const ApiError& error) {
    INFO(body.dump());
    INFO(error.what());
    CHECK(error.status == 400);
    CHECK(parse_json(error.body())["error"]["message"] == Json(error.what()));
    const bool is_missing = std::string_view(error.what()).ends_with("is missing");
    if (!error.param)
      CHECK_FALSE(body.is_object());
    else
      CHECK(nanovllm::testing::find_path(body, *error.param, is_missing) != nullptr);
    return false;
  }
}

template <class Request>
void check_mutations(const std::string& text) {
  const Json whole = parse_request_body(text);
  CHECK(is_taken<Request>(whole));
  std::mt19937 random(7);
  int num_taken = 0;
  constexpr int kBodies = 4000;
  for (int i = 0; i < kBodies; ++i) {
    Json body = whole;
    const auto num_changes = 1 + random() % 2;
    for (std::size_t k = 0; k < num_changes; ++k) random_place(body, random) = random_value(random);
    num_taken += is_taken<Request>(body);
  }
  // Both happen often enough to be looked at.
  CHECK(num_taken > kBodies / 30);
  CHECK(num_taken < kBodies * 29 / 30);
}

}  // namespace

TEST_CASE("whatever is wrong with a body is an error that names a field of it") {
  check_mutations<ChatCompletionRequest>(kFullChat);
  check_mutations<CompletionRequest>(kFullCompletion);
}

TEST_CASE("every native template renders what was taken") {
  const auto request = ChatCompletionRequest::parse(parse_request_body(kFullChat));
  for (int i = 0; i < static_cast<int>(ChatTemplateKind::custom); ++i) {
    const ChatTemplate chat_template(static_cast<ChatTemplateKind>(i));
    CHECK_FALSE(chat_template.render(request.messages, request.options).empty());
  }
  const ChatTemplate qwen3(ChatTemplateKind::qwen3);
  CHECK_THAT(qwen3.render(request.messages, request.options),
             Catch::Matchers::Contains(R"({"name": "f", "arguments": {"a": 1}})"));
}
