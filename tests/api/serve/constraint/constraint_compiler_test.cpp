#include "nanovllm/api/serve/constraint/constraint_compiler.hpp"

#include <chrono>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "api/grammar/json/takes.hpp"
#include "catch.hpp"
#include "nanovllm/core/error.hpp"

namespace nv = nanovllm;
using nanovllm_test::byte_vocabulary;
using nanovllm_test::takes;
using nv::ToolCallFormat;
using nv::serve::JsonSpace;
using nv::serve::OutputConstraint;
using Kind = OutputConstraint::Kind;

namespace {

nv::serve::OutputConstraintCompiler& compiler() {
  static nv::serve::OutputConstraintCompiler made(
      byte_vocabulary({"<tool_call>", "</tool_call>", "</think>"}), {.allow_grammars = true});
  return made;
}

bool takes(const OutputConstraint& constraint, const std::string& text) {
  return nanovllm_test::takes(*compiler().compile(constraint), text);
}

std::string refusal(const OutputConstraint& constraint,
                    nv::serve::OutputConstraintCompiler& by = compiler()) {
  try {
    (void)by.compile_sized(constraint);
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
  CHECK_THAT(refusal({}), Catch::Matchers::Contains("no constraint"));
  CHECK(compiler().compile_sized({.kind = Kind::json_object}).size_bytes > 1000);
}

TEST_CASE("calls of tools as Hermes writes them") {
  OutputConstraint calls{.kind = Kind::tool_calls, .tools = kTools};
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\",\"days\":3}}\n"
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
        std::string("<tool_call>\n{\"name\": \"time\", \"arguments\": {\"a\":1}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Rome\","
                    "\"days\":8}}\n</tool_call>")}) {
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

TEST_CASE("an answer in a form, or calls of tools instead") {
  OutputConstraint either{
      .kind = Kind::json_schema,
      .text = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})",
      .tools = nv::parse_json(R"([{"type": "function", "function": {"name": "f", "parameters":
          {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}}}])"),
      .or_tool_calls = true};
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":true}}\n</tool_call>";
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

TEST_CASE("regular expressions and choices, and what is beyond the limits") {
  const auto vocabulary = byte_vocabulary({"</think>"});
  nv::serve::OutputConstraintCompiler compiler(vocabulary, {.max_text_bytes = 100});
  CHECK(compiler.compile({}) == nullptr);
  CHECK(takes(*compiler.compile({.kind = Kind::regex, .text = "a+"}), "aaa"));
  const auto choice = compiler.compile({.kind = Kind::choice, .choices = {"a|b", "c"}});
  CHECK(takes(*choice, "a|b"));
  CHECK_FALSE(takes(*choice, "a"));
  CHECK(takes(*compiler.compile({.kind = Kind::regex, .text = "a+", .after_reasoning = true}),
              "hm</think>\na"));
  CHECK(compiler.compile_sized({.kind = Kind::regex, .text = "a+"}).size_bytes > 300);

  using Catch::Matchers::Contains;
  const auto refused = [&](const OutputConstraint& constraint) {
    return refusal(constraint, compiler);
  };
  CHECK_THAT(refused({.kind = Kind::regex, .text = "(a"}), Contains("(a"));
  CHECK_THAT(refused({.kind = Kind::choice}), Contains("at least one choice"));
  for (const Kind kind : {Kind::regex, Kind::grammar, Kind::json_schema})
    CHECK_THAT(refused({.kind = kind, .text = std::string(101, 'a')}), Contains("101 bytes"));
  CHECK_THAT(refused({.kind = Kind::tool_calls, .tools = kTools}), Contains("the list of tools"));
  OutputConstraint many{.kind = Kind::choice, .choices{1025, "a"}};
  CHECK_THAT(refused(many), Contains("1025 texts"));
  many.choices = {std::string(std::size_t{1} << 17, 'a')};
  CHECK_THAT(refused(many), Contains("131072 bytes"));
}

TEST_CASE("regular expressions that explode are refused in time") {
  for (const char* pattern : {"(a|b)*a(a|b){30}", "(x{1,1000}){1,1000}", "(a{1,100000}){1,100000}",
                              "((((a?){30}){30}){30}){30}", ".{1,1000000}"}) {
    INFO(pattern);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(refusal({.kind = Kind::regex, .text = pattern}) != "nothing refused");
    CHECK(std::chrono::steady_clock::now() - begin <
          std::chrono::seconds(120));  // one, without a sanitizer
  }
}

TEST_CASE("a grammar with many readings ends its request in time") {
  // All its readings are followed, of which there may be so many. With a sanitizer the usual budget
  // of time would end it before.
  const nv::CpuBudget patience{.at_first = std::chrono::minutes(10), .per_token = {}};
  nv::serve::OutputConstraintCompiler patient(byte_vocabulary(), {.allow_grammars = true},
                                              patience);
  const auto source =
      patient.compile({.kind = Kind::grammar, .text = "root ::= \"a\" root root | \"a\""});
  const auto begin = std::chrono::steady_clock::now();
  const auto read_on = [](const nv::TokenMaskSource& from) {
    const auto matcher = from.matcher();
    for (int i = 0; i < 10'000'000 && matcher->accept(2 + 'a'); ++i) {
    }
  };
  CHECK_THROWS_WITH(read_on(*source), Catch::Matchers::Contains("too many readings"));
  CHECK(std::chrono::steady_clock::now() - begin <
        std::chrono::seconds(120));  // one, without a sanitizer

  const nv::CpuBudget budget{.at_first = std::chrono::milliseconds(10), .per_token = {}};
  nv::serve::OutputConstraintCompiler hasty(byte_vocabulary(), {.allow_grammars = true}, budget);
  const OutputConstraint letters{.kind = Kind::grammar, .text = "root ::= \"a\" root | \"b\""};
  CHECK_THROWS_WITH(read_on(*hasty.compile(letters)), Catch::Matchers::Contains("too ambiguous"));

  nv::serve::OutputConstraintCompiler wary(byte_vocabulary());
  CHECK_THAT(refusal(letters, wary), Catch::Matchers::Contains("grammars are not taken here"));
}

TEST_CASE(
    "defect: calls of tools have no white space in their arguments, other JSON what is asked") {
  OutputConstraint calls{.kind = Kind::tool_calls, .tools = kTools};
  const auto call = [](const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"weather\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  for (const JsonSpace space : {JsonSpace::tidy, JsonSpace::none, JsonSpace::any}) {
    calls.json_space = space;
    CHECK(takes(calls, call(R"({"city":"Rome","days":3})")));
    CHECK_FALSE(takes(calls, call(R"({"city": "Rome"})")));
    CHECK_FALSE(takes(calls, call("{\n\"city\":\"Rome\"}")));
  }
  OutputConstraint json{.kind = Kind::json_schema,
                        .text = R"({"properties": {"a": {"type": "integer"}}})"};
  CHECK(takes(json, R"({"a":1})"));
  CHECK(takes(json, "{\n  \"a\": 1\n}"));
  CHECK_FALSE(takes(json, R"({"a":  1})"));
  json.json_space = JsonSpace::none;
  CHECK(takes(json, R"({"a":1})"));
  CHECK_FALSE(takes(json, R"({"a": 1})"));
  json.json_space = JsonSpace::any;
  CHECK(takes(json, "{\n\n\n\"a\":  1}"));
}

TEST_CASE("a grammar or a schema that is wrong is refused with the place") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({.kind = Kind::grammar, .text = "root ::= \"a"}),
             Contains("the grammar is refused") && Contains("at byte 11"));
  CHECK_THAT(refusal({.kind = Kind::grammar, .text = "root ::= root \"a\" | \"b\""}),
             Contains("the rule 'root' calls itself before it reads anything"));
  CHECK_THAT(
      refusal({.kind = Kind::json_schema, .text = R"({"properties": {"x": {"not": {}}}})"}),
      Contains("the JSON Schema is refused") && Contains("'not'") && Contains("/properties/x"));
}

TEST_CASE("defect: a pattern that takes seconds to be refused is refused by counted work") {
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal({.kind = Kind::regex, .text = "(.*a.{16}b)"}),
             Contains("takes too much work: more than 16000000 steps"));
  CHECK_THAT(refusal({.kind = Kind::json_schema, .text = R"({"pattern": "^.*a.{16}b$"})"}),
             Contains("the pattern '^.*a.{16}b$'") && Contains("16000000 steps"));
  nv::serve::OutputConstraintCompiler small(byte_vocabulary(), {.max_steps = 1000});
  CHECK_THROWS_AS(small.compile({.kind = Kind::regex, .text = "[a-z]{1,200}"}), nv::RequestError);
  CHECK(small.compile({.kind = Kind::regex, .text = "[a-z]{1,4}"}) != nullptr);
}

TEST_CASE("a compilation ends when a stop is requested") {
  nv::serve::OutputConstraintCompiler patient(byte_vocabulary(), {.max_steps = 1'000'000'000});
  std::stop_source stop;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  // Of the order of a minute, if nothing stopped it.
  CHECK_THROWS_AS(patient.compile({.kind = Kind::regex, .text = "(.*a.{22}b)"}, stop.get_token()),
                  nv::CompileCancelled);
  canceller.join();
}
