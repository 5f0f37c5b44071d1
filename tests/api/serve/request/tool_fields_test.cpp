#include "nanovllm/api/serve/request/chat_fields.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "api/serve/request/request_cases.hpp"
#include "catch.hpp"

using namespace nanovllm;
using namespace nanovllm::serve;
using namespace nanovllm::test;
using FormatKind = OutputConstraint::Kind;
using ChoiceKind = ToolChoice::Kind;

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
