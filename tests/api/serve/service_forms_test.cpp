// Answers in a form, through the whole service: the fairytale model and the compiler that every
// build has.

#include <memory>
#include <string>
#include <thread>

#include "catch.hpp"
#include "nanovllm/api/grammar/bytes/grammar_vocabulary.hpp"
#include "nanovllm/api/serve/constraint/cached_constraint_compiler.hpp"
#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"
#include "nanovllm/api/serve/service.hpp"
#include "nanovllm/engine.hpp"
#include "nanovllm/engine/request/frontend.hpp"
#include "nanovllm/io/json.hpp"
#include "nanovllm/text/tokenizer.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using Catch::Matchers::Contains;

namespace {

/// A service of the fairytale model, whose engine runs.
class Server {
 public:
  explicit Server(ConstraintLimits limits = {})
      : vocabulary_(std::make_shared<GrammarVocabulary>(*engine_.text().tokenizer,
                                                        engine_.eos_token_ids())),
        service_(engine_, {.model_names = {"fairytale"},
                           .constraints = std::make_shared<CachedConstraintCompiler>(
                               std::make_shared<OutputConstraintCompiler>(vocabulary_, limits))}) {}

  /// The reply to a chat with these fields, which must have this status.
  Json chat(const std::string& fields, int status = 200) {
    const HttpReply reply = service_.answer(
        {.method = "POST",
         .target = "/v1/chat/completions",
         .body = R"({"messages": [{"role": "user", "content": "Tell me of a fox."}], )"
                 R"("temperature": 0, "max_tokens": 400, )" +
                 fields + "}"});
    INFO(fields << "\n" << reply.body);
    REQUIRE(reply.head.status == status);
    return parse_json(reply.body);
  }

  /// The text of an answer that came to its end.
  std::string text(const std::string& fields) {
    const Json reply = chat(fields);
    CHECK(reply["choices"][0]["finish_reason"] == "stop");
    return reply["choices"][0]["message"]["content"].string();
  }

  [[nodiscard]] TokenId first_token(const std::string& text) const {
    return engine_.text().tokenizer->encode(text).at(0);
  }

 private:
  Engine<Qwen3<shapes::qwen3_any>> engine_{
      EngineConfig{.model = "examples/models/fairytale", .num_threads = 1}};
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  OpenAiService service_;
  std::jthread runner_{[this](const std::stop_token& stop) { engine_.run(stop); }};
};

const std::string kAnimal = R"({"type": "object", "required": ["kind", "legs", "is_sly"],
  "properties": {"kind": {"enum": ["fox", "wolf"]}, "legs": {"type": "integer", "minimum": 3,
  "maximum": 4}, "is_sly": {"type": "boolean"}}, "additionalProperties": false})";

void check_animal(const std::string& text) {
  INFO(text);
  const Json animal = parse_json(text);
  CHECK(animal.size() == 3);
  CHECK((animal["kind"] == "fox" || animal["kind"] == "wolf"));
  CHECK((animal["legs"] == 3 || animal["legs"] == 4));
  CHECK(animal["is_sly"].is_boolean());
}

const std::string kTools = R"("tools": [
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
    "required": ["town", "day"], "properties": {"town": {"enum": ["Rome", "Oslo"]},
    "day": {"type": "integer", "minimum": 1, "maximum": 3}}}}},
  {"type": "function", "function": {"name": "time", "parameters": {"type": "object",
    "properties": {}}}}])";

}  // namespace

TEST_CASE("defect: JSON by a schema needs no other library", "[serve]") {
  Server server;
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": )" +
      kAnimal + "}}";
  check_animal(server.text(format));
  check_animal(server.text(R"("chat_template_kwargs": {"enable_thinking": false}, )" + format));
  check_animal(server.text("\"guided_json\": " + kAnimal));
  const std::string outputs = "\"structured_outputs\": {\"json\": " + kAnimal;
  check_animal(server.text(outputs + ", \"disable_any_whitespace\": false}"));
  const std::string compact = server.text(outputs + ", \"disable_any_whitespace\": true}");
  check_animal(compact);
  CHECK(compact.find_first_of(" \n") == std::string::npos);
}

TEST_CASE("any JSON object, by response_format", "[serve]") {
  Server server;
  // A model of tales finds no end of an object by itself.
  const std::string bias = concat(R"("logit_bias": {")", server.first_token("}"), R"(": 100, ")",
                                  server.first_token("\"}"), R"(": 100}, )");
  const std::string text = server.text(bias + R"("response_format": {"type": "json_object"})");
  INFO(text);
  CHECK(parse_json(text).is_object());
}

TEST_CASE("calls of tools that must come, of all or of those that are allowed", "[serve]") {
  Server server;
  const auto calls = [&](const std::string& choice) {
    const Json reply =
        server.chat(kTools + ", \"parallel_tool_calls\": false, \"tool_choice\": " + choice);
    const Json& message = reply["choices"][0]["message"];
    CHECK(reply["choices"][0]["finish_reason"] == "tool_calls");
    CHECK(message["content"].is_null());
    REQUIRE(message["tool_calls"].size() == 1);
    const Json& function = message["tool_calls"][0]["function"];
    const Json arguments = parse_json(function["arguments"].string());
    const bool is_weather = function["name"] == "weather";
    CHECK(arguments.size() == (is_weather ? 2 : 0));
    if (is_weather) {
      CHECK((arguments["town"] == "Rome" || arguments["town"] == "Oslo"));
      CHECK(arguments["day"].get<int>() >= 1);
      CHECK(arguments["day"].get<int>() <= 3);
    }
    return function["name"].string();
  };
  const std::string required = calls("\"required\"");
  CHECK((required == "weather" || required == "time"));
  for (const std::string name : {"weather", "time"}) {
    const std::string tool = R"({"type": "function", "function": {"name": ")" + name + "\"}}";
    CHECK(calls(tool) == name);
    CHECK(calls(R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [)" +
                tool + "]}}") == name);
  }
}

TEST_CASE("a grammar, where clients are trusted with one", "[serve]") {
  const std::string grammar =
      R"("structured_outputs": {"grammar": "root ::= animal \" and \" animal  # two of them\n)"
      R"(animal ::=\n  \"fox\" | \"wolf\""})";
  Server server({.allow_grammars = true});
  const std::string text = server.text(grammar);
  INFO(text);
  CHECK((text == "fox and fox" || text == "fox and wolf" || text == "wolf and fox" ||
         text == "wolf and wolf"));
  const Json wrong = server.chat(R"("structured_outputs": {"grammar": "root ::= animal"})", 400);
  CHECK(wrong["error"]["param"] == "structured_outputs.grammar");
  CHECK_THAT(wrong["error"]["message"].string(), Contains("has no rule 'animal'"));

  Server wary;
  CHECK_THAT(wary.chat(grammar, 400)["error"]["message"].string(),
             Contains("grammars are not taken"));
}

TEST_CASE("a schema that cannot be enforced is a 400 that names the place", "[serve]") {
  Server server;
  const auto refused = [&](const std::string& fields) { return server.chat(fields, 400)["error"]; };
  const Json schema = refused(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema":
         {"type": "object", "properties": {"x": {"not": {"type": "null"}}}}}})");
  CHECK(schema["type"] == "invalid_request_error");
  CHECK(schema["param"] == "response_format");
  CHECK_THAT(schema["message"].string(), Contains("'not'") && Contains("/properties/x"));
  const Json tool = refused(R"("tools": [{"type": "function", "function": {"name": "f",
      "parameters": {"type": "object", "properties": {"x": {"not": {}}}}}}],
      "tool_choice": "required")");
  CHECK(tool["param"] == "tool_choice");
  CHECK_THAT(tool["message"].string(),
             Contains("the tool 'f'") && Contains("'not'") && Contains("/properties/x"));
  const Json pattern = refused(R"("structured_outputs": {"json": {}, "whitespace_pattern": " ?"})");
  CHECK(pattern["param"] == "structured_outputs.whitespace_pattern");
}
