#include "nanovllm/serve/xgrammar_constraints.hpp"

#include <chrono>
#include <string>
#include <vector>

#include "catch.hpp"
#include "grammar/vocabularies.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nv::ToolCallFormat;
using nv::serve::OutputConstraint;
using Kind = OutputConstraint::Kind;

namespace {

bool takes(const nv::TokenMaskSource& source, const std::string& text) {
  const auto matcher = source.matcher();
  for (char c : text)
    if (!matcher->accept(2 + static_cast<unsigned char>(c))) return false;
  return matcher->accept(0);
}

nv::serve::XGrammarConstraintCompiler& compiler() {
  static nv::serve::XGrammarConstraintCompiler made(
      byte_vocabulary({"<tool_call>", "</tool_call>", "</think>"}), {.allow_grammars = true});
  return made;
}

bool takes(const OutputConstraint& constraint, const std::string& text) {
  return takes(*compiler().compile(constraint), text);
}

/// Whether JSON by the schema may be this text.
bool valid(const std::string& schema, const std::string& text) {
  return takes({.kind = Kind::json_schema, .text = schema}, text);
}

std::string refusal(const OutputConstraint& constraint) {
  try {
    (void)compiler().compile(constraint);
  } catch (const nv::RequestError& error) {
    return error.what();
  }
  return "nothing refused";
}

const nv::Json kTools = nv::parse_json(R"([
  {"type": "function", "function": {"name": "weather", "parameters": {
     "type": "object", "required": ["city"], "properties": {
       "city": {"type": "string"}, "days": {"$ref": "#/$defs/few"},
       "unit": {"type": "string", "enum": ["C", "F"]}},
     "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 7}}}}},
  {"type": "function", "function": {"name": "time"}}])");

}  // namespace

TEST_CASE("every kind of constraint is compiled") {
  CHECK(compiler().compile({}) == nullptr);
  CHECK(takes({.kind = Kind::json_object}, R"({"a": [1, {"b": null}]})"));
  CHECK_FALSE(takes({.kind = Kind::json_object}, "[1]"));
  CHECK(takes({.kind = Kind::json_schema, .text = R"({"type": "integer"})"}, "-12"));
  CHECK(takes({.kind = Kind::regex, .text = "a+"}, "aa"));
  CHECK(takes({.kind = Kind::choice, .choices = {"yes", "no"}}, "no"));
  CHECK(takes({.kind = Kind::grammar, .text = "root ::= \"a\" root \"b\" | \"\""}, "aabb"));
  CHECK(takes({.kind = Kind::json_object, .after_reasoning = true}, "{ or </think>\n\n{}"));
  CHECK(compiler().compile_sized({.kind = Kind::json_object}).size_bytes > 1000);
}

TEST_CASE("calls of tools as Hermes writes them") {
  OutputConstraint calls{.kind = Kind::tool_calls, .tools = kTools};
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n"
      "</tool_call>";
  const std::string time = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
  CHECK(takes(calls, weather));
  CHECK(takes(calls, time));
  CHECK(takes(calls, weather + "\n" + time));
  for (const std::string& wrong :
       {std::string(), "Well: " + weather, weather + "\n", weather + time,
        std::string("<tool_call>"),
        std::string("<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"time\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", "
                    "\"days\": 8}}\n</tool_call>")}) {
    INFO(wrong);
    CHECK_FALSE(takes(calls, wrong));
  }
  calls.parallel_tool_calls = false;
  CHECK(takes(calls, weather));
  CHECK_FALSE(takes(calls, weather + "\n" + time));
  calls.after_reasoning = true;
  CHECK(takes(calls, "hm</think>\n\n" + weather));

  OutputConstraint free{.kind = Kind::free_tool_calls, .tools = kTools};
  CHECK(takes(free, ""));
  CHECK(takes(free, "No \"call\" {"));
  CHECK(takes(free, "Let me see.\n" + weather + "\n" + time + " Done."));
  CHECK_FALSE(takes(free, "Let me see.\n<tool_call>\n{\"name\": \"other\""));
  CHECK_FALSE(takes(free, "Let me see.\n<tool_call>"));
}

TEST_CASE("calls of tools as Qwen3-Coder writes them") {
  const OutputConstraint calls{
      .kind = Kind::tool_calls, .tools = kTools, .tool_call_format = ToolCallFormat::qwen3_coder};
  const auto call = [](const std::string& name, const std::string& parameters) {
    return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
  };
  const std::string city = "<parameter=city>\nRome\n\"</param\n</parameter\n\n</parameter>\n";
  CHECK(takes(calls, call("weather", city)));
  CHECK(takes(calls, call("weather", "<parameter=city>\n\n</parameter>\n")));
  CHECK(takes(calls, call("weather", city + "<parameter=days>\n3\n</parameter>\n") + "\n" +
                         call("time", "")));
  CHECK(takes(calls, call("weather", city + "<parameter=unit>\nC\n</parameter>\n")));
  CHECK_FALSE(takes(calls, call("weather", "")));
  CHECK_FALSE(takes(calls, call("other", "")));
  CHECK_FALSE(takes(calls, call("weather", city + "<parameter=days>\n8\n</parameter>\n")));
  CHECK_FALSE(takes(calls, call("weather", city + "<parameter=unit>\nK\n</parameter>\n")));
  CHECK_FALSE(takes(calls, call("weather", city + city)));
}

TEST_CASE("tools that cannot be called are refused by name") {
  using Catch::Matchers::Contains;
  const auto message = [](const char* tools, ToolCallFormat format = ToolCallFormat::hermes) {
    return refusal(
        {.kind = Kind::tool_calls, .tools = nv::parse_json(tools), .tool_call_format = format});
  };
  CHECK_THAT(message("[]"), Contains("at least one tool"));
  CHECK_THAT(message(R"([{"type": "function"}])"), Contains("no function with a name"));
  const char* unique = R"([{"function": {"name": "f", "parameters": {"type": "object",
    "properties": {"x": {"type": "array", "uniqueItems": true}}}}}])";
  CHECK_THAT(message(unique),
             Contains("the tool 'f'") && Contains("'uniqueItems'") && Contains("/properties/x"));
  CHECK_THAT(message(R"([{"function": {"name": "f", "parameters": {"type": "array"}}}])"),
             Contains("of type object"));
  const char* pattern = R"([{"function": {"name": "f", "parameters": {"type": "object",
    "properties": {"x": {"type": "string", "maxLength": 3}}}}}])";
  CHECK(message(pattern) == "nothing refused");
  CHECK_THAT(message(pattern, ToolCallFormat::qwen3_coder), Contains("'maxLength'"));
}

TEST_CASE("a schema's keywords are enforced") {
  struct Case {
    const char* schema;
    std::vector<const char*> yes, no;
  };
  const std::vector<Case> cases{
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("\n\"é")", R"("a\u0061")", R"("a\ud83d\uDE00b")", "\"😀é\""},
       {R"("a")", R"("abcd")", R"("\ud83d\uDE00")", R"("a\ud83d")", "\"a\nb\""}},
      {R"({"type": "string", "pattern": "^a[b\"]+$"})", {R"("ab\"")"}, {R"("a")", R"("ab"")"}},
      {R"({"type": "string", "pattern": "^x-"})", {R"("x-")", R"("x-é\\y")"}, {R"("y")"}},
      {R"({"type": "string", "pattern": "b$|^c"})", {R"("ab")", R"("cd")"}, {R"("bd")"}},
      {R"({"type": "string", "format": "date"})", {R"("2024-02-29")"}, {R"("2023-02-29")"}},
      {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})",
       {"-12", "-1", "0", "9", "99", "104"},
       {"-13", "105", "-0", "007", "1.0", "1000"}},
      {R"({"type": "integer", "exclusiveMinimum": 3.5})", {"4", "99999999"}, {"3", "-4"}},
      {R"({"type": "integer", "multipleOf": 7})", {"0", "-14", "700007"}, {"6", "13"}},
      {R"({"type": "number", "multipleOf": 3, "minimum": 1, "maximum": 10})",
       {"3", "9"},
       {"0", "4"}},
      {R"({"type": "number", "minimum": -1.25, "exclusiveMaximum": 0.5})",
       {"-1.25", "-1.2", "-1", "0", "0.49999", "0.0"},
       {"-1.26", "0.5", "0.50", "1", "-1.2500001"}},
      {R"({"type": "number", "minimum": 100})", {"100", "100.5", "12345"}, {"99.9", "-100", "1e3"}},
      {R"({"type": "object", "properties": {"a": true, "b": {"type": "null"}}, "required": ["b"]})",
       {R"({"a": 1, "b": null})", R"({"b":null})"},
       {R"({"a": 1})", R"({"b": null, "c": 1})", "{}"}},
      {R"({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})",
       {R"({"ab": 1, "c": 2})", R"({"a": null, "b": 1})", "{}"},
       {R"({"a": 1})", R"({"\u0061": 1})", R"({"b": null})"}},
      {R"({"type": "object", "required": ["x"]})", {R"({"x": 1, "y": 2})"}, {"{}", R"({"y": 1})"}},
      {R"({"properties": {"a": true, "b": true, "c": true}, "minProperties": 2, "maxProperties": 2})",
       {R"({"a": 1, "c": 2})"},
       {R"({"a": 1})", R"({"a": 1, "b": 1, "c": 1})", "{}"}},
      {R"({"type": "object", "additionalProperties": true, "maxProperties": 1})",
       {"{}", R"({"a": 1})"},
       {R"({"a": 1, "b": 1})"}},
      {R"({"patternProperties": {"^x-": {"type": "integer"}, "^y": {"type": "null"}}})",
       {R"({"x-a": 1, "y": null})"},
       {R"({"x-a": null})", R"({"z": 1})"}},
      {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}})",
       {R"({"a": 1})"},
       {R"({"c": 1})"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1,2,3]", "[null]"}},
      {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "string"}})",
       {"[]", "[1]", "[1,null]", R"([1, null, "a"])"},
       {"[null]", "[1,null,2]"}},
      {R"({"items": [{"type": "integer"}], "additionalItems": false})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"enum": [1, "1", null, {"a": [2]}], "type": ["string", "object"]})",
       {R"("1")", R"({"a": [2]})"},
       {"1", "null"}},
      {R"({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"})", {"2", "4"}, {"1", "5"}},
      {R"({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"b": {"type": "null"}}}],
           "required": ["b"], "$defs": {"a": {"properties": {"a": {"type": "integer"}}}}})",
       {R"({"a": 1, "b": null})", R"({"b": null})"},
       {R"({"a": 1})", R"({"b": 1})"}},
      {R"({"properties": {"a": {"type": "integer"}}, "required": ["a"],
           "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]},
                     {"properties": {"a": {"minimum": 5}}}]})",
       {R"({"a": 1, "b": null})", R"({"a": 6})"},
       {R"({"a": 1})", R"({"b": null})"}},
      {R"({"oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
                      "required": ["kind"]},
                     {"properties": {"kind": {"const": "b"}}, "required": ["kind"]}]})",
       {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"},
       {R"({"kind": "b", "x": 1})", "{}"}},
      {R"({"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}})",
       {R"({"next": {"next": {"v": 1}}})"},
       {R"({"next": 1})"}},
      {R"({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}})", {"null"}, {"1"}},
      {R"({"type": "object"})", {"{}", R"({"a": {"b": []}})"}, {"[]"}},
      {R"({"title": "t", "x-unknown": 1, "type": "boolean"})", {"true"}, {"1"}},
  };
  for (const Case& each : cases) {
    INFO(each.schema);
    for (const char* text : each.yes) {
      INFO(text);
      CHECK(valid(each.schema, text));
    }
    for (const char* text : each.no) {
      INFO(text);
      CHECK_FALSE(valid(each.schema, text));
    }
  }
}

TEST_CASE("what a schema's grammar cannot enforce is refused by name") {
  struct Case {
    const char *schema, *keyword, *place;
  };
  const std::vector<Case> cases{
      {R"({"properties": {"x": {"type": "array", "uniqueItems": true}}})", "'uniqueItems'",
       "/properties/x"},
      {R"({"not": {}})", "'not'", "root"},
      {R"({"if": {}, "then": {"minimum": 1}})", "'if'", "root"},
      {R"({"dependentRequired": {"a": ["b"]}})", "'dependentRequired'", "root"},
      {R"({"dependencies": {"a": ["b"]}})", "'dependencies'", "root"},
      {R"({"items": {"contains": {}}})", "'contains'", "/items"},
      {R"({"$dynamicRef": "#a"})", "'$dynamicRef'", "root"},
      {R"({"$ref": "http://example.com/a.json"})", "'http://example.com/a.json'", "root"},
      {R"({"$ref": "#/$defs/none"})", "leads nowhere", "root"},
      {R"({"$ref": "#"})", "back to itself", ""},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "back to itself", ""},
      {R"({"type": "number", "multipleOf": 0.1})", "'multipleOf'", "root"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "looks ahead", "root"},
      {R"({"type": "string", "pattern": "a^b"})", "^", "root"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "'maxLength'", "root"},
      {R"({"type": "string", "format": "iri"})", "'iri'", "root"},
      {R"({"oneOf": [{"minimum": 1}, {"maximum": 3}]})", "'oneOf'", "root"},
      {R"({"enum": ["a"], "maxLength": 3})", "'maxLength'", "root"},
      {R"({"type": "strange"})", "strange", "root"},
      {R"({"type": "string", "minLength": -1})", "'minLength'", "root"},
      {R"({"minProperties": 2})", "'minProperties'", "root"},
      {R"({"patternProperties": {"a": true, "b": true}})", "two patterns", "/patternProperties/b"},
      {R"({"patternProperties": {"a": true}, "additionalProperties": {}})", "'patternProperties'",
       "root"},
      {R"({"anyOf": [{"unevaluatedProperties": false}], "type": "object"})",
       "'unevaluatedProperties'", "/anyOf/0"},
      {"false", "no value is valid", "root"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "no value is valid", "root"},
      {R"({"enum": [1], "type": "string"})", "no value is valid", "root"},
      {"[]", "an object or a boolean", "root"},
      {"{", "not valid JSON", ""},
  };
  for (const Case& each : cases) {
    INFO(each.schema);
    const std::string message = refusal({.kind = Kind::json_schema, .text = each.schema});
    using Catch::Matchers::Contains;
    CHECK_THAT(message, Contains("JSON Schema") && Contains(each.keyword) && Contains(each.place));
  }
}

TEST_CASE("an answer in a form, or calls of tools instead") {
  OutputConstraint either{
      .kind = Kind::json_schema,
      .text = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})",
      .tools = nv::parse_json(R"([{"type": "function", "function": {"name": "f", "parameters":
          {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}}])"),
      .or_tool_calls = true};
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": true}}\n</tool_call>";
  CHECK(takes(either, R"({"a": 1})"));
  CHECK(takes(either, call));
  CHECK_FALSE(takes(either, R"({"a": 1})" + call));
  CHECK_FALSE(takes(either, "Yes."));
  either.after_reasoning = true;
  CHECK(takes(either, "Which?</think>\n\n" + call));
  CHECK(takes(either, "Which?</think>\n\n{\"a\": 1}"));
  CHECK_FALSE(takes(either, call));
  either.after_reasoning = either.or_tool_calls = false;
  CHECK_FALSE(takes(either, call));
}

TEST_CASE("a grammar with many readings ends its request and no other") {
  const nv::CpuBudget budget{.at_first = std::chrono::milliseconds(100), .per_token = {}};
  nv::serve::XGrammarConstraintCompiler hasty(byte_vocabulary(), {.allow_grammars = true}, {}, 1,
                                              budget);
  const auto source = hasty.compile({.kind = Kind::grammar, .text = "root ::= root root | \"a\""});
  const auto matcher = source->matcher();
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    for (int i = 0; i < 100'000 && matcher->accept(2 + 'a'); ++i) {
    }
  } catch (const nv::RequestError& error) {
    message = error.what();
  }
  CHECK_THAT(message, Catch::Matchers::Contains("too ambiguous"));

  nv::serve::XGrammarConstraintCompiler wary(byte_vocabulary());
  CHECK_THROWS_WITH(wary.compile({.kind = Kind::grammar, .text = "root ::= \"a\""}),
                    Catch::Matchers::Contains("grammars are not taken here"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}
