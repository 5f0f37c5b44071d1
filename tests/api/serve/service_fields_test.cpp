// Fields of a request in any combination, over an engine: whatever a request says is served, or is
// an error of the request in its own words, and never one of the server.

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "engine/models.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/engine/any_engine.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using Catch::Matchers::Contains;

namespace {

/// Names that the engine has for fields, and requests have not.
constexpr std::string_view kInternalNames[] = {"token_masks", "HostKv", "pooler",
                                               "functor_argument", "logits processors"};

struct Served {
  HttpReply post(const std::string& target, const std::string& fields) {
    const auto exchange =
        service.handle({.method = "POST", .target = target, .body = "{" + fields + "}"});
    while (any.step()) {
    }
    HttpReply reply{.head = *exchange->head()};
    while (exchange->take(reply.body)) {
    }
    return reply;
  }
  Json ask(const std::string& target, const std::string& fields, int status) {
    const HttpReply reply = post(target, fields);
    INFO(fields << "\n" << reply.body);
    CHECK(reply.head.status == status);
    return parse_json(reply.body);
  }
  void check_refused(const std::string& target, const std::string& fields, const Json& param,
                     const std::vector<std::string>& says) {
    const Json error = ask(target, fields, 400)["error"];
    INFO(fields);
    CHECK(error["param"] == param);
    for (const std::string& text : says) CHECK_THAT(error["message"].string(), Contains(text));
    for (const std::string_view name : kInternalNames)
      CHECK(error["message"].string().find(name) == std::string::npos);
  }

  Engine<AnyModel> any{
      EngineConfig{.model = "examples/models/fairytale", .num_threads = 1, .max_model_len = 128}};
  OpenAiService service{
      any,
      {.constraints =
           std::make_shared<CachedConstraintCompiler>(std::make_shared<OutputConstraintCompiler>(
               std::make_shared<GrammarVocabulary>(any.tokenizer(), any.eos_token_ids()),
               ConstraintLimits{.allow_grammars = true}))}};
};

const std::string kMessages = R"("messages": [{"role": "user", "content": "Hi"}])";
const std::string kCompletions = "/v1/completions", kChats = "/v1/chat/completions";

/// A field and some of its values, right and wrong, as JSON.
struct Field {
  const char* name;
  std::vector<const char*> values;
};

const std::vector<Field> kFields = {
    {"max_tokens", {"1", "4", "0", "1000000"}},
    {"min_tokens", {"1", "4", "-1"}},
    {"n", {"1", "2", "3", "0", "200"}},
    {"temperature", {"0", "0.7", "2.5", "-1", "\"hot\""}},
    {"top_p", {"0.5", "1", "1.5"}},
    {"top_k", {"1", "5", "-1"}},
    {"min_p", {"0.1", "2"}},
    {"seed", {"7"}},
    {"stop", {"\"the\"", "[\"a\", \"b\"]", "\"\""}},
    {"stop_token_ids", {"[5]", "[99999999]"}},
    {"ignore_eos", {"true"}},
    {"include_stop_str_in_output", {"true"}},
    {"skip_special_tokens", {"false"}},
    {"presence_penalty", {"1", "3"}},
    {"frequency_penalty", {"-1"}},
    {"repetition_penalty", {"1.2", "0"}},
    {"logit_bias", {"{\"5\": -100}", "{\"5\": 200}", "{\"x\": 1}"}},
    {"allowed_token_ids", {"[5, 6]", "[]", "[-1]"}},
    {"bad_words", {"[\"king\"]", "[\"a\"]"}},
    {"prompt_logprobs", {"1"}},
    {"truncate_prompt_tokens", {"3", "-1", "0"}},
    {"priority", {"3"}},
    {"cache_salt", {"\"salt\""}},
    {"add_special_tokens", {"true", "false", "0"}},
    {"truncation_side", {"\"left\"", "\"right\""}},
    {"stream", {"true"}},
    {"stream_options", {"{\"include_usage\": true}"}},
    {"return_token_ids", {"true"}},
    {"response_format", {"{\"type\": \"json_object\"}", "{\"type\": \"text\"}"}},
    {"guided_choice", {"[\"yes\", \"no\"]", "[\"only\"]"}},
    {"guided_regex", {"\"a{2}\"", "\"(\"", "\"[0-9]+\""}},
    {"guided_grammar", {"\"root ::= \\\"x\\\"\""}},
    {"guided_json", {"{\"type\": \"integer\"}", "{\"enum\": [1]}"}},
};

const std::vector<Field> kCompletionFields = {
    {"prompt", {"\"Once upon\"", "[5, 6]", "[\"a\", \"b\"]", "\"\""}},
    {"use_beam_search", {"true"}},
    {"beam_width", {"2", "100"}},
    {"best_of", {"2", "4"}},
    {"length_penalty", {"2"}},
    {"early_stopping", {"true", "\"never\""}},
    {"logprobs", {"0", "3"}},
    {"echo", {"true"}},
};

const std::vector<Field> kChatFields = {
    {"logprobs", {"true"}},
    {"top_logprobs", {"2"}},
    {"max_completion_tokens", {"4"}},
    {"tools", {"[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"}},
    {"tool_choice", {"\"required\"", "\"none\"", "\"auto\""}},
    {"chat_template_kwargs", {"{\"enable_thinking\": true}", "{\"enable_thinking\": false}"}},
    {"continue_final_message", {"true"}},
};

std::string random_fields(std::mt19937& random, const std::vector<Field>& own, std::string fields) {
  std::vector<const Field*> all;
  for (const Field& field : kFields) all.push_back(&field);
  for (const Field& field : own) all.push_back(&field);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(1 + random() % 5);
  for (const Field* field : all) {
    // Mostly the first, which alone is right.
    const std::size_t i = random() % 3 == 0 ? random() % field->values.size() : 0;
    fields += concat(", \"", field->name, "\": ", field->values[i]);
  }
  return fields;
}

}  // namespace

TEST_CASE("no combination of fields is an error of the server", "[serve][fields]") {
  Served served;
  std::mt19937 random(51);
  int num_served = 0, num_refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const bool is_chat = random() % 3 == 0;
    const std::string fields =
        is_chat ? random_fields(random, kChatFields, kMessages + R"(, "max_tokens": 3)")
                : random_fields(random, kCompletionFields, R"("prompt": "A", "max_tokens": 3)");
    const HttpReply reply = served.post(is_chat ? kChats : kCompletions, fields);
    INFO(fields << "\n" << reply.head.status << " " << reply.body);
    const bool is_error = reply.body.find(R"({"error")") != std::string::npos;
    REQUIRE((reply.head.status == 200 || reply.head.status == 400));
    REQUIRE(reply.body.find("server_error") == std::string::npos);  // in a stream
    if (is_error) {
      for (const std::string_view name : kInternalNames)
        REQUIRE(reply.body.find(name) == std::string::npos);
    }
    REQUIRE(served.service.num_unfinished() == 0);
    ++(is_error ? num_refused : num_served);
  }
  CHECK(num_served > 300);
  CHECK(num_refused > 300);
}

TEST_CASE("fields that rule each other out are named", "[serve][fields]") {
  Served served;
  served.check_refused(
      kCompletions,
      R"("prompt": "A", "max_tokens": 16, "min_tokens": 12, "guided_choice": ["yes", "no"])",
      "guided_choice", {"guided_choice and min_tokens rule each other out", "after"});
  served.check_refused(kChats,
                       R"("messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8,
                          "response_format": {"type": "json_object"}, "allowed_token_ids": [5, 6])",
                       "response_format",
                       {"response_format and allowed_token_ids rule each other out: no token"});
  served.check_refused(kCompletions, R"("prompt": "A", "guided_regex": "a+", "ignore_eos": true)",
                       nullptr, {"guided_regex need an end token", "stop_token_ids"});
  served.check_refused(kCompletions,
                       R"("prompt": "A", "use_beam_search": true, "n": 3, "best_of": 2)", "best_of",
                       {"best_of must be at least n = 3, got 2"});
  served.check_refused(kCompletions, R"("prompt": "A", "use_beam_search": true, "top_k": 3)",
                       "use_beam_search", {"use_beam_search cannot be combined with top_k"});
  served.check_refused(kCompletions, R"("prompt": "A", "length_penalty": 2)", "length_penalty",
                       {"need use_beam_search"});
}

// A text of one letter has one spelling in tokens, and ends by one of the model's two end tokens.
TEST_CASE("beams that find fewer texts than wanted give those", "[serve][fields]") {
  Served served;
  const std::string fields =
      R"("max_tokens": 8, "n": 3, "use_beam_search": true, "guided_choice": ["q"], "prompt": )";
  const Json one = served.ask(kCompletions, fields + R"("A")", 200);
  CHECK(one["choices"].size() == 2);
  const Json two = served.ask(kCompletions, fields + R"(["A", "B"])", 200);
  CHECK(two["choices"].size() == 4);
  for (const Json& choice : two["choices"]) {
    CHECK(choice["text"] == "q");
    CHECK(choice["finish_reason"] == "stop");
    CHECK(choice["index"].get<int>() % 3 < 2);
  }
}

TEST_CASE("dimensions beyond the model's are refused before a vector is computed",
          "[serve][fields]") {
  Served served;
  const auto before = served.any.stats().num_prefill_tokens;
  served.check_refused("/v1/embeddings", R"("input": "A", "dimensions": 100000)", "dimensions",
                       {"dimensions must be at most"});
  CHECK(served.any.stats().num_prefill_tokens == before);
}
