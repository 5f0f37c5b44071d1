/// Chat templates against Jinja2's renderings, recognition of templates, and Python's JSON.

#include "nanovllm/chat/chat_template.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "nanovllm/chat/jinja_fingerprint.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
#include "nanovllm/chat/python_json.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nv = nanovllm;
namespace fs = std::filesystem;
using nv::ChatTemplate;
using nv::ChatTemplateKind;
using nv::Json;
using nv::parse_json;
using nv::python_json;
using nv::python_str;

namespace {

fs::path shared() {
  const char* folder = std::getenv("NANOVLLM_SHARED");
  return folder ? folder : "../shared";
}

std::optional<std::string> read(const fs::path& path) {
  if (!fs::exists(path)) {
    std::printf("skipped: there is no %s\n", path.c_str());
    return std::nullopt;
  }
  return std::string(nv::MappedFile(path).text());
}

ChatTemplateKind kind_called(const std::string& wanted) {
  for (int i = 0; i < static_cast<int>(ChatTemplateKind::custom); ++i)
    if (nv::name(static_cast<ChatTemplateKind>(i)) == wanted)
      return static_cast<ChatTemplateKind>(i);
  throw std::runtime_error("no template kind is called " + wanted);
}

const Json* find(const Json& object, const char* key) { return object.find(key); }

nv::ChatOptions options_of(const Json& conversation, const Json& arguments) {
  nv::ChatOptions options;
  if (const Json* tools = find(conversation, "tools")) options.tools = *tools;
  if (const Json* value = find(conversation, "add_generation_prompt"))
    options.add_generation_prompt = value->get<bool>();
  const Json* thinking = find(arguments, "enable_thinking");
  if (thinking && thinking->is_boolean()) options.enable_thinking = thinking->get<bool>();
  return options;
}

/// Checks one rendering: the exact text, or a RequestError where Jinja2 raised.
void check_rendering(ChatTemplateKind kind, const Json& conversation,
                     const nv::ChatOptions& options, const Json& expected) {
  const ChatTemplate chat_template(kind);
  const auto messages = nv::parse_messages(conversation.at("messages"));
  CAPTURE(nv::name(kind), conversation.at("name").get<std::string>());
  if (const Json* text = find(expected, "text")) {
    REQUIRE(chat_template.render(messages, options) == text->get<std::string>());
  } else {
    REQUIRE_THROWS_AS(chat_template.render(messages, options), nv::RequestError);
  }
}

/// The file is named in NANOVLLM_CHAT_CASES to try a larger run of tests/oracle/chat_cases.py.
fs::path own_cases() {
  const char* path = std::getenv("NANOVLLM_CHAT_CASES");
  return path ? path : "tests/fixtures/chat/cases.json";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  if (at == text.npos) throw std::runtime_error("the template has no '" + from + "'");
  return text.replace(at, from.size(), to);
}

/// What lies between two marks goes, the first mark with it.
std::string without(std::string text, const std::string& from, const std::string& to) {
  const auto begin = text.find(from), end = text.find(to, begin);
  if (begin == text.npos || end == text.npos)
    throw std::runtime_error("the template has no '" + from + "' … '" + to + "'");
  return text.erase(begin, end - begin);
}

const std::string kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n'"
    " }}{% endif %}";

/// A folder that is removed again.
struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("nanovllm_chat_" + std::to_string(::getpid()));
  TemporaryFolder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~TemporaryFolder() { fs::remove_all(path); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
  }
};

template <class E>
std::string message_of(const auto& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("every template renders the committed conversations as Jinja2 does") {
  const Json cases = parse_json(nv::MappedFile(own_cases()).text());
  std::set<std::string> kinds;
  for (const Json& one : cases) {
    for (const Json& rendered : one.at("rendered")) {
      for (const Json& kind : rendered.at("kinds")) {
        kinds.insert(kind.get<std::string>());
        check_rendering(kind_called(kind.get<std::string>()), one, options_of(one, one), rendered);
      }
    }
  }
  REQUIRE(kinds.size() == static_cast<std::size_t>(ChatTemplateKind::custom));
}

TEST_CASE("every template renders the reference conversations as Jinja2 does") {
  const auto text = read(shared() / "cases" / "chat_cases.json");
  if (!text) return;
  const Json cases = parse_json(*text).at("cases");
  REQUIRE(cases.size() == 104);
  for (const Json& one : cases) {
    const nv::ChatOptions options = options_of(one, one.at("kwargs"));
    check_rendering(kind_called(one.at("template").get<std::string>()), one, options, one);
  }
}

TEST_CASE("messages are written as pairs of strings") {
  const std::vector<nv::ChatMessage> messages{{"system", "Be brief."}, {"user", "Hi"}};
  const ChatTemplate chat_template(ChatTemplateKind::qwen3);
  const std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\n";
  CHECK(chat_template.render(messages) == expected);
  CHECK(chat_template.render({{"system", "Be brief."}, {"user", "Hi"}}) == expected);
  CHECK(chat_template.render({{"user", "Hi"}}, {.enable_thinking = false}) ==
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");

  std::vector<nv::ChatMessage> history;
  history.push_back({"user", "Hi"});
  history.push_back(nv::ChatMessage("assistant", "Ho").set("reasoning_content", "hm"));
  CHECK(chat_template.render(history, {.add_generation_prompt = false}) ==
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nHo"
        "<|im_end|>\n");
  CHECK(history[1].role() == "assistant");
  CHECK(history[1].find("content")->get<std::string>() == "Ho");
  CHECK(history[1].find("tool_calls") == nullptr);
}

TEST_CASE("malformed messages and tools are refused by name") {
  using E = nv::RequestError;
  const auto error = [](const char* text) {
    return message_of<E>([&] { (void)nv::parse_messages(parse_json(text)); });
  };
  CHECK(error("{}") == "messages must be a list, got object");
  CHECK(error("[3]") == "messages[0]: a message must be an object, got number");
  CHECK(error(R"([{"role":"user"},{"content":""}])") ==
        "messages[1]: a message must have a 'role'");
  CHECK(error(R"([{"role":null}])") == "messages[0]: 'role' must be a string, got null");
  CHECK(nv::parse_messages(parse_json("[]")).empty());
  CHECK_THROWS_AS(nv::ChatMessage("user", "x").set("role", 3), E);

  CHECK_THROWS_AS(nv::parse_tools(parse_json("{}")), E);
  CHECK_THROWS_AS(nv::parse_tools(parse_json("[1]")), E);
  CHECK(nv::parse_tools(parse_json("null")).is_null());
  CHECK(nv::parse_tools(parse_json("[{}]")).size() == 1);

  const ChatTemplate qwen3(ChatTemplateKind::qwen3);
  CHECK_THROWS_AS(qwen3.render({{"user", "x"}}, {.tools = parse_json(R"({"a":1})")}), E);
  const auto odd_calls = nv::ChatMessage("assistant", "").set("tool_calls", "f");
  CHECK_THROWS_AS(qwen3.render({{"user", "x"}, odd_calls}), E);
  CHECK(
      message_of<E>([&] {
        (void)qwen3.render({{"system", nullptr}});
      }) ==
      "messages[0]: 'content' of role 'system' must be a string for this chat template, got null");
}

TEST_CASE("text parts are joined and other parts are refused") {
  auto messages = nv::parse_messages(parse_json(
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"user","content":[]},{"role":"user","content":"c"},{"role":"user"}])"));
  nv::join_text_parts(messages);
  CHECK(messages[0].find("content")->get<std::string>() == "a\nb");
  CHECK(messages[1].find("content")->get<std::string>().empty());
  CHECK(messages[2].find("content")->get<std::string>() == "c");
  CHECK(messages[3].find("content") == nullptr);
  for (const char* part : {R"({"type":"image_url","image_url":{}})", R"({"type":"text"})",
                           R"({"type":"text","text":1})", R"("a")", R"({"text":"a"})"}) {
    auto one = nv::parse_messages(
        parse_json(std::string(R"([{"role":"user","content":[)") + part + "]}]"));
    CHECK_THROWS_AS(nv::join_text_parts(one), nv::RequestError);
  }
}

TEST_CASE("json.dumps is reproduced") {
  const auto dumps = [](const char* text) { return python_json(parse_json(text)); };
  CHECK(dumps(R"( {"b":1,"a":[1,2 , {}],"c":[ ],"":""} )") ==
        R"({"b": 1, "a": [1, 2, {}], "c": [], "": ""})");
  CHECK(dumps(R"({"a":1,"b":2,"a":3})") == R"({"a": 3, "b": 2})");
  CHECK(dumps("[true,false,null]") == "[true, false, null]");
  CHECK(dumps(R"("é\u00e9\ud83e\udd99\u2028\u007f<>&'/")") == "\"éé🦙\u2028\x7f<>&'/\"");
  CHECK(dumps(R"("\u0000\u0001\b\t\n\u000b\f\r\u001f\"\\")") ==
        R"("\u0000\u0001\b\t\n\u000b\f\r\u001f\"\\")");
  CHECK(dumps("[0,-0,-1,9223372036854775807,-9223372036854775808,18446744073709551615]") ==
        "[0, 0, -1, 9223372036854775807, -9223372036854775808, 18446744073709551615]");
  CHECK(dumps("[18446744073709551616,-9223372036854775809]") ==
        "[18446744073709551616, -9223372036854775809]");
  CHECK(dumps("123456789012345678901234567890123456789") ==
        "123456789012345678901234567890123456789");
}

TEST_CASE("floats are written like the repr of Python") {
  const auto dumps = [](const char* text) { return python_json(parse_json(text)); };
  CHECK(dumps("[1.0,-1.0,0.0,-0.0,1e0,1.5,100.0]") == "[1.0, -1.0, 0.0, -0.0, 1.0, 1.5, 100.0]");
  CHECK(dumps("[1e-4,0.00012,1e-5,1e-07,1.5e-7]") == "[0.0001, 0.00012, 1e-05, 1e-07, 1.5e-07]");
  CHECK(dumps("[1e15,1e16,1e22,9999999999999998.0,123456789012345680.0]") ==
        "[1000000000000000.0, 1e+16, 1e+22, 9999999999999998.0, 1.2345678901234568e+17]");
  CHECK(dumps("[0.1,123456789.125,1e100,1.7976931348623157e308,5e-324,0.30000000000000004]") ==
        "[0.1, 123456789.125, 1e+100, 1.7976931348623157e+308, 5e-324, 0.30000000000000004]");
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(python_json(Json::array({infinity, -infinity, std::nan("")})) ==
        "[Infinity, -Infinity, NaN]");
  CHECK(python_str(Json::array({infinity, -infinity, std::nan("")})) == "[inf, -inf, nan]");
}

TEST_CASE("str of JSON values is reproduced") {
  const auto str = [](const char* text) { return python_str(parse_json(text)); };
  CHECK(str(R"("it's")") == "it's");
  CHECK(str("null") == "None");
  CHECK(str(R"({"k":[true,false,null,1,2.5,"x"],"":{}})") ==
        "{'k': [True, False, None, 1, 2.5, 'x'], '': {}}");
  CHECK(str(R"(["it's","\"","'\"","a\n\t\r\\"])") == R"(["it's", '"', '\'"', 'a\n\t\r\\'])");
  CHECK(str(R"(["\u0000\u007f\u0085\u00a0\u00ad\u2028\ue000é🦙\udbff\udfff"])") ==
        R"(['\x00\x7f\x85\xa0\xad\u2028\ue000é🦙\U0010ffff'])");
  CHECK(str("[100000000000000000000]") == "[100000000000000000000]");
}

TEST_CASE("what is not JSON is refused with its place") {
  using E = nv::RequestError;
  for (const char* bad : {"", "{", "[1,]", "{'a':1}", "nul", "NaN", "[Infinity]", "1 2", "01", "+1",
                          "\"\\ud800\"", "\"\xc3\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\n\"",
                          "[1e400]", "\"\\x41\"", "{\"a\" 1}"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_json(bad), E);
  }
  CHECK_THROWS_AS(parse_json(std::string_view("1\0 2", 4)), E);
  CHECK_THROWS_AS(parse_json<nv::LoadError>("{"), nv::LoadError);
  CHECK(message_of<E>([] {
          (void)parse_json("[1, x]", "the line");
        }).find("the line is not valid JSON (byte 5): ") == 0);
  CHECK(message_of<E>([] { (void)parse_json("\"" + std::string(5000, 'a')); }).size() < 300);

  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  CHECK(python_json(parse_json(nested(nv::kMaxJsonDepth))) == nested(nv::kMaxJsonDepth));
  CHECK_THROWS_AS(parse_json(nested(nv::kMaxJsonDepth + 1)), E);
  CHECK_THROWS_AS(parse_json(std::string(1000000, '[')), E);
  Json deep;
  for (int i = 0; i <= nv::kMaxJsonDepth; ++i) deep = Json::array({deep});
  CHECK_THROWS_AS(python_json(deep), E);
}

TEST_CASE("the fingerprint of a template follows its meaning and not its layout") {
  const auto kind = nv::recognise_chat_template(kChatml);
  REQUIRE(kind == ChatTemplateKind::chatml);
  const std::string spaced =
      "{#- a comment -#}\r\n{%- for message in messages -%}\r\n  {{ \"<|im_start|>\" + "
      "message.role "
      "+ \"\n\" + message[\"content\"]\n + '<|im_end|>' + '\n' }}\r\n{%- endfor %}\n"
      "  {% if add_generation_prompt %}\n{{-\"<|im_start|>assistant\n\"-}}\n  {%endif%}\n";
  CHECK(nv::recognise_chat_template(spaced) == ChatTemplateKind::chatml);
  CHECK(nv::recognise_chat_template(
            "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + "
            "message.content + '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
            "    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n") == ChatTemplateKind::chatml);

  const std::pair<const char*, const char*> edits[] = {
      {"<|im_start|>' + m", "<|im_begin|>' + m"},
      {"'\\n' + message['content']", "message['content']"},
      {"'\\n' + mess", "'\\\\n' + mess"},
      {"'\\n' + mess", "'\\x0a' + mess"},
      {"'\\n' + mess", "' \\n' + mess"},
      {"{% endfor %}", "{% endfor %} "},
      {"{% endfor %}", "x{% endfor %}"},
      {"{% for", " {{ bos_token }}{% for"},
      {"{% for", " x{% for"},
      {"messages %}", "messages[1:] %}"},
      {"message['role']", "message[role]"},
      {"message['role']", "message['roles']"},
      {"+ '\\n'}}", "+ '\\n'|trim}}"},
      {"{% if add", "{% if not add"},
      {"assistant\\n", "assistant\\n<think>\\n"},
      {"{% endif %}", ""},
      {"}}{% endif %}", "}}"},
      {"'}}", "'"},
      {"{% endif %}", "{% endif"},
      {"message['content']", "message['content']|e"},
      {"{% endif %}", "{% endif %}{# open"},
      {"{{ '<|im", "{% '<|im"},
  };
  for (const auto& [from, to] : edits) {
    CAPTURE(from, to);
    CHECK_FALSE(nv::recognise_chat_template(with(kChatml, from, to)));
  }
  for (const char* odd : {"", "{", "{{", "{%", "{#", "{{ '", "{{ \"\\", "{%- '\\", "{{ a['", "}}",
                          "{%-", "{{-", "{#-", "{{ -", "{{ a }", "\r", "\r\n"}) {
    CAPTURE(odd);
    CHECK_FALSE(nv::recognise_chat_template(odd));
  }
  CHECK(nv::jinja_fingerprint("a\r\nb\n") == nv::jinja_fingerprint("a\nb"));
  CHECK(nv::jinja_fingerprint("{% if a %}\nx") == nv::jinja_fingerprint("{%if a%}x"));
  CHECK(nv::jinja_fingerprint("x\n  {% if a %}") == nv::jinja_fingerprint("x\n{% if a %}"));
  CHECK(nv::jinja_fingerprint("x  {% if a %}") != nv::jinja_fingerprint("x{% if a %}"));
  CHECK(nv::jinja_fingerprint("x\n  {{ a }}") != nv::jinja_fingerprint("x\n{{ a }}"));
  CHECK(nv::jinja_fingerprint("{{ a }}\nx") != nv::jinja_fingerprint("{{ a }}x"));
  CHECK(nv::jinja_fingerprint("{{ a['0'] }}") != nv::jinja_fingerprint("{{ a.0 }}"));
  CHECK(nv::jinja_fingerprint("{{ ab }}") != nv::jinja_fingerprint("{{ a b }}"));
}

TEST_CASE("foreign templates are refused with a message that says what to do") {
  const char* foreign[] = {
      // Llama 3, Llama 2, Gemma, Zephyr, Phi-3, DeepSeek and ChatML with a default system message.
      "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
      "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
      "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
      "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
      "message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif "
      "%}{% endfor %}",
      "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' + "
      "message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}",
      "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + "
      "eos_token }}{% endfor %}",
      "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + "
      "'<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
      "{% for message in messages %}{{ '<｜User｜>' + message['content'] }}{% endfor %}",
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
      "'<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif "
      "%}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
      "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
  };
  for (const char* text : foreign) CHECK_THROWS_AS(ChatTemplate::from_text(text), nv::ConfigError);
  const std::string message =
      message_of<nv::ConfigError>([&] { (void)ChatTemplate::from_text(foreign[0]); });
  CHECK(message.find("ChatTemplate::custom(") != message.npos);
  CHECK(message.find("qwen3_thinking_2507") != message.npos);
}

TEST_CASE("the templates of the Qwen3 family are told apart by their text") {
  const auto config = read(shared() / "qwen3" / "tokenizer_config.json");
  if (!config) return;
  const std::string hybrid = parse_json(*config).at("chat_template").get<std::string>();
  CHECK(ChatTemplate::from_text(hybrid).kind() == ChatTemplateKind::qwen3);
  CHECK(ChatTemplate::from_directory(shared() / "qwen3").kind() == ChatTemplateKind::qwen3);

  // The others are published as edits of this one; here are the same edits.
  const std::string prompt = "{{- '<|im_start|>assistant\\n' }}";
  const std::string tail = hybrid.substr(0, hybrid.find(prompt));
  CHECK(nv::recognise_chat_template(tail +
                                    "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}") ==
        ChatTemplateKind::qwen3_thinking_2507);
  CHECK(nv::recognise_chat_template(
            tail + "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}") ==
        ChatTemplateKind::qwen3_nonthinking);

  std::string instruct = tail + prompt + "{%- endif %}";
  instruct = without(instruct, "{%- set ns =", "{%- for message in messages %}");
  instruct = without(instruct, "{%- set reasoning_content = '' %}", "{%- if message.tool_calls %}");
  instruct =
      with(instruct, "{%- if message.tool_calls %}",
           "{{- '<|im_start|>' + message.role + '\\n' + content }}{%- if message.tool_calls %}");
  CHECK(nv::recognise_chat_template(instruct) == ChatTemplateKind::qwen3_instruct_2507);

  std::string release = with(hybrid, " and message.content is string and not(", " and not(");
  release =
      without(release, "{%- if message.content is string %}", "{%- if (message.role == \"user\")");
  release =
      with(release, "'\\n' + content + '<|im_end|>'", "'\\n' + message.content + '<|im_end|>'");
  release = with(release, "{%- set reasoning_content = '' %}",
                 "{%- set content = message.content %}{%- set reasoning_content = '' %}");
  release = with(release, "message.reasoning_content is string",
                 "message.reasoning_content is defined and message.reasoning_content is not none");
  release = without(release, "{%- if '</think>' in content %}", "{%- endif %}");
  release = with(release, "{%- endif %}\n        {%- endif %}\n        {%- if loop.index0",
                 "{%- if '</think>' in message.content %}"
                 "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}"
                 "{%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n')"
                 ".split('<think>')[-1].lstrip('\\n') %}"
                 "{%- endif %}\n        {%- endif %}\n        {%- if loop.index0");
  release = with(release, "{{- content }}", "{{- message.content }}");
  CHECK(nv::recognise_chat_template(release) == ChatTemplateKind::qwen3_release_day);

  // An edited template is not the model's own, however small the edit.
  const std::pair<const char*, const char*> edits[] = {
      {"# Tools", "# tools"},
      {"loop.index0 > ns.last_query_index", "true"},
      {"{%- if loop.last or (not loop.last and reasoning_content) %}",
       "{%- if reasoning_content %}"},
      {"is false", "is true"},
      {"message.role == \"tool\"", "message.role == \"function\""},
      {"'\\n</tool_response>'", "'</tool_response>'"},
      {"{%- for message in messages[::-1] %}", "{%- for message in messages %}"},
      {"tool | tojson", "tool | tojson(indent=2)"},
      {"{%- endfor %}", "{%- endfor %}\nsome text"},
  };
  for (const auto& [from, to] : edits) {
    CAPTURE(from, to);
    CHECK_FALSE(nv::recognise_chat_template(with(hybrid, from, to)));
  }
  for (std::size_t cut = 0; cut + 1 < hybrid.size(); cut += 7)
    REQUIRE_FALSE(nv::recognise_chat_template(hybrid.substr(0, cut)));
}

TEST_CASE("the template of the fairytale model is ChatML with a thinking switch") {
  const auto text = read(shared() / "models" / "fairytale" / "chat_template.jinja");
  if (!text) return;
  const ChatTemplate chat_template =
      ChatTemplate::from_directory(shared() / "models" / "fairytale");
  CHECK(chat_template.kind() == ChatTemplateKind::chatml_hybrid);
  CHECK(chat_template.render({{"user", "Once"}}, {.enable_thinking = false}) ==
        "<|im_start|>user\nOnce<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST_CASE("a checkpoint's folder states its template in one of three ways") {
  const TemporaryFolder folder;
  const auto load = [&] { return ChatTemplate::from_directory(folder.path).kind(); };
  const auto config = [&](const Json& value) {
    folder.write("tokenizer_config.json", Json::object({{"chat_template", value}}).dump());
  };
  const auto entry = [](const char* name, const std::string& text) {
    return Json::object({{"name", name}, {"template", text}});
  };
  CHECK_THROWS_AS(load(), nv::LoadError);
  folder.write("tokenizer_config.json", "{}");
  CHECK_THROWS_AS(load(), nv::LoadError);
  folder.write("tokenizer_config.json", "{\"chat_template\": ");
  CHECK_THROWS_AS(load(), nv::LoadError);
  folder.write("tokenizer_config.json", "[]");
  CHECK_THROWS_AS(load(), nv::LoadError);
  for (const Json& bad :
       {Json(3), Json(nullptr), Json::array(), Json::array({3}),
        Json::array({Json::object({{"name", "default"}})}), Json::array({entry("rag", kChatml)})}) {
    CAPTURE(bad.dump());
    config(bad);
    CHECK_THROWS_AS(load(), nv::LoadError);
  }
  config(kChatml);
  CHECK(load() == ChatTemplateKind::chatml);
  config(Json::array({entry("rag", "x"), entry("default", kChatml)}));
  CHECK(load() == ChatTemplateKind::chatml);
  config(Json::array({entry("default", kChatml), entry("tool_use", kChatml + "\n")}));
  CHECK(load() == ChatTemplateKind::chatml);
  config(Json::array({entry("default", kChatml), entry("tool_use", "x")}));
  CHECK_THROWS_AS(load(), nv::ConfigError);
  config("{{ messages }}");
  CHECK_THROWS_AS(load(), nv::ConfigError);
  folder.write("chat_template.jinja", kChatml);  // overrides the other file
  CHECK(load() == ChatTemplateKind::chatml);
  folder.write("chat_template.jinja", "");
  CHECK_THROWS_AS(load(), nv::ConfigError);
}

TEST_CASE("a lazy template is that of the files as they were, or says why there is none") {
  const TemporaryFolder folder;
  const auto read = [&] {
    return nv::LazyChatTemplate::from_files(nv::ChatTemplateFiles::read(folder.path));
  };
  const nv::LazyChatTemplate missing = read();
  folder.write("tokenizer_config.json", Json::object({{"chat_template", kChatml}}).dump());
  const nv::LazyChatTemplate stated = read();
  folder.write("chat_template.jinja", "{{ messages }}");
  const nv::LazyChatTemplate unknown = read();
  const std::vector<nv::ChatMessage> messages = {{"user", "Hi"}};

  CHECK_FALSE(missing.has_value());
  CHECK(missing.why_none().find("neither a chat_template.jinja") != std::string::npos);
  CHECK_FALSE(unknown);
  CHECK(unknown.why_none().find("is not one that is rendered natively") != std::string::npos);
  CHECK_THROWS_AS(nv::render_chat(unknown, messages, {}), nv::RequestError);

  const nv::LazyChatTemplate copy = stated;
  std::vector<const ChatTemplate*> found(4);
  std::vector<std::thread> threads;
  for (const ChatTemplate*& place : found) threads.emplace_back([&] { place = &*copy; });
  for (std::thread& thread : threads) thread.join();
  for (const ChatTemplate* place : found) CHECK(place == &*stated);
  CHECK(stated->kind() == ChatTemplateKind::chatml);
  CHECK(stated.why_none().empty());
  CHECK(nv::render_chat(stated, messages, {}) == stated->render(messages));

  const nv::LazyChatTemplate given = ChatTemplate(ChatTemplateKind::qwen3);
  CHECK(given->kind() == ChatTemplateKind::qwen3);
  CHECK_FALSE(nv::LazyChatTemplate().has_value());
  CHECK(nv::LazyChatTemplate("for no reason").why_none() == "for no reason");
}

TEST_CASE("defect 7: tokenizer_config.json that nests deeply is refused") {
  const TemporaryFolder folder;
  const auto load = [&] { (void)ChatTemplate::from_directory(folder.path); };
  for (const char* before :
       {"", "{\"chat_template\": ", "{\"x\": ", "{\"chat_template\": [{\"name\": "}) {
    folder.write("tokenizer_config.json", before + std::string(1000000, '['));
    CHECK(message_of<nv::LoadError>(load).find("nested more than 256 levels deep") !=
          std::string::npos);
  }
}

TEST_CASE("the last message is left open where the model is to go on with it") {
  const std::vector<std::string> contents = {"The fox ", "The fox", "Fox.\n", "<think>\nA fox", ""};
  for (int i = 0; i < static_cast<int>(ChatTemplateKind::custom); ++i) {
    const ChatTemplate chat_template(static_cast<ChatTemplateKind>(i));
    for (const std::string& content : contents) {
      CAPTURE(nv::name(chat_template.kind()), content);
      const std::vector<nv::ChatMessage> messages = {
          {"user", "The fox "}, {"assistant", "No."}, {"user", "Tell"}, {"assistant", content}};
      const std::string closed = chat_template.render(messages, {.add_generation_prompt = false});
      const std::string open = chat_template.render(messages, {.continue_final_message = true});
      CHECK(open + "<|im_end|>\n" == closed);
      CHECK(open.ends_with(content));
    }
  }
  const ChatTemplate qwen3(ChatTemplateKind::qwen3);
  const nv::ChatOptions options{.continue_final_message = true};
  CHECK_THROWS_WITH(qwen3.render({{"user", "Hi"}}, options),
                    "continue_final_message: the last message must be the assistant's");
  CHECK_THROWS_AS(qwen3.render(std::vector<nv::ChatMessage>{}, options), nv::RequestError);
  nv::ChatMessage caller("assistant", "Wait.");
  caller.set("tool_calls", parse_json(R"([{"name": "x", "arguments": {}}])"));
  CHECK_THROWS_WITH(qwen3.render({{"user", "Hi"}, caller}, options),
                    "continue_final_message: the last message must have no tool calls");

  const auto custom = ChatTemplate::custom(
      [](std::span<const nv::ChatMessage> messages, const nv::ChatOptions& given) {
        CHECK_FALSE(given.add_generation_prompt);
        return "[" + messages.back().find("content")->string().substr(0, 3) + "]";
      });
  CHECK(custom.render({{"assistant", "Fox"}}, options) == "[Fox");
  CHECK_THROWS_AS(custom.render({{"assistant", "Foxes"}}, options), nv::RequestError);
  CHECK_THROWS_AS(custom.render({{"assistant", ""}}, options), nv::RequestError);
}

TEST_CASE("a custom renderer takes the place of an unknown template") {
  const ChatTemplate chat_template = ChatTemplate::custom(
      [](std::span<const nv::ChatMessage> messages, const nv::ChatOptions& options) {
        nv::check<nv::RequestError>(!messages.empty(), "say something");
        std::string out;
        for (const nv::ChatMessage& message : messages)
          out += nv::concat("[", message.role(), "] ", python_str(*message.find("content")));
        return out + (options.add_generation_prompt ? " >" : "");
      });
  CHECK(chat_template.kind() == ChatTemplateKind::custom);
  CHECK(chat_template.render({{"user", "Hi"}}) == "[user] Hi >");
  CHECK_THROWS_AS(chat_template.render(std::vector<nv::ChatMessage>{}), nv::RequestError);
  CHECK_THROWS_AS(ChatTemplate::custom(nullptr), nv::ConfigError);
  CHECK_THROWS_AS(ChatTemplate(ChatTemplateKind::custom), nv::ConfigError);
}
