/// Chat templates against Jinja2's renderings, where they come from, and Python's JSON.

#include "nanovllm/chat/chat_template.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "chat/templates.hpp"
#include "nanovllm/api/chat/answer_form.hpp"
#include "nanovllm/api/chat/jinja_programs.hpp"
#include "nanovllm/chat/lazy_chat_template.hpp"
#include "nanovllm/io/checkpoint.hpp"
#include "nanovllm/io/mapped_file.hpp"

namespace nv = nanovllm;
namespace fs = std::filesystem;
using nv::ChatTemplate;
using nv::Json;
using nv::parse_json;

namespace {

const Json kTokens = Json::object({{"bos_token", "<s>"}, {"eos_token", "</s>"}});

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
void check_rendering(const ChatTemplate& chat_template, const Json& conversation,
                     const nv::ChatOptions& options, const Json& expected) {
  const auto messages = nv::parse_messages(conversation.at("messages"));
  CAPTURE(conversation.at("name").get<std::string>());
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

/// The templates of the Qwen3 family, which are published as edits of the hybrid models'.
std::map<std::string, std::string> qwen3_family(const std::string& hybrid) {
  std::map<std::string, std::string> out{{"qwen3", hybrid}};
  const std::string prompt = "{{- '<|im_start|>assistant\\n' }}";
  const std::string tail = hybrid.substr(0, hybrid.find(prompt));
  out["qwen3_thinking_2507"] = tail + "{{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}";
  out["qwen3_nonthinking"] =
      tail + "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}\n{%- endif %}";
  std::string instruct = tail + prompt + "{%- endif %}";
  instruct = without(instruct, "{%- set ns =", "{%- for message in messages %}");
  instruct = without(instruct, "{%- set reasoning_content = '' %}", "{%- if message.tool_calls %}");
  instruct =
      with(instruct, "{%- if message.tool_calls %}",
           "{{- '<|im_start|>' + message.role + '\\n' + content }}{%- if message.tool_calls %}");
  out["qwen3_instruct_2507"] = instruct;

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
  out["qwen3_release_day"] = release;
  return out;
}

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
  const auto dumps = [](const char* text) { return parse_json(text).dump(); };
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
  CHECK(parse_json(nested(nv::kMaxJsonDepth)).dump() == nested(nv::kMaxJsonDepth));
  CHECK_THROWS_AS(parse_json(nested(nv::kMaxJsonDepth + 1)), E);
  CHECK_THROWS_AS(parse_json(std::string(1000000, '[')), E);
  Json deep;
  for (int i = 0; i <= nv::kMaxJsonDepth; ++i) deep = Json::array({deep});
  CHECK_THROWS_AS(deep.dump(), E);
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

TEST_CASE("every template renders the committed conversations as Jinja2 does") {
  const Json cases = parse_json(nv::MappedFile(own_cases()).text());
  std::size_t num_rendered = 0;
  for (const Json& one : cases) {
    for (const Json& rendered : one.at("rendered")) {
      for (const Json& kind : rendered.at("kinds")) {
        ++num_rendered;
        CAPTURE(kind.string());
        const auto chat_template =
            ChatTemplate::from_argument("tests/fixtures/chat/" + kind.string() + ".jinja")
                .with_special_tokens(kTokens);
        check_rendering(chat_template, one, options_of(one, one), rendered);
      }
    }
  }
  REQUIRE(num_rendered >= 2 * 60);
}

TEST_CASE("Qwen3's templates render the reference conversations as Jinja2 does") {
  const auto text = read(shared() / "cases" / "chat_cases.json");
  const auto config = read(shared() / "qwen3" / "tokenizer_config.json");
  if (!text || !config) return;
  const auto family = qwen3_family(parse_json(*config).at("chat_template").get<std::string>());
  std::map<std::string, ChatTemplate> read_once;
  for (const auto& [name, jinja] : family) read_once.emplace(name, ChatTemplate::from_text(jinja));
  int num_rendered = 0;
  const Json cases = parse_json(*text).at("cases");
  for (const Json& one : cases) {
    const auto found = read_once.find(one.at("template").string());
    if (found == read_once.end()) continue;
    ++num_rendered;
    check_rendering(found->second, one, options_of(one, one.at("kwargs")), one);
  }
  REQUIRE(num_rendered == 102);

  using nv::Reasoning;
  const auto form = [&](const char* name) { return answer_form(read_once.at(name)); };
  CHECK(form("qwen3").reasoning ==
        std::array{Reasoning::optional, Reasoning::none, Reasoning::optional});
  CHECK(form("qwen3_release_day").reasoning == form("qwen3").reasoning);
  CHECK(form("qwen3_thinking_2507").reasoning_of(false) == Reasoning::open);
  CHECK(form("qwen3_nonthinking").reasoning_of(true) == Reasoning::none);
  CHECK(form("qwen3_instruct_2507").reasoning_of({}) == Reasoning::none);
  for (const auto& [name, one] : read_once) {
    CAPTURE(name);
    CHECK(answer_form(one).tool_call_format == nv::ToolCallFormat::hermes);
    CHECK(answer_form(one).shows_thoughts == (name != "qwen3_instruct_2507"));
    CHECK(one.turn_end() == "<|im_end|>");
  }
}

TEST_CASE("what is found out about a template is found once for all its copies") {
  static int num_calls = 0;
  const auto find = [](const nv::ChatTemplate&) -> std::shared_ptr<const void> {
    ++num_calls;
    return std::make_shared<const int>(num_calls);
  };
  const auto other = [](const nv::ChatTemplate&) -> std::shared_ptr<const void> {
    return std::make_shared<const int>(-1);
  };
  const nv::ChatTemplate one = nv::ChatTemplate::chatml(), copy = one;
  const auto number = [](const std::shared_ptr<const void>& found) {
    return *static_cast<const int*>(found.get());
  };
  CHECK(number(one.found_by(find)) == 1);
  CHECK(number(one.found_by(other)) == -1);
  CHECK(number(copy.found_by(find)) == 1);
  CHECK(number(copy.with_special_tokens({}).found_by(find)) == 1);
  CHECK(number(nv::ChatTemplate::chatml().found_by(find)) == 2);  // another one
  const auto own = nv::ChatTemplate::custom([](const auto&, const auto&) { return ""; });
  CHECK(own.program(true) == nullptr);
  CHECK(number(own.found_by(find)) == 3);
  CHECK(one.program(true) == one.program(false));
}

TEST_CASE("templates of other families and of fine-tunes are rendered") {
  const std::vector<nv::ChatMessage> messages = {
      {"system", "S"}, {"user", "Hi "}, {"assistant", "Ho"}};
  const auto check = [&](const char* jinja, const char* expected, const char* end) {
    CAPTURE(jinja);
    const auto chat_template = ChatTemplate::from_text(jinja).with_special_tokens(kTokens);
    CHECK(chat_template.render(messages, {.add_generation_prompt = false}) == expected);
    CHECK(chat_template.turn_end() == end);
  };
  check(
      "{% for message in messages %}{% set content = '<|' + message['role'] + '|>\n\n'+ "
      "message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = "
      "bos_token + content %}{% endif %}{{ content }}{% endfor %}",
      "<s><|system|>\n\nS<|eot|><|user|>\n\nHi<|eot|><|assistant|>\n\nHo<|eot|>", "<|eot|>");
  check(
      "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
      "message['content'] + '[/INST]' }}{% elif loop.last %}{{ message['content'] + eos_token }}"
      "{% endif %}{% endfor %}",
      "[INST] Hi [/INST]Ho</s>", "</s>");
  check(
      "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
      "{% endif %}{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}<end>"
      "{% endgeneration %}{% endfor %}",
      "system:S<end>user:Hi <end>assistant:Ho<end>", "<end>");
  check("{{ messages[0].content }}", "S", "");
  check("{{ raise_exception('never') if messages | length == 2 }}", "", "");
}

TEST_CASE("messages are written as pairs of strings") {
  const ChatTemplate chat_template = nanovllm_test::hybrid_template();
  const std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\n";
  const std::vector<nv::ChatMessage> messages{{"system", "Be brief."}, {"user", "Hi"}};
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

TEST_CASE("a template is told what a request says, by name") {
  const auto chat_template = ChatTemplate::from_text(
      "{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ enable_thinking }} {{ effort }} "
      "{{ messages[0] }} {{ bos_token }}|{{ eos_token }}|{{ pad_token }}");
  CHECK(chat_template.render({{"user", "x"}}) ==
        "None None True   {'role': 'user', 'content': 'x'} ||");
  const Json tokens =
      parse_json(R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null})");
  nv::ChatOptions options{.tools = Json::array(),
                          .documents = parse_json(R"([{"text": "t"}])"),
                          .enable_thinking = true,
                          .template_kwargs = parse_json(R"({"effort": 1, "eos_token": "E"})"),
                          .add_generation_prompt = false};
  CHECK(chat_template.with_special_tokens(tokens).render({{"user", "x"}}, options) ==
        "None [{'text': 't'}] False True 1 {'role': 'user', 'content': 'x'} <s>|E|");
  options.template_kwargs = parse_json(R"({"messages": []})");
  CHECK_THROWS_AS(chat_template.render({{"user", "x"}}, options), nv::RequestError);
}

TEST_CASE("a template that reads lists of parts alone gets lists") {
  const ChatTemplate parts = nanovllm_test::parts_template();
  CHECK(parts.render({{"user", " Hi"}}) == "[USER]Hi\n[ASSISTANT]<think>\n");
  CHECK(parts.render({{"user", parse_json(R"([{"type": "text", "text": "Hi"}])")}}) ==
        parts.render({{"user", "Hi"}}));
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

  const ChatTemplate hybrid = nanovllm_test::hybrid_template();
  CHECK_THROWS_AS(hybrid.render({{"user", "x"}}, {.tools = parse_json(R"({"a":1})")}), E);
  const auto odd_calls = nv::ChatMessage("assistant", "").set("tool_calls", 3);
  CHECK_THROWS_WITH(hybrid.render({{"user", "x"}, odd_calls}),
                    Catch::Matchers::Contains("chat template, line ") &&
                        Catch::Matchers::Contains(": a value of type 'int' has no elements"));
}

TEST_CASE("floats are written like the repr of Python") {
  const auto dumps = [](const char* text) { return parse_json(text).dump(); };
  CHECK(dumps("[1.0,-1.0,0.0,-0.0,1e0,1.5,100.0]") == "[1.0, -1.0, 0.0, -0.0, 1.0, 1.5, 100.0]");
  CHECK(dumps("[1e-4,0.00012,1e-5,1e-07,1.5e-7]") == "[0.0001, 0.00012, 1e-05, 1e-07, 1.5e-07]");
  CHECK(dumps("[1e15,1e16,1e22,9999999999999998.0,123456789012345680.0]") ==
        "[1000000000000000.0, 1e+16, 1e+22, 9999999999999998.0, 1.2345678901234568e+17]");
  CHECK(dumps("[0.1,123456789.125,1e100,1.7976931348623157e308,5e-324,0.30000000000000004]") ==
        "[0.1, 123456789.125, 1e+100, 1.7976931348623157e+308, 5e-324, 0.30000000000000004]");
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(Json::array({infinity, -infinity, std::nan("")}).dump() == "[Infinity, -Infinity, NaN]");
}

TEST_CASE("a checkpoint's folder states its template in one of three ways") {
  const TemporaryFolder folder;
  nv::ChatOptions options;
  const auto load = [&] {
    return ChatTemplate::from_directory(folder.path).render({{"user", "x"}}, options);
  };
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
  const std::string chatml = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
  config(kChatml);
  CHECK(load() == chatml);
  config(Json::array({entry("rag", "{{ broken"), entry("default", kChatml)}));
  CHECK(load() == chatml);
  config(
      Json::array({entry("default", kChatml), entry("tool_use", "tools: {{ tools | length }}")}));
  CHECK(load() == chatml);
  options.tools = parse_json(R"([{"name": "f"}])");
  CHECK(load() == "tools: 1");
  config("{{ messages");
  CHECK_THROWS_AS(load(), nv::ConfigError);
  folder.write("chat_template.json", Json::object({{"chat_template", "{{ 'json' }}"}}).dump());
  CHECK(load() == "json");
  folder.write("chat_template.jinja", kChatml);  // overrides the other files
  CHECK(load() == chatml);
  fs::create_directories(folder.path / "additional_chat_templates");
  folder.write("additional_chat_templates/tool_use.jinja", "more tools");
  CHECK(load() == "more tools");
  options.tools = nullptr;
  CHECK(load() == chatml);
  folder.write("chat_template.jinja", "");
  CHECK(load().empty());
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  folder.write("chat_template.jinja", "{{ bos_token }}");
  CHECK(load() == "<s>");
}

TEST_CASE("an argument is a file or a template") {
  const TemporaryFolder folder;
  folder.write("a.jinja", "text of {{ messages[0].role }}");
  const auto render = [](const std::string& argument) {
    return ChatTemplate::from_argument(argument).render({{"user", "x"}});
  };
  CHECK(render((folder.path / "a.jinja").string()) == "text of user");
  CHECK(render("{{ messages[0].content }}") == "x");
  CHECK_THROWS_AS(render((folder.path / "b.jinja").string()), nv::LoadError);
  CHECK(message_of<nv::ConfigError>([&] { (void)render("a\n {% if x %}"); }) ==
        "chat template, line 2, column 12: expected {% endif %}, got the end of the template");
}

TEST_CASE("a lazy template is that of the files as they were, or says why there is none") {
  const TemporaryFolder folder;
  const auto read = [&] {
    return nv::LazyChatTemplate::from_files(nv::ChatTemplateFiles::read(folder.path));
  };
  const nv::LazyChatTemplate missing = read();
  folder.write("tokenizer_config.json", Json::object({{"chat_template", kChatml}}).dump());
  const nv::LazyChatTemplate stated = read();
  folder.write("chat_template.jinja", "{{ messages");
  const nv::LazyChatTemplate unknown = read();
  const std::vector<nv::ChatMessage> messages = {{"user", "Hi"}};

  CHECK_FALSE(missing.has_value());
  CHECK(missing.why_none().find("neither a chat_template.jinja") != std::string::npos);
  CHECK_FALSE(unknown);
  CHECK(unknown.why_none() == "chat template, line 1, column 1: expected '}}'");
  CHECK_THROWS_AS(nv::render_chat(unknown, messages, {}), nv::RequestError);

  const nv::LazyChatTemplate copy = stated;
  std::vector<const ChatTemplate*> found(4);
  std::vector<std::thread> threads;
  for (const ChatTemplate*& place : found) threads.emplace_back([&] { place = &*copy; });
  for (std::thread& thread : threads) thread.join();
  for (const ChatTemplate* place : found) CHECK(place == &*stated);
  CHECK(stated.why_none().empty());
  CHECK(nv::render_chat(stated, messages, {}) == stated->render(messages));

  const nv::LazyChatTemplate given = ChatTemplate::chatml();
  CHECK(given->turn_end() == "<|im_end|>");
  const auto instead = nv::LazyChatTemplate::from_files(
      {.config = R"({"eos_token": "</s>"})"}, ChatTemplate::from_text("x{{ eos_token }}"));
  CHECK(instead->render(messages) == "x</s>");
  CHECK_FALSE(nv::LazyChatTemplate().has_value());
  CHECK(nv::LazyChatTemplate("for no reason").why_none() == "for no reason");
}

TEST_CASE("the last message is left open where the model is to go on with it") {
  const std::vector<std::string> contents = {"The fox ", "The fox", "Fox.\n", "<think>\nA fox", ""};
  for (const ChatTemplate& chat_template :
       {ChatTemplate::chatml(), nanovllm_test::hybrid_template()}) {
    for (const std::string& content : contents) {
      CAPTURE(content);
      const std::vector<nv::ChatMessage> messages = {
          {"user", "The fox "}, {"assistant", "No."}, {"user", "Tell"}, {"assistant", content}};
      const std::string closed = chat_template.render(messages, {.add_generation_prompt = false});
      const std::string open = chat_template.render(messages, {.continue_final_message = true});
      CHECK(open + "<|im_end|>\n" == closed);
      CHECK(open.ends_with(content));
    }
  }
  const auto trims =
      ChatTemplate::from_text("{% for m in messages %}{{ m.content | trim }}<end>{% endfor %}");
  CHECK(trims.render({{"assistant", "The fox "}}, {.continue_final_message = true}) == "The fox");
  CHECK_THROWS_AS(
      ChatTemplate::from_text("x").render({{"assistant", "y"}}, {.continue_final_message = true}),
      nv::RequestError);
  const ChatTemplate qwen3 = nanovllm_test::hybrid_template();
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

TEST_CASE("a custom renderer takes the place of a template") {
  const ChatTemplate chat_template = ChatTemplate::custom(
      [](std::span<const nv::ChatMessage> messages, const nv::ChatOptions& options) {
        nv::check<nv::RequestError>(!messages.empty(), "say something");
        std::string out;
        for (const nv::ChatMessage& message : messages)
          out += nv::concat("[", message.role(), "] ", message.find("content")->string());
        return out + (options.add_generation_prompt ? " >" : "");
      });
  CHECK(chat_template.turn_end().empty());
  CHECK(chat_template.render({{"user", "Hi"}}) == "[user] Hi >");
  CHECK_THROWS_AS(chat_template.render(std::vector<nv::ChatMessage>{}), nv::RequestError);
  CHECK_THROWS_AS(ChatTemplate::custom(nullptr), nv::ConfigError);
}
