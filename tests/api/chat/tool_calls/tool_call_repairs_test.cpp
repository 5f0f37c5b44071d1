/// Calls as models write them when they leave something out, or write Python: each is the call that
/// was meant, or content as a whole.

#include <string>
#include <utility>
#include <vector>

#include "api/chat/chat_parser_laws.hpp"
#include "catch.hpp"
#include "nanovllm/api/chat/chat_parser.hpp"
#include "nanovllm/api/chat/tool_calls/python_literal.hpp"

namespace nv = nanovllm;
using nanovllm_test::parse;
using nanovllm_test::spelt;
using nv::FinishReason;
using nv::ToolCallFormat;

namespace {

const nv::Json& tools() {
  static const nv::Json list = nv::parse_json(R"([
    {"type": "function", "function": {"name": "list_dir", "parameters": {"type": "object",
      "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
      "required": ["path"]}}},
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
      "globs": {"type": "array", "items": {"type": "string"}}, "opts": {"type": "object"},
      "deep": {"$ref": "#/$defs/deep"}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "either": {"type": ["string", "array"], "items": {"type": "integer"}}},
      "additionalProperties": {"type": "number"},
      "$defs": {"deep": {"type": "object", "properties": {"b": {"type": "boolean"},
        "next": {"$ref": "#/$defs/deep"}}, "additionalProperties": {"type": "string"}}}}}},
    {"type": "function", "function": {"name": "now"}}])");
  return list;
}

nv::ChatParserOptions options(ToolCallFormat format) {
  return {.tool_call_format = format, .tools = tools()};
}

using Cases = std::vector<std::pair<std::string, std::string>>;  // text, events

void check(ToolCallFormat format, const Cases& cases, FinishReason reason = FinishReason::stop) {
  for (const auto& [text, events] : cases) {
    CAPTURE(text);
    CHECK(spelt(parse({text}, options(format), reason)) == events);
  }
}

void check_content(ToolCallFormat format, const std::vector<std::string>& texts,
                   FinishReason reason = FinishReason::stop) {
  for (const std::string& text : texts) check(format, {{text, "text[" + text + "]"}}, reason);
}

const std::string kHead = "<tool_call>\n<function=list_dir>\n<parameter=path>\n/tmp\n";
const std::string kBoth = R"(call0 name[list_dir] args[{"path": "/tmp", "depth": 2}] end0)";

}  // namespace

TEST_CASE("a value of Qwen3-Coder's form ends where the next thing begins") {
  const std::string depth = "<parameter=depth>\n2\n", end = "</function>\n</tool_call>";
  check(ToolCallFormat::qwen3_coder,
        {{kHead + depth + "</parameter>\n" + end, kBoth},
         {kHead + depth + end, kBoth},
         {kHead + depth + "</tool_call>", kBoth},
         {kHead + "</parameter>\n" + depth + "</parameter>\n</tool_call>", kBoth},
         {kHead + "</parameter>\n" + depth + "</parameter>\n", kBoth},
         {kHead + "  " + depth + "\t" + end, kBoth},
         {kHead + depth + "</function>\n\n", kBoth},
         {kHead + depth + "</function>", kBoth},
         {"<function=list_dir><parameter=path>/tmp<parameter=depth>2</function>", kBoth},
         {"<function=list_dir><parameter=path>/tmp<parameter=depth>2</function></tool_call>x",
          kBoth + " text[x]"},
         {kHead + depth + "</function>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
          kBoth + " call1 name[now] args[{}] end1"},
         {kHead + "</parameter>\n" + depth + "</parameter>\n<function=now></function>",
          kBoth + " call1 name[now] args[{}] end1"},
         {"<tool_call>\n<function=now>\n</tool_call>", "call0 name[now] args[{}] end0"},
         {"<tool_call>\n<function=now>", "call0 name[now] args[{}] end0"},
         {"<tool_call><function=unknown to the schema>x",
          "text[<tool_call><function=unknown to the schema>x]"}});
  // What only looks like an end is part of the value.
  for (const std::string value :
       {"a </function> b", "a\n</function>\nb", "</function>\n</functio", "a<parameter=depth>",
        "a\n<parameter=\ndepth>", "a\n<parameter=<", "a\n</tool_call>\n b", "\n\n</function>\n<b>",
        "x\n  </parameter", "</function>\n  </tool_cal", "  \n \t</tool_call>.", "</tool_call>x"}) {
    std::string json;
    nv::detail::append_json_string(json, value);
    const std::string text = "<tool_call>\n<function=list_dir>\n<parameter=path>\n" +
                             std::string(value) + "\n</parameter>\n</function>\n</tool_call>";
    check(ToolCallFormat::qwen3_coder,
          {{text, "call0 name[list_dir] args[{\"path\": " + json + "}] end0"}});
  }
}

TEST_CASE("a value of Qwen3-Coder's form never holds what may be another parameter") {
  check_content(
      ToolCallFormat::qwen3_coder,
      {kHead + "<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>",
       kHead + "<parameter=deepness>\n2\n</parameter>\n</function>\n</tool_call>",
       kHead + "<parameter=depth>\ntwo\n</function>\n</tool_call>", kHead, kHead + "</functio",
       kHead + "</function>\nThat is all.", kHead + "</parameter>\nThat is all.",
       "One calls <function=now>", "One calls <function=list_dir> or <function=now>."});
  // Cut off, nothing may be added that would end it.
  check_content(ToolCallFormat::qwen3_coder,
                {kHead + "</parameter>\n", kHead + "</function>\n", kHead + "</tool_call>"},
                FinishReason::length);
  // Where nothing is known of the function, any name that has not come may be a parameter.
  nv::ChatParserOptions any{.tool_call_format = ToolCallFormat::qwen3_coder};
  CHECK(spelt(parse({kHead + "<parameter=x>\n1\n</function>\n</tool_call>"}, any)) ==
        R"(call0 name[list_dir] args[{"path": "/tmp", "x": "1"}] end0)");
}

TEST_CASE("Python's literals where no string is wanted") {
  const auto call = [](const std::string& parameter, const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=" + parameter + ">\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> good = {
      {{"globs", "['*.md', '*.txt']"}, R"(["*.md", "*.txt"])"},
      {{"globs", "('a', \"b\\'\",)"}, R"(["a", "b'"])"},
      {{"globs", "[\"a\\d\", 'x\ny']"}, R"(["a\\d", "x\ny"])"},
      {{"globs", "'[\"a\"]'"}, R"(["a"])"},
      {{"globs", "[]"}, "[]"},
      {{"globs", "()"}, "[]"},
      {{"opts", "{'a': True, 'b': None}"}, R"({"a": true, "b": null})"},
      {{"opts", "{'a': [1, -2., 1e3, (3)], 4: {}, None: ()}"},
       R"({"a": [1, -2.0, 1e3, 3], "4": {}, "null": []})"},
      {{"opts", "{\"a\": False, 'b': true}"}, R"({"a": false, "b": true})"},
      {{"opts", R"({'\x41\u00e9\ud83d\ude00': '\'"\\'})"},
       "{\"A\xC3\xA9\xF0\x9F\x98\x80\": \"'\\\"\\\\\"}"},
      {{"deep", "{'b': True, 'next': {'b': False, 'x': 'y'}}"},
       R"({"b": true, "next": {"b": false, "x": "y"}})"},
      {{"n", "None"}, "null"},
      {{"n", "'7'"}, "7"},
      {{"either", "['a']"}, R"("['a']")"},
      {{"either", "[1]"}, "[1]"},
      {{"either", "[\"a\"]"}, R"("[\"a\"]")"},
      {{"ratio", "0.5"}, "0.5"},
  };
  for (const auto& [given, json] : good)
    check(ToolCallFormat::qwen3_coder,
          {{call(given.first, given.second),
            "call0 name[f] args[{\"" + given.first + "\": " + json + "}] end0"}});
  check_content(
      ToolCallFormat::qwen3_coder,
      {call("globs", "['a', 1]"), call("globs", "'a', 'b'"), call("globs", "*.md"),
       call("opts", "{'a'}"), call("opts", "{'a': 1"), call("opts", "{'a': x}"),
       call("opts", "{'a': 01}"), call("opts", "{'a': 1__0}"), call("opts", "{'a': '\\ud800'}"),
       call("opts", "{'a': '\xFF'}"), call("opts", "{'a': 1} x"), call("opts", "dict()"),
       call("deep", "{'b': 1}"), call("deep", "{'next': {'next': {'z': 1}}}"), call("n", "1.5"),
       call("ratio", "half"), call("opts", std::string(300, '[') + std::string(300, ']'))});
}

TEST_CASE("Hermes' calls that lack a tag, and several between two") {
  const std::string a = R"({"name": "list_dir", "arguments": {"path": "/tmp"}})",
                    b = R"({"name": "now", "arguments": {}})";
  const std::string first = R"(call0 name[list_dir] args[{"path": "/tmp"}] end0)",
                    both = first + " call1 name[now] args[{}] end1";
  const std::string begin = "<tool_call>\n", end = "\n</tool_call>";
  check(ToolCallFormat::hermes,
        {{begin + a, first},
         {"Well.\n" + begin + a + "\n\n", "text[Well.] " + first},
         {begin + a + "\n</tool_ca", first},
         {begin + a + "\n<", first},
         {begin + a + end + "\n" + begin + b, both},
         {begin + a + "\n" + begin + b + end, both},
         {begin + a + "\n" + b + end, both},
         {begin + a + ",\n" + b + end, both},
         {begin + a + b, both},
         {begin + "[" + a + ", " + b + "]" + end, both},
         {begin + "[ " + a + " ]", first},
         {begin + a + "\n" + b + "x" + end, first + " text[\n" + b + "x" + end + "]"},
         {begin + R"({"name": "g", "arguments": {}})" + "\n" + a + end,
          "text[" + begin + R"({"name": "g", "arguments": {}}])" + " " + first}});
  check_content(
      ToolCallFormat::hermes,
      {begin + a.substr(0, a.size() - 1), begin + a + ",", begin + a + "," + end, begin + "[" + a,
       begin + "[" + a + end, begin + a + "]" + end, begin + a + "\n<tool",
       begin + "[" + a + "]]" + end, begin + "[" + a + ",]" + end, begin + a + "\nDone."});
  check_content(ToolCallFormat::hermes, {begin + a, begin + a + "\n", begin + a + "\n</tool_call"},
                FinishReason::length);
}

TEST_CASE("Hermes' calls have the types of their tool") {
  const auto call = [](const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"f\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  const std::vector<std::pair<std::string, std::string>> good = {
      {R"({"globs":["a"]})", R"({"globs":["a"]})"},
      {R"({"n": null, "deep": {"next": {}}})", R"({"n": null, "deep": {"next": {}}})"},
      {R"({"n": 3.0, "q": 1})", R"({"n": 3.0, "q": 1})"},
      {R"({"n": "3", "opts": "{\"a\": 1}"})", R"({"n": 3, "opts": {"a": 1}})"},
      {R"({"either": "[1"})", R"({"either": "[1"})"},
  };
  for (const auto& [arguments, given] : good)
    check(ToolCallFormat::hermes, {{call(arguments), "call0 name[f] args[" + given + "] end0"}});
  check_content(ToolCallFormat::hermes,
                {call(R"({"globs": "a"})"), call(R"({"globs": [1]})"), call(R"({"n": 1.5})"),
                 call(R"({"n": "x"})"), call(R"({"opts": []})"), call(R"({"q": "x"})"),
                 call(R"({"either": ["1"]})"), call(R"({"deep": {"next": {"b": null}}})")});
}

TEST_CASE("a schema that leads to itself ends") {
  const nv::Json list = nv::parse_json(R"([{"name": "f", "parameters": {
      "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"},
                     "c": {"$ref": "#/nowhere"}, "d": {"$ref": "#/$defs/x~1y~0"}},
      "$defs": {"a": {"$ref": "#/$defs/a"}, "x/y~": {"type": "integer"},
                "b": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}}}}])");
  const nv::ChatParserOptions coder{.tool_call_format = ToolCallFormat::qwen3_coder, .tools = list};
  for (const std::string parameter : {"a", "b"}) {
    const std::string text = "<function=f><parameter=" + parameter + ">1</parameter></function>";
    CHECK(spelt(parse({text}, coder)) == "text[" + text + "]");
  }
  CHECK(spelt(parse({"<function=f><parameter=c>1</parameter><parameter=d>2</parameter></function>"},
                    coder)) == R"(call0 name[f] args[{"c": 1, "d": 2}] end0)");
}
