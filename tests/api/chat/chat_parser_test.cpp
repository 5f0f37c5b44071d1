/// Thoughts, content and tool calls of an assistant's text, in whatever pieces it comes.

#include "nanovllm/api/chat/chat_parser.hpp"

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/chat/chat_parser_laws.hpp"
#include "catch.hpp"
#include "chat/templates.hpp"
#include "nanovllm/api/chat/tool_calls/hermes_call_reader.hpp"

namespace nv = nanovllm;
using nanovllm_test::content_of;
using nanovllm_test::Events;
using nanovllm_test::is_well_formed;
using nanovllm_test::Kind;
using nanovllm_test::parse;
using nanovllm_test::spelt;
using nv::ChatParserOptions;
using nv::Reasoning;
using nv::ToolCallFormat;
using nv::ToolCallMode;

namespace {

const nv::Json& tools() {
  static const nv::Json list = nv::parse_json(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "x": {"type": "number"},
      "b": {"type": "boolean"}, "z": {"type": "null"}, "a": {"type": "array"},
      "o": {"type": "object"}, "sn": {"type": ["string", "null"]},
      "si": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
      "e": {"enum": ["1", "2"]}, "c": {"const": 7}, "any": {}, "odd": {"type": "word"}}}}},
    {"name": "g", "description": "takes nothing"}])");
  return list;
}

ChatParserOptions hermes(ToolCallMode mode = ToolCallMode::whole) {
  return {.tool_call_format = ToolCallFormat::hermes, .mode = mode};
}
ChatParserOptions coder(ToolCallMode mode = ToolCallMode::whole) {
  return {.tool_call_format = ToolCallFormat::qwen3_coder, .tools = tools(), .mode = mode};
}
constexpr ToolCallMode kBothModes[] = {ToolCallMode::whole, ToolCallMode::incremental};

using Case = std::pair<std::string, std::string>;  // text, events

void check(const std::vector<Case>& cases, const ChatParserOptions& options) {
  for (const auto& [text, events] : cases) {
    CAPTURE(text, static_cast<int>(options.mode));
    CHECK(spelt(parse({text}, options)) == events);
  }
}

const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n</tool_call>";
const std::string kCallEvents = "call0 name[f] args[{\"i\": 1}] end0";

std::string hermes_call(const std::string& json) { return "<tool_call>" + json + "</tool_call>"; }

/// A call with one parameter, and what becomes of it.
std::string coder_call(const std::string& parameter, const std::string& value) {
  return "<tool_call>\n<function=f>\n<parameter=" + parameter + ">\n" + value +
         "\n</parameter>\n</function>\n</tool_call>";
}

/// Texts of all kinds, well-formed or not.
const std::vector<std::string>& texts() {
  static const std::vector<std::string> list = {
      "",
      "Plain text, nothing else.",
      "\n\nLine feeds\n\n around\n",
      "2 < 3 and <b> and </b> << <t <think",
      "Gr\xC3\xBC\xC3\x9F dich \xF0\x9F\x98\x80<tool\xE2\x82\xAC",
      "<think>\nHm.\n</think>\n\nYes.",
      " \n<think>a\n\n</thin\n</th</think>\n \nb",
      "<think>\n\n</think>\n\n",
      "<think>never ends\n\n",
      "no tag</think>\n\nbehind it",
      "<think>" + kCall + "</think>" + kCall,
      kCall,
      "Well.\n" + kCall + "\n" + kCall + "\n",
      kCall + " \n\t" + kCall + "\nand text\n\n" + kCall + "x",
      hermes_call("{\"arguments\":{\"s\":\"</tool_call>\\\"}{\"},\"id\":-1.5e+3,\"name\":\"g\"}"),
      hermes_call(R"({"name":"f","parameters":"{\"a\": \"\u00e9\"}"})"),
      hermes_call(R"({"name":"g"})") + hermes_call(R"({"name":"g","arguments":null})"),
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>\nbehind",
      "<tool_call><tool_call>" + hermes_call("{}") + "<tool_call>\n\n",
      hermes_call(R"({"name":"f","name":"g"})") + "\n" + kCall,
      hermes_call(R"({"name":"f","arguments":{"a":[1,{"b":null}],"c":tru}})") + kCall,
      "\n" + kCall.substr(0, kCall.size() - 3),
      coder_call("s", "a \"b\" \\ \n\n<c> </param"),
      coder_call("i", " -12 ") + "\n" + coder_call("a", "[1,\n 2]"),
      "<function=f>\n<parameter=any>x</parameter><parameter=s></parameter></function>",
      "<tool_call><function=g></function></tool_call></tool_call>\n<function=g>\n</function>\n",
      "<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n<parameter=s>2</parameter>",
      "<tool_call>x<function=<function=f><parameter=o>{</parameter></function> \n\n",
      "\n<function=f><parameter=s>\n\nx\n\n</parameter>\n</function>\n</tool_ca",
      "<function=f\n><function=></function>" + coder_call("", "x") + coder_call("s", "\x01\t\x7f"),
  };
  return list;
}

std::vector<ChatParserOptions> all_options() {
  std::vector<ChatParserOptions> out;
  for (const Reasoning reasoning : {Reasoning::none, Reasoning::optional, Reasoning::open})
    for (const ToolCallFormat format :
         {ToolCallFormat::none, ToolCallFormat::hermes, ToolCallFormat::qwen3_coder})
      for (const ToolCallMode mode : kBothModes)
        if (format != ToolCallFormat::none || mode == ToolCallMode::whole)
          out.push_back({reasoning, format, tools(), mode});
  return out;
}

}  // namespace

TEST_CASE("a thought is what its tags enclose, without the line feeds at its ends") {
  const ChatParserOptions optional{.reasoning = Reasoning::optional};
  check({{"", ""},
         {"Yes.", "text[Yes.]"},
         {"\n Yes.\n", "text[\n Yes.\n]"},
         {"<think>\nHm.\n</think>\n\nYes.\n", "think[Hm.] text[Yes.\n]"},
         {" \n<think>\n\n a\nb \n\n</think> Yes.", "think[ a\nb ] text[ Yes.]"},
         {"<think>\n\n</think>\n\nYes.", "text[Yes.]"},
         {"<think>a</think>\n\n", "think[a]"},
         {"<think>a</think>b</think>c", "think[a] text[b</think>c]"},
         {"<think>a<think>b</think>c", "think[a<think>b] text[c]"},
         {"<think>a</</think>b", "think[a</] text[b]"},
         {"<think>\n</thin\n</think>b", "think[</thin] text[b]"},
         {"<think>never ends\n\n", "think[never ends\n\n]"},
         {"<think>a\n</thi", "think[a\n</thi]"},
         {"<think>", ""},
         {"<thin", "text[<thin]"},
         {" \n<thinx", "text[ \n<thinx]"},
         {"a <think>b</think>", "text[a <think>b</think>]"}},
        optional);
  check({{"", ""},
         {"\n\nHm.\n</think>\n\nYes.", "think[Hm.] text[Yes.]"},
         {"<think>\nHm.</think>Yes.", "think[Hm.] text[Yes.]"},
         {" \n<think>Hm.</think>Yes.", "think[Hm.] text[Yes.]"},
         {"<thought</think>Yes.", "think[<thought] text[Yes.]"},
         {" <th", "think[ <th]"},
         {"</think>\nYes.", "text[Yes.]"},
         {"never ends", "think[never ends]"}},
        {.reasoning = Reasoning::open});
  check({{"<think>a</think>b", "text[<think>a</think>b]"}}, {});
  check({{"<think>" + kCall + "</think>\n" + kCall, "think[" + kCall + "] " + kCallEvents}},
        {Reasoning::optional, ToolCallFormat::hermes, nullptr, ToolCallMode::whole});
}

TEST_CASE("a template's options say what its prompt has of a thought") {
  const nv::ChatTemplate hybrid = nanovllm_test::hybrid_template();
  const nv::ChatTemplate parts = nanovllm_test::parts_template();
  const nv::ChatTemplate chatml = nv::ChatTemplate::chatml();
  nv::ChatOptions options;
  for (const nv::ChatTemplate& one : {hybrid, parts, chatml}) {
    for (const std::optional<bool> thinking :
         {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      options.enable_thinking = thinking;
      const std::string prompt = one.render({{"user", "Hi"}}, options);
      CAPTURE(prompt);
      const Reasoning reasoning = nv::chat_parser_options(one, options).reasoning;
      CHECK((reasoning == Reasoning::open) == prompt.ends_with("<think>\n"));
      CHECK((reasoning == Reasoning::none) == prompt.ends_with("</think>\n\n"));
    }
  }
  const auto custom = nv::ChatTemplate::custom([](auto, auto&) { return std::string("<think>"); });
  options = {};
  CHECK(nv::chat_parser_options(hybrid, options).reasoning == Reasoning::optional);
  CHECK(nv::chat_parser_options(custom, options).reasoning == Reasoning::none);
  options.add_generation_prompt = false;
  CHECK(nv::chat_parser_options(parts, options).reasoning == Reasoning::optional);

  CHECK(nv::chat_parser_options(hybrid, options).tool_call_format == ToolCallFormat::none);
  options.tools = tools();
  CHECK(nv::chat_parser_options(hybrid, options).tool_call_format == ToolCallFormat::hermes);
  CHECK(nv::chat_parser_options(parts, options).tool_call_format == ToolCallFormat::qwen3_coder);
  CHECK(nv::chat_parser_options(hybrid, options).tools == tools());
  CHECK(nv::chat_parser_options(chatml, options).tool_call_format == ToolCallFormat::none);
  CHECK_THROWS_AS(nv::ChatParser({.tools = nv::Json(1)}), nv::RequestError);
  CHECK_THROWS_AS(nv::ChatParser({.tools = nv::Json::array({1})}), nv::RequestError);
}

TEST_CASE("calls in Hermes' form") {
  for (const ToolCallMode mode : kBothModes)
    check({{kCall, kCallEvents},
           {"Well.\n" + kCall + "\n", "text[Well.] " + kCallEvents},
           {"Well.\n\n" + kCall + "\n\nSo.", "text[Well.\n] " + kCallEvents + " text[\n\nSo.]"},
           {kCall + " \r\n\t" + hermes_call(" { \"name\" : \"g\" } "),
            kCallEvents + " call1 name[g] args[{}] end1"},
           {hermes_call(R"({"arguments":{"s":"</tool_call>\"}{"},"id":[{"x":-1e5}],"name":"g"})"),
            "call0 name[g] args[{\"s\":\"</tool_call>\\\"}{\"}] end0"},
           {hermes_call(R"({"n\u0061me":"\u00e9","parameters":{ }})"),
            "call0 name[\xC3\xA9] args[{ }] end0"},
           {hermes_call(R"({"name":"f","arguments":" {\"a\": \"\\u00e9\"}\n"})"),
            "call0 name[f] args[{\"a\": \"\\u00e9\"}] end0"},
           {hermes_call(R"({"name":"f","arguments":null,"n":1})"), "call0 name[f] args[{}] end0"}},
          hermes(mode));

  // Of an unknown function, with tools and without.
  ChatParserOptions with_tools = hermes();
  with_tools.tools = tools();
  const std::string unknown = hermes_call(R"({"name":"h","arguments":{}})");
  check({{unknown, "call0 name[h] args[{}] end0"}}, hermes());
  check({{"a\n" + unknown + "\n" + kCall, "text[a\n" + unknown + "] " + kCallEvents}}, with_tools);
}

TEST_CASE("what is no call in Hermes' form is content") {
  const std::vector<std::string> broken = {
      "{}",
      "[]",
      "\"f\"",
      "",
      R"({"name": "f", "arguments": {"a": 1})",
      R"({"name": "f", "arguments": {"a": 1}}})",
      R"({"name": "f", "arguments": {"a": 1}} x)",
      R"({"name": "f", "arguments": {"a": 1,}})",
      R"({"name": "f", "arguments": {a: 1}})",
      R"({"name": "f", "arguments": {"a": 01}})",
      R"({"name": "f", "arguments": {"a": 1e999}})",
      R"({"name": "f", "arguments": {"a": "\ud800"}})",
      "{\"name\": \"f\", \"arguments\": {\"a\": \"\xFF\"}}",
      "{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}",
      R"({"name": "f", "arguments": [1]})",
      R"({"name": "f", "arguments": 1})",
      R"({"name": "f", "arguments": "1"})",
      R"({"name": "f", "arguments": "{"})",
      R"({"name": "f", "arguments": ""})",
      R"({"name": "f", "arguments": {}, "parameters": {}})",
      R"({"name": "f", "name": "f"})",
      R"({"name": ""})",
      R"({"name": null})",
      R"({"arguments": {}})",
      R"({"name": "f", "id": 1e999})",
      R"({"name": "f", "id": tru})",
      R"({"name": "f" "arguments": {}})",
      R"({"name": "f",})",
      R"({'name': 'f'})",
      "{\"name\": \"f\", \"arguments\": " + std::string(300, '[') + std::string(300, ']') + "}",
  };
  for (const std::string& json : broken) {
    const std::string text = "a\n" + hermes_call(json) + "\n\n";
    CAPTURE(text);
    CHECK(spelt(parse({text}, hermes())) == "text[" + text + "]");
    // The next call is one for all that.
    CHECK(spelt(parse({text + kCall}, hermes())) ==
          "text[" + text.substr(0, text.size() - 1) + "] " + kCallEvents);
    CHECK(spelt(parse({"<tool_call>" + json + kCall}, hermes())).ends_with(kCallEvents));
  }
}

TEST_CASE("calls in Qwen3-Coder's form") {
  const std::string two =
      "<function=f>\n<parameter=i>\n3\n</parameter>\n<parameter=s>\n3\n"
      "</parameter>\n</function>";
  const std::string two_events = "call0 name[f] args[{\"i\": 3, \"s\": \"3\"}] end0";
  for (const ToolCallMode mode : kBothModes)
    check(
        {{"<tool_call>\n" + two + "\n</tool_call>\n", two_events},
         {two, two_events},
         {"<tool_call>" + two, two_events},
         {"Well.\n" + two + "</tool_call>\n\nSo.", "text[Well.] " + two_events + " text[\n\nSo.]"},
         {two + "</tool_call></tool_call>", two_events + " text[</tool_call>]"},
         {two + "\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
          two_events + " call1 name[g] args[{}] end1"},
         {"<function=f><parameter=s>\n\na\n</parameter><parameter=q\">1</parameter></function>",
          "call0 name[f] args[{\"s\": \"\\na\", \"q\\\"\": \"1\"}] end0"},
         {"<function=f><parameter=s>\n</parameter></function>",
          "call0 name[f] args[{\"s\": \"\"}] end0"},
         {"<function=f><parameter=s>a\n\n</param\n</</parameter></function>",
          "call0 name[f] args[{\"s\": \"a\\n\\n</param\\n</\"}] end0"}},
        coder(mode));

  for (const std::string& broken : std::vector<std::string>{
           "<function=>", "<function=f\n>", "<function=f>x</function>", "<function=f><parameter=>",
           "<function=g>", "<function=f><parameter=s>x", "<function=f><parameter=s>x\n</functio",
           "<function=f><parameter=s>1</parameter><parameter=s>2</parameter></function>",
           "<function=h></function>", "<tool_call></tool_call>", "<function=f></functio>",
           "<function=f><parameter=s>\xFF</parameter></function>"})
    check({{broken, "text[" + broken + "]"}}, coder());
  // A nested call is a value, also where the function that it is given to is unknown.
  const std::string nested = "<function=h>\n<parameter=s>\n" + two.substr(0, two.find("</param"));
  check({{nested + "</parameter></function>", "text[" + nested + "</parameter></function>]"}},
        coder());
}

TEST_CASE("values in Qwen3-Coder's form become JSON by the schema") {
  const std::vector<std::pair<std::string, std::vector<Case>>> values = {
      {"s", {{"1", "\"1\""}, {"null", "\"null\""}, {"{\"a\": 1}", R"("{\"a\": 1}")"}}},
      {"i", {{"1", "1"}, {" -7\n", "-7"}, {"1.0", "1.0"}, {"\"1\"", "1"}, {"+1_0", "10"}}},
      {"x", {{"1e3", "1e3"}, {".5", "0.5"}, {"1", "1"}}},
      {"b", {{"true", "true"}, {"False", "false"}, {"True", "true"}, {"'true'", "true"}}},
      {"z", {{"null", "null"}, {"None", "null"}}},
      {"a", {{"[1,\n {}]", "[1,\n {}]"}, {"['a', (True,), ]", "[\"a\", [true]]"}}},
      {"o", {{"{\"k\": [\"</x>\"]}", "{\"k\": [\"</x>\"]}"}, {"{'k': 1}", "{\"k\": 1}"}}},
      {"sn", {{"null", "null"}, {"None", "\"None\""}, {"1", "\"1\""}, {"\"x\"", "\"x\""}}},
      {"si", {{"12", "12"}, {"12a", "\"12a\""}, {"true", "\"true\""}}},
      {"e", {{"1", "\"1\""}}},
      {"c", {{"7", "7"}}},
      {"any", {{"[]", "[]"}, {"1", "1"}, {"\"x\"", "\"x\""}, {"x", "\"x\""}}},
      {"odd", {{"1", "1"}}},
      {"unknown", {{"1", "\"1\""}}},
  };
  for (const auto& [parameter, cases] : values)
    for (const auto& [value, json] : cases)
      for (const ToolCallMode mode : kBothModes)
        check({{coder_call(parameter, value),
                "call0 name[f] args[{\"" + parameter + "\": " + json + "}] end0"}},
              coder(mode));
  // What its types do not allow is content, whole.
  for (const auto& [parameter, value] :
       std::vector<std::pair<std::string, std::string>>{{"i", "one"},
                                                        {"i", "1.5"},
                                                        {"i", "\"one\""},
                                                        {"i", "0x10"},
                                                        {"i", ""},
                                                        {"i", "01"},
                                                        {"x", "NaN"},
                                                        {"x", "1e999"},
                                                        {"x", "[1]"},
                                                        {"b", "yes"},
                                                        {"b", "1"},
                                                        {"z", "0"},
                                                        {"a", "[1"},
                                                        {"a", "\xEF\xBB\xBF[]"},
                                                        {"a", "{}"},
                                                        {"a", "['a' 'b']"},
                                                        {"a", "{1, 2}"},
                                                        {"o", "{'k': f(1)}"},
                                                        {"o", "{\"k\": 1e999}"},
                                                        {"o", "{'k': '\\ud800'}"},
                                                        {"c", "x"}}) {
    const std::string text = coder_call(parameter, value);
    check({{text, "text[" + text + "]"}}, coder());
  }
  ChatParserOptions without_tools = coder();
  without_tools.tools = nullptr;
  check({{coder_call("i", "1"), "call0 name[f] args[{\"i\": \"1\"}] end0"}}, without_tools);
}

TEST_CASE("calls come as they are written, and what is left of a broken one is content") {
  nv::ChatParser parser(hermes(ToolCallMode::incremental));
  std::vector<std::string> steps;
  for (const char* piece : {"Hm", "m\n<tool", "_call>\n{\"na", "me\": \"f", "\", \"arguments",
                            "\": ", "{\"a\"", ": 1", "}", "}\n", "</tool_call>"})
    steps.push_back(spelt(parser.push(piece)));
  CHECK(steps == std::vector<std::string>{"text[Hm]", "text[m]", "", "", "call0 name[f]", "",
                                          "args[{\"a\"]", "args[: 1]", "args[}]", "", "end0"});
  CHECK(parser.finish().empty());

  const std::string head = "<tool_call>{\"name\": \"f\"";
  check({{"a\n" + head.substr(0, 21), "text[a\n" + head.substr(0, 21) + "]"},
         {head, "call0 name[f]"},
         {head + ", \"argu", "call0 name[f] text[, \"argu]"},
         {head + ", \"arguments\": {\"a\": [1, ", "call0 name[f] args[{\"a\": [1, ]"},
         {head + ", \"arguments\": {\"a\": x}" + kCall,
          "call0 name[f] args[{\"a\": ] text[x}] call1 name[f] args[{\"i\": 1}] end1"},
         {head + ", \"arguments\": {}}\n</tool", "call0 name[f] args[{}] end0"},
         {head + ", \"arguments\": \"{", "call0 name[f] text[, \"arguments\": \"{]"},
         {"<tool_call>{\"arguments\": {}, \"na", "text[<tool_call>{\"arguments\": {}, \"na]"},
         {hermes_call(R"({"name":"not among the tools"})"),
          "call0 name[not among the tools] args[{}] end0"}},
        hermes(ToolCallMode::incremental));

  nv::ChatParser streamed(coder(ToolCallMode::incremental));
  steps.clear();
  for (const char* piece :
       {"<tool_call><function=f>", "<parameter=s>\n", "a", "\n", "b<", "/p", "x\n</para", "meter>",
        "<parameter=i>1", "2</parameter>", "</function>"})
    steps.push_back(spelt(streamed.push(piece)));
  CHECK(steps == std::vector<std::string>{"call0 name[f]", "args[{\"s\": \"]", "args[a]", "",
                                          "args[\\nb]", "", "args[</px]", "args[\"]",
                                          "args[, \"i\": ]", "args[12]", "args[}] end0"});
  const std::string begin = "<tool_call><function=f>";
  check({{begin + "<parameter=s>a\n</par", "call0 name[f] args[{\"s\": \"a] text[\n</par]"},
         {begin + "<parameter=i>1", "call0 name[f] args[{\"i\": ] text[1]"},
         {begin + "<parameter=s>\na\n<parameter=i>\n1\n</tool_call>",
          "call0 name[f] args[{\"s\": \"a\", \"i\": 1}] end0"},
         {begin + "x", "call0 name[f] text[x]"},
         // One that no grammar has seen is looked at as a whole.
         {"<function=h></function>", "text[<function=h></function>]"},
         {"<function=f><parameter=i>x</parameter></function>",
          "text[<function=f><parameter=i>x</parameter></function>]"}},
        coder(ToolCallMode::incremental));
}

TEST_CASE("the events are the same for every split of a text") {
  std::mt19937 random(11);
  for (const std::string& text : texts()) {
    const std::string_view all = text;
    for (const ChatParserOptions& options : all_options()) {
      CAPTURE(text, static_cast<int>(options.reasoning), static_cast<int>(options.tool_call_format),
              static_cast<int>(options.mode));
      const Events events = parse({all}, options);
      std::size_t num_differing = 0;
      for (std::size_t i = 0; i <= all.size(); ++i)
        num_differing += parse({all.substr(0, i), all.substr(i)}, options) != events;
      for (int i = 0; i < 16; ++i) {
        std::vector<std::string_view> pieces;
        for (std::size_t begin = 0, size; begin < all.size(); begin += size) {
          size = 1 + random() % (i % 2 ? 4 : 40);
          pieces.push_back(all.substr(begin, size));
        }
        num_differing += parse(pieces, options) != events;
      }
      REQUIRE(num_differing == 0);
      REQUIRE(is_well_formed(events, options.mode == ToolCallMode::incremental));
    }
  }
}

TEST_CASE("all splits at two places of calls and thoughts") {
  for (const std::string& text :
       {"<think>\na\n</think>\n\nb\n" + kCall + "\n" + kCall,
        "<think>a\n</think>" + coder_call("s", "x\n<y") + "\n<function=g></function>\nz"}) {
    const std::string_view all = text;
    for (const ChatParserOptions& options : all_options()) {
      if (options.reasoning != Reasoning::optional) continue;
      const Events events = parse({all}, options);
      std::size_t num_differing = 0;
      for (std::size_t i = 0; i <= all.size(); ++i)
        for (std::size_t j = i; j <= all.size(); ++j)
          num_differing +=
              parse({all.substr(0, i), all.substr(i, j - i), all.substr(j)}, options) != events;
      CAPTURE(text);
      REQUIRE(num_differing == 0);
    }
  }
}

TEST_CASE("nothing is lost of texts that are cut off or changed") {
  std::mt19937 random(12);
  const std::string alphabet = "<>/{}[]\":,\\\n tf1x";
  for (const std::string& text : texts()) {
    for (const ToolCallFormat format : {ToolCallFormat::hermes, ToolCallFormat::qwen3_coder}) {
      const ChatParserOptions options{.tool_call_format = format};
      const auto is_accounted_for = [&](const std::string& changed) {
        const Events events = parse({changed}, options);
        if (format == ToolCallFormat::hermes) return nanovllm_test::says(changed, events);
        return is_well_formed(events, false) &&
               (spelt(events).find("call0") != std::string::npos || content_of(events) == changed);
      };
      for (std::size_t i = 0; i < text.size(); ++i) {
        std::string replaced = text, inserted = text, removed = text;
        replaced[i] = alphabet[random() % alphabet.size()];
        inserted.insert(i, 1, alphabet[random() % alphabet.size()]);
        removed.erase(i, 1);
        for (const std::string& changed : {text.substr(0, i), replaced, inserted, removed}) {
          CAPTURE(changed);
          REQUIRE(is_accounted_for(changed));
        }
      }
    }
  }
  // A call that is cut off is content as a whole.
  for (std::size_t i = 0; i < kCall.size(); ++i) {
    const std::string cut = kCall.substr(0, i);
    CHECK(content_of(parse({cut}, hermes(), nv::FinishReason::length)) == cut);
  }
}

TEST_CASE("a long text of what begins again and again takes linear time") {
  const auto repeated = [](std::string_view word) {
    std::string out;
    while (out.size() < 200'000) out += word;
    return out;
  };
  const std::string head = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":";
  for (const std::string& text :
       {repeated("<"), repeated("{"), repeated("\n"), repeated("<tool_call>"), repeated("</think>"),
        repeated("\n<tool_call>{\"name\":\""), repeated("<function=f>"), repeated("\n</paramete"),
        repeated("<tool_call>{\"a\":\"<tool_call>{\""), head + repeated("["), head + repeated("{"),
        head + "\"" + repeated("\\\""), head + "\"" + repeated("x"), head + repeated("1"),
        "<function=f><parameter=s>" + repeated("\n<"), kCall + repeated(" "),
        "<function=f>" + repeated("<parameter=s>")}) {
    for (const ToolCallFormat format : {ToolCallFormat::hermes, ToolCallFormat::qwen3_coder})
      for (const ToolCallMode mode : kBothModes) {
        nv::ChatParser parser({Reasoning::optional, format, tools(), mode});
        std::size_t num_bytes = 0;
        const auto count = [&](const Events& events) {
          for (const nv::ChatEvent& event : events) num_bytes += event.text.size();
        };
        for (std::size_t i = 0; i < text.size(); i += 5) count(parser.push(text.substr(i, 5)));
        count(parser.finish());
        CAPTURE(text.substr(0, 60), static_cast<int>(format), static_cast<int>(mode));
        // The escapes of JSON apart, text is neither lost nor told twice.
        CHECK(num_bytes <= text.size() * 2);
        if (mode == ToolCallMode::whole && !text.starts_with(kCall))
          CHECK(num_bytes >= text.size());
      }
  }
}

TEST_CASE("what a template renders of a message is read as that message") {
  const nv::Json calls = nv::parse_json(R"([
    {"type": "function", "function": {"name": "f", "arguments": {"s": "é \"\n</tool_call>", "n": [1, 2.5, null]}}},
    {"type": "function", "function": {"name": "g", "arguments": "{}"}}])");
  nv::ChatOptions options;
  options.tools = tools();
  for (const char* content : {"", "Let me see.", "Two\nlines.\n"}) {
    for (const bool thinks : {false, true}) {
      const nv::ChatTemplate chat_template = nanovllm_test::hybrid_template();
      std::vector<nv::ChatMessage> messages{{"user", "Hi"}};
      const std::string prompt = chat_template.render(messages, options);
      messages.push_back(nv::ChatMessage("assistant", content).set("tool_calls", calls));
      if (thinks) messages.back().set("reasoning_content", "A\nthought.");
      options.add_generation_prompt = false;
      std::string text = chat_template.render(messages, options);
      options.add_generation_prompt = true;
      CAPTURE(thinks, text);
      REQUIRE(text.starts_with(prompt));
      constexpr std::string_view kTail = "<|im_end|>\n";
      text = text.substr(prompt.size(), text.size() - prompt.size() - kTail.size());

      const auto parts =
          nv::parse_chat_message(text, nv::chat_parser_options(chat_template, options));
      CHECK(parts.reasoning == (thinks ? "A\nthought." : ""));
      CHECK(parts.content == content);
      REQUIRE(parts.tool_calls.size() == 2);
      CHECK(parts.tool_calls[0].name == "f");
      CHECK(nv::parse_json(parts.tool_calls[0].arguments) == calls[0]["function"]["arguments"]);
      CHECK(parts.tool_calls[1] == nv::ChatToolCall{"g", "{}"});

      // Rendered again, with the arguments as they were read, it is the same text.
      nv::Json again = calls;
      again[0]["function"]["arguments"] = parts.tool_calls[0].arguments;
      messages.back().set("tool_calls", again).set("content", parts.content);
      options.add_generation_prompt = false;
      CHECK(chat_template.render(messages, options) == prompt + text + std::string(kTail));
      options.add_generation_prompt = true;
    }
  }
}

TEST_CASE("a scanned value is JSON as the reader takes it") {
  using Status = nv::detail::JsonScanner::Status;
  // A bracket after the value, so that a number ends.
  const auto accepts = [](std::string_view text) {
    nv::detail::JsonScanner scanner;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const Status status = scanner.push(text[i]);
      if (status == Status::complete) return i + 1 == text.size();
      if (status != Status::open) return false;
    }
    return scanner.push(']') == Status::complete_before;
  };
  const auto reads = [](std::string_view text) {
    try {
      static_cast<void>(nv::parse_json_value(text));
      return true;
    } catch (const nv::JsonError&) {
      return false;
    }
  };
  std::mt19937 random(13);
  const std::vector<std::string> values = {
      R"({"a": [1, -2.5e+3, 0.1E-7, true, false, null, {}], "b\\\"\u00e9\n": {"c": [[], ""]}})",
      "-0.0",
      "10",
      "\"x\\/\\t\"",
      "[1,2 , 3\n]",
      "true",
      "{\"a\":{\"a\":{\"a\":[{}]}}}"};
  const std::string alphabet = "{}[]\":,.-+eE0123\\untrfals x\n";
  for (const std::string& value : values) {
    CHECK(accepts(value));
    for (int i = 0; i < 4'000; ++i) {
      std::string changed = value;
      for (unsigned n = 1 + random() % 3; n-- > 0;) {
        const std::size_t at = random() % changed.size();
        const char c = alphabet[random() % alphabet.size()];
        if (random() % 2)
          changed[at] = c;
        else
          changed.insert(at, 1, c);
      }
      if (nv::detail::is_blank(changed.back())) continue;  // after the value
      CAPTURE(changed);
      REQUIRE(accepts(changed) == reads(changed));
    }
  }
  const std::string deepest =
      std::string(nv::kMaxJsonDepth, '[') + std::string(nv::kMaxJsonDepth, ']');
  CHECK(accepts(deepest));
  CHECK_FALSE(accepts("[" + deepest + "]"));
}
