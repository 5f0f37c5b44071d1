#include "nanovllm/api/serve/request/generation_fields.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "api/serve/request/request_cases.hpp"
#include "catch.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using FormatKind = OutputConstraint::Kind;

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
           {R"("response_format": {"type": "json_object", "schema": null})",
            FormatKind::json_object, "", "response_format"},
           {R"("response_format": {"type": "json_object", "schema": {"type": "object"}})",
            FormatKind::json_schema, schema, "response_format"},
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
      {R"("response_format": {"type": "json_object", "schema": "x"})", "response_format.schema",
       "a JSON Schema, an object"},
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
