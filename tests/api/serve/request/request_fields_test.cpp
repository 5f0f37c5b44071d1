#include "nanovllm/api/serve/request/request_fields.hpp"

#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/serve/request/param_path.hpp"
#include "api/serve/request/request_cases.hpp"
#include "catch.hpp"
#include "chat/templates.hpp"
#include "nanovllm/chat/chat_template.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;

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
  CHECK_THROWS_AS(ChatCompletionRequest::parse(Json(1)), RequestError);
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

TEST_CASE("cache_salt is a text that is not empty") {
  const std::vector<Refusal> table = {
      {R"("cache_salt": "")", "cache_salt", "must not be empty"},
      {R"("cache_salt": 5)", "cache_salt", "must be a string, got 5"},
      {R"("cache_salt": {})", "cache_salt", "must be a string"},
      {R"("cache_salt": ")" + std::string(600, 'x') + '"', "cache_salt", "at most 512 bytes"}};
  check_refused<ChatCompletionRequest>(kMessages, table);
  check_refused<CompletionRequest>(kPrompt, table);
  CHECK(chat(R"("cache_salt": "alice")").cache_salt == "alice");
  CHECK(completion(R"("cache_salt": "alice")").cache_salt == "alice");
  CHECK(chat(R"("cache_salt": null)").cache_salt.empty());
  CHECK(completion("").cache_salt.empty());
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
      {R"("top_p": -0.1)", "top_p", "a number in [0, 1], got -0.1"},
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
      {R"("min_tokens": 4, "max_tokens": 3)", "min_tokens", "max_tokens = 3, got 4"},
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
  "chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "low", "user": "u",
  "add_special_tokens": true, "include_reasoning": true, "vllm_xargs": {}})";
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

/// The error that refuses `body`, if it is refused.
template <class Request>
std::optional<ApiError> refusal_of(const Json& body) {
  try {
    (void)Request::parse(body);
    return std::nullopt;
  } catch (const RequestError& error) {
    return ApiError::of(error);
  }
}

/// Whether `body` is taken. If not, the error says what a client can find in its own body.
template <class Request>
bool is_taken(const Json& body) {
  const std::optional<ApiError> error = refusal_of<Request>(body);
  if (!error) return true;
  INFO(body.dump());
  INFO(error->what());
  CHECK(error->status == 400);
  CHECK(parse_json(error->body())["error"]["message"] == Json(error->what()));
  const bool is_missing = std::string_view(error->what()).ends_with("is missing");
  if (!error->param)
    CHECK_FALSE(body.is_object());
  else
    CHECK(nanovllm::testing::find_path(body, *error->param, is_missing) != nullptr);
  return false;
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

TEST_CASE("a template renders what was taken") {
  const auto request = ChatCompletionRequest::parse(parse_request_body(kFullChat));
  CHECK_FALSE(ChatTemplate::chatml().render(request.messages, request.options).empty());
  const ChatTemplate hybrid = nanovllm_test::hybrid_template();
  CHECK_THAT(hybrid.render(request.messages, request.options),
             Catch::Matchers::Contains(R"({"name": "f", "arguments": {"a": 1}})"));
}
